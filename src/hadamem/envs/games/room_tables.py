"""Rules of the three-phase games as plain Python, and their conversion into lookup tables.

Apples aside, such a game has only a few hundred situations: a phase, the player's cell and what the game remembers. `Rules` define what a
situation looks like and what follows it; `tabulate` visits each one once, so that a step is a table lookup.
Cells are (row, column) from the top left. Boards are text: `#` wall, `k` key, `i` indicator, `d` door, `b` `c` `e` coloured objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Cell = tuple[int, int]
Board = Sequence[str]

ROWS, COLUMNS, VIEW = 7, 11, 5
MOVES: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))           # north, south, west, east
EXPLORE, DISTRACTOR, REWARD = range(3)
COLOURS = {
    "+": (228, 148, 109), "#": (25, 25, 25), " ": (204, 204, 204), "k": (159, 81, 44), "d": (134, 206, 235), "i": (255, 255, 255),
}
APPLE = (140, 178, 0)
CODE = ((255, 0, 0), (0, 255, 0), (0, 0, 255))                         # colours of b, c and e, in varying order
ORDERS = tuple(itertools.permutations(range(3)))

ORCHARD = (
    "###########",
    "#a a a a a#",
    "# a a a a #",
    "#a a a a a#",
    "# a a a a #",
    "#a a + a a#",
    "###########",
)


def cells(board: Board, mark: str) -> list[Cell]:
    """The cells of a board that hold `mark`, row by row."""
    return [(r, c) for r, row in enumerate(board) for c, char in enumerate(row) if char == mark]


def without(board: Board, marks: str) -> list[str]:
    """The board with floor in place of `marks`."""
    return ["".join(" " if char in marks else char for char in row) for row in board]


def painted(board: Board, cell: Cell, mark: str) -> list[str]:
    """The board with `mark` at a cell."""
    row, column = cell
    return [line if r != row else line[:column] + mark + line[column + 1:] for r, line in enumerate(board)]


APPLE_CELLS = cells(ORCHARD, "a")
NO_APPLE = len(APPLE_CELLS)                                            # index that stands for no apple
ORCHARD_FLOOR = without(ORCHARD, "a+")


class Situation(NamedTuple):
    """The state of a game without its apples and the time. memo: what the game has to remember, hashable."""

    phase: int
    player: Cell
    memo: Any


class Rules:
    """One game: how its explore and reward phases look and work. The distractor phase is the same in all games."""

    starts: Sequence[Situation]  # equally likely
    reward_start: Cell
    above = ""                   # marks that are drawn above the player

    def board(self, now: Situation) -> Board:
        """The board, without the player."""
        raise NotImplementedError

    def blocking(self, now: Situation) -> str:
        """Marks that cannot be walked on."""
        raise NotImplementedError

    def touch(self, now: Situation) -> tuple[Any, bool]:
        """After a move, successful or not: the new memo, and whether the final reward is paid."""
        raise NotImplementedError

    def carry(self, now: Situation) -> Any:
        """The memo of the next phase, from the last situation of this one."""
        raise NotImplementedError

    def won(self, now: Situation) -> bool:
        """Whether the final reward has been paid."""
        raise NotImplementedError


def step(rules: Rules, now: Situation, move: Cell) -> tuple[Situation, bool]:
    """The situation one frame later, and whether the final reward is paid in it."""
    orchard = now.phase == DISTRACTOR
    board, blocking = (ORCHARD_FLOOR, "#") if orchard else (rules.board(now), rules.blocking(now))
    row, column = now.player[0] + move[0], now.player[1] + move[1]
    if 0 <= row < ROWS and 0 <= column < COLUMNS and board[row][column] not in blocking:
        now = now._replace(player=(row, column))
    memo, paid = (now.memo, False) if orchard else rules.touch(now)
    return now._replace(memo=memo), paid


def turn(rules: Rules, now: Situation) -> Situation:
    """The first situation of the next phase."""
    if now.phase == EXPLORE:
        return Situation(DISTRACTOR, cells(ORCHARD, "+")[0], rules.carry(now))
    if now.phase == DISTRACTOR:
        return Situation(REWARD, rules.reward_start, rules.carry(now))
    return now


def window(board: Board, centre: Cell) -> Iterator[tuple[Cell, str]]:
    """The cells around `centre`, row by row, each with its mark; outside the board there is floor."""
    for r in range(centre[0] - VIEW // 2, centre[0] + VIEW // 2 + 1):
        for c in range(centre[1] - VIEW // 2, centre[1] + VIEW // 2 + 1):
            yield (r, c), board[r][c] if 0 <= r < ROWS and 0 <= c < COLUMNS else " "


class Tables(NamedTuple):
    """A game of S situations as numpy arrays; the situations that an episode may start with come first."""

    situations: list[Situation]
    following: np.ndarray     # [3, S, 4] situation after each action: within the phase, at the end of phase 1, at the end of phase 2
    paid: np.ndarray          # [S, 4] bool: the action earns the final reward
    apple: np.ndarray         # [S, 4] the apple cell that the action leads to; NO_APPLE: none
    nearby: np.ndarray        # [S, 25] the apple cell at each place of the window; NO_APPLE: none, or covered
    image: np.ndarray         # [colour orders, S, 75] uint8: the window without apples, channel by channel
    won: np.ndarray           # [S] bool

    def of(self, name: str) -> np.ndarray:
        """A field of each situation [S, ...]."""
        return np.array([getattr(s, name) for s in self.situations])


def tabulate(rules: Rules, orders: Sequence[Sequence[int]]) -> Tables:
    """Visit every situation of a game. orders: which entries of CODE the marks b, c and e have; one table of images for each order."""
    number = {s: i for i, s in enumerate(rules.starts)}
    situations = list(rules.starts)

    def index(s: Situation) -> int:
        if s not in number:
            number[s] = len(situations)
            situations.append(s)
        return number[s]

    following, paid, apple, nearby, codes = [], [], [], [], []
    palette = [*COLOURS, *"bce"]
    for now in situations:               # `index` appends to the list during the loop
        after = [step(rules, now, move) for move in MOVES]
        following.append([[index(s) for s, _ in after], [index(turn(rules, s)) if now.phase == EXPLORE else index(s) for s, _ in after],
                          [index(turn(rules, s)) if now.phase == DISTRACTOR else index(s) for s, _ in after]])
        paid.append([pays for _, pays in after])
        orchard = now.phase == DISTRACTOR
        apple.append([_apple_at(s.player) if orchard else NO_APPLE for s, _ in after])
        around = list(window(ORCHARD_FLOOR if orchard else rules.board(now), now.player))
        nearby.append([_apple_at(cell) if orchard and cell != now.player else NO_APPLE for cell, _ in around])
        codes.append([palette.index("+" if cell == now.player and mark not in rules.above else mark) for cell, mark in around])
    colours = np.array([[*COLOURS.values(), *(CODE[i] for i in order)] for order in orders], dtype=np.uint8)     # [orders, marks, 3]
    image = colours[:, np.array(codes)]                                                                         # [orders, S, 25, 3]
    return Tables(situations, np.array(following).transpose(1, 0, 2), np.array(paid), np.array(apple), np.array(nearby),
                  image.transpose(0, 1, 3, 2).reshape(len(orders), len(situations), -1), np.array([rules.won(s) for s in situations]))


def _apple_at(cell: Cell) -> int:
    return APPLE_CELLS.index(cell) if cell in APPLE_CELLS else NO_APPLE


def subsets(size: int) -> np.ndarray:
    """Every choice of `size` apple cells, as bits: [number of choices] int64."""
    count = np.zeros(1, dtype=np.uint8)
    for _ in APPLE_CELLS:
        count = np.concatenate([count, count + 1])
    return np.flatnonzero(count == size)
