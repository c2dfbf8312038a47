"""Battleship (POPGym): sink all ships on a board, seeing only whether the last shot hit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from torch import Tensor

from ... import random
from ..base import EPISODE, BatchedEnv, assign, nobody
from ..checks import positive
from ..render.blocks import WHITE, Block, Caption, Grid, Square

LEVELS = {"Easy": dict(board_size=8), "Medium": dict(board_size=10), "Hard": dict(board_size=12)}
TRIES = 8        # places tried for a ship in one step
WATER, SHIP = (150, 190, 222), (92, 104, 120)
LOOKS = {        # by (ship, shot)
    (False, False): Square("·", WATER, (120, 160, 200)), (True, False): Square("■", WATER, SHIP),
    (False, True): Square("o", WATER, WHITE), (True, True): Square("X", (226, 120, 100), (120, 20, 20)),
}


class Battleship(BatchedEnv):
    """An action (row, column) is a shot.

    A hit on a ship's cell, the first one there: observation 1, reward 1 / (cells of all ships). Anything else: observation 0, reward
    -1 / (cells without ships). Terminates when every ship is sunk, is truncated after as many shots as the board has cells.

    Ships are placed one after the other, each uniformly among the free places (cell, direction). The next episode's board is built while
    this one is played, a few tries per step: an episode has at least as many shots as ships have cells. With a probability below 1e-12 the
    tries of an episode are not enough; that board lacks ships.
    """

    truncates_early = False
    layout = ("board",)

    def __init__(self, num_envs: int = 1, *, board_size: int = 10, ship_sizes: Sequence[int] = (2, 3, 3, 4), **options: Any):
        super().__init__(num_envs, **options)
        size = self.board_size = positive("board_size", board_size)
        self.ship_sizes = tuple(positive("ship_sizes", s) for s in ship_sizes)
        for i, length in enumerate(self.ship_sizes):
            if sum(self.ship_sizes[:i]) >= size * (size // length):      # fewer cells cannot block the places in every row
                raise ValueError(f"ship_sizes {list(self.ship_sizes)} may not fit on a board of {size} x {size}: "
                                 "use fewer or shorter ships, or a larger board_size")
        if not self.ship_sizes or sum(self.ship_sizes) >= size * size:
            raise ValueError(f"ship_sizes must hold at least one ship and leave water on the board, got {list(self.ship_sizes)}")
        self.single_observation_space = Discrete(2)
        self.single_action_space = MultiDiscrete([size, size])
        self.cells = self.episode_steps = size * size
        self.needed = sum(self.ship_sizes)
        places, numbers = _places(size, self.ship_sizes)
        self.places, self.numbers = places.to(self.device), numbers.to(self.device)        # [ships + 1, most, longest], [ships + 1]
        self.builds = _builds(size, self.ship_sizes)                                       # calls of _build that a board needs at most
        self.board = self.zeros("board", self.cells + 1, dtype=torch.bool)                 # the last column is off the board
        self.spare = self.zeros("spare", self.cells + 1, dtype=torch.bool)                 # the next episode's board, being built
        self.placed = self.zeros("placed")                                                 # ships on the spare board
        self.tried = self.zeros("tried")                                                   # places tried for its next ship
        self.shot = self.zeros("shot", self.cells, dtype=torch.bool)
        self.hits = self.zeros("hits")
        self.hit = self.zeros("hit")                                                       # whether the last shot hit

    def start(self, mask: Tensor | None) -> None:
        if self.resetting:                      # the spare board is not ready: build it now
            self._clear(mask)
            while bool(((self.placed < len(self.ship_sizes)) if mask is None else mask & (self.placed < len(self.ship_sizes))).any()):
                self._build(self.key, mask)
        assign(self.board, mask, self.spare)
        self._clear(mask)
        assign(self.shot, mask, False)
        assign(self.hits, mask, 0)
        assign(self.hit, mask, 0)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cell = (action[:, 0] * self.board_size + action[:, 1])[:, None]
        hit = (self.board.gather(1, cell) & ~self.shot.gather(1, cell))[:, 0]
        self.shot.scatter_(1, cell, True)
        self.hit.copy_(hit)
        self.hits.add_(hit)
        reward = torch.where(hit, 1 / self.needed, -1 / (self.cells - self.needed))
        if not nobody(self.placed < len(self.ship_sizes)):
            steps = min(self.needed, self.max_episode_steps or self.needed)
            for _ in range(-(-self.builds // steps)):
                self._build(self.key + EPISODE, None)
        return reward, self.hits == self.needed, self.elapsed >= self.cells

    def observe(self) -> Tensor:
        return self.hit.clone()

    def inject(self, layout: dict[str, Any]) -> None:
        board = torch.as_tensor(layout["board"], device=self.device)
        shape = (self.num_envs, self.board_size, self.board_size)
        if board.shape != shape or bool(((board != 0).sum((1, 2)) != self.needed).any()):
            raise ValueError(f"layout['board'] must be {list(shape)} with {self.needed} cells of ships each, got {list(board.shape)}")
        self.board[:, :-1] = board.reshape(self.num_envs, -1) != 0

    def scene(self, i: int, hidden: bool) -> list[Block]:
        size, steps = self.board_size, int(self.elapsed[i])
        word = "no shot yet" if steps == 0 else "a hit!" if int(self.hit[i]) else "no hit"
        blocks: list[Block] = [Caption(f"shot {steps} of {self.episode_steps}"), Caption(word, strong=True)]
        if hidden:
            ship, shot = self.board[i, :size * size].tolist(), self.shot[i].tolist()
            blocks += [Caption(f"{int(self.hits[i])} of {self.needed} parts of ships hit"),
                       Grid([[LOOKS[ship[r * size + c], shot[r * size + c]] for c in range(size)] for r in range(size)], labels=True)]
        return blocks

    def _clear(self, mask: Tensor | None) -> None:
        for state in (self.spare, self.placed, self.tried):
            assign(state, mask, 0)

    def _build(self, key: Tensor, mask: Tensor | None) -> None:
        """Try TRIES more places for the next ship of the spare board; the ship goes to the first free one."""
        tries = self.tried[:, None] + self.count(TRIES)
        number = random.integers(key[:, None] + self.placed[:, None] * (1 << 16) + tries, self.numbers[self.placed][:, None])   # [N, TRIES]
        cells = self.places[self.placed[:, None], number]                                                       # [N, TRIES, longest]
        taken = self.spare.gather(1, cells.flatten(1)).view(cells.shape).any(2)
        free = ~taken & (cells[:, :, 0] < self.cells)
        if mask is not None:
            free &= mask[:, None]
        best = free.int().argmax(1)
        found = free.gather(1, best[:, None])
        chosen = cells.gather(1, best[:, None, None].expand(-1, 1, cells.shape[2]))[:, 0]                       # [N, longest]
        self.spare.scatter_(1, torch.where(found, chosen, self.cells), True)
        self.spare[:, -1] = False
        self.placed.add_(found[:, 0])
        assign(self.tried, mask, torch.where(found[:, 0], 0, self.tried + TRIES))


def _places(size: int, ships: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The cells of every ship at every place where it fits [ships + 1, most places, longest], and the number of places of each ship.

    A place is a first cell and a direction. Rows are padded with a cell off the board; the row after the last ship holds only padding.
    """
    off = size * size
    row, col = torch.arange(off) // size, torch.arange(off) % size
    found = []
    for length in ships:
        i = torch.arange(length)
        cells = []
        for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            r, c = row[:, None] + down * i, col[:, None] + right * i                   # [cells, length]
            fits = ((r >= 0) & (r < size) & (c >= 0) & (c < size)).all(1)
            cells.append((r * size + c)[fits])
        found.append(torch.cat(cells))
    out = torch.full((len(ships) + 1, max(len(f) for f in found), max(ships)), off)
    for s, f in enumerate(found):
        out[s, :len(f), :f.shape[1]] = f
    return out, torch.tensor([len(f) for f in found] + [1])


def _builds(size: int, ships: Sequence[int]) -> int:
    """Calls of `_build` after which a board lacks a ship with a probability below 1e-12, wherever the earlier ships are."""
    calls = 0
    for i, length in enumerate(ships):
        before, all_places = sum(ships[:i]), 4 * size * (size - length + 1)
        blocked = 4 * length * before                                                 # at most: each cell is part of 4 length places
        free = max(all_places - blocked, 2 * (size * (size // length) - before)) / all_places
        tries = 1 if free >= 1 else math.ceil(math.log(1e-12 / len(ships)) / math.log1p(-free))
        calls += -(-tries // TRIES)
    return calls
