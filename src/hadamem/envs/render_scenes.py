"""The scene of each task: what of env i a person should see, as a list of blocks. `hidden` adds what the agent cannot see.

Scenes are found by the name of a task's class or of a class it is derived from, so nothing is imported before it is needed.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .render_blocks import Bars, Block, Caption, Card, Cards, Grid, Plane, Spot, Square, Stroke
from .render_canvas import BLACK, FAINT, INK, RED, WHITE, Colour

Scene = Callable[[Any, int, bool], list[Block]]

SUITS = "♠♦♣♥"
RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
WATER, SHIP = (150, 190, 222), (92, 104, 120)
LEAF, CART, TRACK, AXIS = (52, 140, 84), (70, 104, 160), (190, 190, 186), (226, 226, 222)


def scene(env: Any, i: int, hidden: bool) -> list[Block]:
    """The blocks of env i; of an env that has no scene of its own, its observation."""
    for cls in type(env).__mro__:
        if cls.__name__ in SCENES:
            return SCENES[cls.__name__](env, i, hidden)
    return observation(env, i)


def row(tree: Any, i: int) -> Any:
    """Entry i of each leaf, as numpy arrays."""
    if isinstance(tree, dict):
        return {key: row(value, i) for key, value in tree.items()}
    return tuple(row(value, i) for value in tree) if isinstance(tree, tuple) else tree[i].cpu().numpy()


def told(value: Any) -> str:
    """An observation in a few words."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {told(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(told(inner) for inner in value) + ")"
    value = np.asarray(value)
    if value.size > 160:
        return f"{' x '.join(map(str, value.shape))} {value.dtype}, from {value.min()} to {value.max()}"
    return np.array2string(value, max_line_width=100, precision=3, suppress_small=True, separator=" ")


def observation(env: Any, i: int) -> list[Block]:
    """What any env shows: its observation, as a picture where it is one."""
    seen = row(env.observe(), i)
    blocks: list[Block] = [Caption(f"step {int(env.elapsed[i])}")]
    parts = seen if isinstance(seen, dict) else dict(enumerate(seen)) if isinstance(seen, tuple) else {"observation": seen}
    for name, part in parts.items():
        grid = _as_image(part)
        if grid is not None:
            blocks += [Caption(f"{name}:"), grid]
        else:
            blocks += [Caption(line) for line in textwrap.wrap(f"{name}: {told(part)}", 37)]      # as much as a picture's line holds
    return blocks


def _as_image(part: Any) -> Grid | None:
    if isinstance(part, (dict, tuple)) or part.dtype != np.uint8 or part.ndim != 3 or max(part.shape) > 96:
        return None
    image = part if part.shape[2] in (1, 3) else part.transpose(1, 2, 0) if part.shape[0] in (1, 3) else None
    if image is None:
        return None
    image = np.broadcast_to(image, (*image.shape[:2], 3))
    shades = " .:-=+*#%@"
    return Grid([[Square(shades[int(p.mean() * 9.99 / 255)] * 2, tuple(int(v) for v in p), tuple(int(v) for v in p))     # type: ignore[arg-type]
                  for p in line] for line in image], ruled=False, side=max(2, 240 // max(image.shape[:2])))


# --- cards ---------------------------------------------------------------------------------------------------------


def suit(number: Any, **how: Any) -> Card:
    return Card(SUITS[int(number)], RED if int(number) % 2 else BLACK, **how)


def rank(number: Any, **how: Any) -> Card:
    return Card(RANKS[int(number)], INK, **how)


def colour(number: Any, **how: Any) -> Card:
    return Card("●", RED if int(number) % 2 else BLACK, plain="R" if int(number) % 2 else "B", **how)


FACES = {2: colour, 4: suit, 13: rank}     # by the number of classes


def _count(env: Any, i: int) -> Caption:
    return Caption(f"card {min(int(env.elapsed[i]) + 1, env.num_cards)} of {env.num_cards}")


def repeat_previous(env: Any, i: int, hidden: bool) -> list[Block]:
    blocks: list[Block] = [_count(env, i), Cards([suit(env.card[i])])]
    if hidden:
        shown = min(int(env.elapsed[i]) + 1, env.num_cards)
        latest = [suit(card) for card in env.deck[i, max(0, shown - env.k):shown].tolist()]
        if shown >= env.k:
            latest[0] = latest[0]._replace(lit=True)
        blocks += [Caption(f"k = {env.k}" + (": the right answer is marked" if shown >= env.k else ": too early for an answer")),
                   Cards(latest + [Card("")] * (env.k - shown), columns=16)]
    return blocks


def repeat_first(env: Any, i: int, hidden: bool) -> list[Block]:
    blocks: list[Block] = [_count(env, i), Cards([suit(env.card[i])])]
    return blocks + ([Caption("the first card is always right:"), Cards([suit(env.deck[i, 0], lit=True)])] if hidden else [])


def autoencode(env: Any, i: int, hidden: bool) -> list[Block]:
    n, elapsed = env.num_cards, int(env.elapsed[i])
    mode, card = (int(x[i]) for x in env.observe())
    recited = max(0, elapsed - n + 1)
    words = f"watch: card {elapsed + 1} of {n}" if mode else f"recite: {min(recited, n)} of {n} done"
    blocks: list[Block] = [Caption(words), Cards([suit(card) if elapsed < n else Card("")])]
    if hidden:
        cards = [suit(c, lit=not mode and p == n - 1 - recited, faint=not mode and p > n - 1 - recited)
                 for p, c in enumerate(env.deck[i, :elapsed + 1].tolist())]
        blocks += [Caption("shown so far:" if mode else "the right answer is marked:"), Cards(cards + [Card("")] * (n - len(cards)))]
    return blocks


def count_recall(env: Any, i: int, hidden: bool) -> list[Block]:
    kinds = env.counts.shape[1]
    face = FACES[kinds]
    cards = Cards([face(env.card[i]), face(env.query[i], lit=True)])
    blocks: list[Block] = [_count(env, i), Caption("shown, and how many so far of:"), cards]
    if hidden:
        blocks.append(Caption("the right answers are, by class:"))
        counts = env.counts[i].tolist()
        blocks.append(Grid([[Square(face(c).face(False), WHITE, face(c).ink, lit=c == int(env.query[i])) for c in range(kinds)],
                            [Square(str(n), WHITE) for n in counts]], wide=4))
    return blocks


def higher_lower(env: Any, i: int, hidden: bool) -> list[Block]:
    blocks: list[Block] = [_count(env, i), Cards([rank(env.card[i])]), Caption("higher or lower? (aces are lowest)")]
    if hidden:
        dealt = env.deck[i, :int(env.elapsed[i]) + 1].tolist()
        left = [4 * env.num_decks - dealt.count(r) for r in range(13)]
        blocks += [Caption("left in the deck:"), Grid([[Square(r, WHITE) for r in RANKS], [Square(str(n), WHITE) for n in left]], wide=4)]
    return blocks


def concentration(env: Any, i: int, hidden: bool) -> list[Block]:
    face, down = FACES[env.face_down], env.face_down
    seen, deck, turned = env.observe()[i].tolist(), env.deck[i].tolist(), env.shown[i].tolist()
    cards = [face(s, lit=p in turned) if s != down else face(d, faint=True) if hidden else Card("")
             for p, (s, d) in enumerate(zip(seen, deck, strict=True))]
    found = int(env.found[i])
    return [Caption(f"step {int(env.elapsed[i])} of {env.episode_steps}: {found // 2} of {env.num_cards // 2} pairs found"), Cards(cards)]


# --- boards --------------------------------------------------------------------------------------------------------


def battleship(env: Any, i: int, hidden: bool) -> list[Block]:
    size, steps = env.board_size, int(env.elapsed[i])
    word = "no shot yet" if steps == 0 else "a hit!" if int(env.hit[i]) else "no hit"
    blocks: list[Block] = [Caption(f"shot {steps} of {env.episode_steps}"), Caption(word, strong=True)]
    if hidden:
        ship, shot = env.board[i, :size * size].tolist(), env.shot[i].tolist()
        looks = {(False, False): Square("·", WATER, (120, 160, 200)), (True, False): Square("■", WATER, SHIP),
                 (False, True): Square("o", WATER, WHITE), (True, True): Square("X", (226, 120, 100), (120, 20, 20))}
        blocks += [Caption(f"{int(env.hits[i])} of {env.needed} parts of ships hit"),
                   Grid([[looks[ship[r * size + c], shot[r * size + c]] for c in range(size)] for r in range(size)], labels=True)]
    return blocks


def minesweeper(env: Any, i: int, hidden: bool) -> list[Block]:
    size, steps = env.size, int(env.elapsed[i])
    word = "nothing uncovered" if steps == 0 else f"mines around: {int(env.hint[i])}"
    blocks: list[Block] = [Caption(f"step {steps} of {env.episode_steps}"), Caption(word, strong=True)]
    if hidden:
        mines, seen = env.mines[i], env.seen[i].tolist()
        hints = (env.near & mines).sum(1).tolist()
        covered, mine = Square("·", (200, 200, 196), FAINT), Square("*", (200, 200, 196), RED)
        cells = [Square(str(hint), (250, 250, 246), CART) if seen[c] else mine if mines[c] else covered for c, hint in enumerate(hints)]
        blocks.append(Grid([cells[r * size:(r + 1) * size] for r in range(size)], labels=True))
    return blocks


def multiarmed_bandit(env: Any, i: int, hidden: bool) -> list[Block]:
    steps = int(env.elapsed[i])
    word = "nothing pulled yet" if steps == 0 else "it paid" if int(env.paid[i]) else "it did not pay"
    blocks: list[Block] = [Caption(f"step {steps} of {env.episode_steps}, {env.payouts.shape[1]} arms"), Caption(word, strong=True)]
    return blocks + ([Caption("how often each arm pays:"), Bars(env.payouts[i].tolist())] if hidden else [])


# --- physics -------------------------------------------------------------------------------------------------------


def _numbers(names: Sequence[str], values: Any) -> Caption:
    return Caption("   ".join(f"{name} {float(value):+.3f}" for name, value in zip(names, values, strict=True)))


def cartpole(env: Any, i: int, hidden: bool) -> list[Block]:
    names = ("x", "angle") if env.shows == "position" or bool(env.started[i]) else ("speed", "spin")
    blocks: list[Block] = [Caption(f"step {int(env.elapsed[i])} of {env.episode_steps}"), _numbers(names, env.observe()[i])]
    if hidden:
        x, _, angle, _ = env.state[i].tolist()
        top = x + math.sin(angle), 0.2 + math.cos(angle)
        blocks.append(Plane([Stroke(-2.4, 0, 2.4, 0, TRACK, 0.02, "-"), Stroke(x - 0.22, 0.1, x + 0.22, 0.1, CART, 0.2, "#"),
                             Stroke(x, 0.2, *top, (196, 132, 72), 0.07, "/" if angle > 0.03 else "\\" if angle < -0.03 else "|"),
                             Spot(x, 0.2, 0.05, INK, "o")], (-2.6, -0.2), (2.6, 1.4), 320))
        blocks += [_numbers(("x", "speed"), env.state[i, :2]), _numbers(("angle", "spin"), env.state[i, 2:])]
    return blocks


def pendulum(env: Any, i: int, hidden: bool) -> list[Block]:
    blocks: list[Block] = [Caption(f"step {int(env.elapsed[i])} of {env.episode_steps}"), _numbers(("cos", "sin"), env.observe()[i])]
    if hidden:
        angle, speed = env.state[i].tolist()
        tip = -math.sin(angle), math.cos(angle)
        blocks.append(Plane([Stroke(0, 0, *tip, (196, 84, 72), 0.18, "*"), Spot(0, 0, 0.06, INK, "o")], (-1.3, -1.3), (1.3, 1.3), 220))
        blocks.append(_numbers(("speed",), [speed]))
    return blocks


def plane(env: Any, i: int, hidden: bool) -> list[Block]:
    """Wind and Point Robot."""
    x, y = env.seen[i].tolist()
    blocks: list[Block] = [Caption(f"step {int(env.elapsed[i])} of {env.episode_steps}"), _numbers(("x", "y"), (x, y))]
    if env.episodes > 1:
        ended = bool(env.done_mdp[i])
        blocks.append(Caption(f"try {min(int(env.elapsed[i]) // env.horizon + (not ended), env.episodes)} of {env.episodes}"
                              + (" has just ended" if ended else "")))
    goal = env.goal().expand(env.num_envs, 2)[i].tolist()
    reach = max(1.6, abs(x) + 0.2, abs(y) + 0.2, *(abs(g) + 0.2 for g in goal if hidden))
    unit = reach / 1.6
    shapes: list[Stroke | Spot] = [Stroke(-reach, 0, reach, 0, AXIS, mark="-"), Stroke(0, -reach, 0, reach, AXIS, mark="|")]
    if hidden:
        shapes.append(Spot(goal[0], goal[1], max(env.radius or 0.0, 0.04 * unit), LEAF, "G"))
        if type(env).__name__ == "Wind":
            w = env.task[i].tolist()
            blocks.append(_numbers(("wind x", "y"), w))
            shapes.append(Stroke(x, y, x + 4 * w[0], y + 4 * w[1], (150, 180, 214), 0.03 * unit, "~"))
        if env.radius is not None:
            blocks.append(Caption(f"the goal is {'reached' if bool(env.at_goal[i]) else 'not reached'}"))
    shapes.append(Spot(x, y, 0.05 * unit, CART, "@"))
    return [*blocks, Plane(shapes, (-reach, -reach), (reach, reach), 280)]


# --- rooms ---------------------------------------------------------------------------------------------------------


def rooms(env: Any, i: int, hidden: bool) -> list[Block]:
    """Visual Match and Key-to-Door."""
    from . import room_tables as tables

    names = ("look around", "pick apples", "the end")
    phase = int(env.phase[i])
    if not hidden:
        image = env.observe()[i].reshape(3, tables.VIEW, tables.VIEW).cpu().numpy()
        marks = {c: mark for mark, c in tables.COLOURS.items()} | dict(zip(tables.CODE, "RGB", strict=True)) | {tables.APPLE: "a"}
        return [Caption(f"step {int(env.elapsed[i])} of {env.episode_steps}"),
                Grid([[_floor(marks[pixel], pixel) for c in range(tables.VIEW) for pixel in [_rgb(image[:, r, c])]]
                      for r in range(tables.VIEW)], side=44, boxed=True)]
    board, looks, note = _room(env, i)
    player, apples = tuple(env.player[i].tolist()), env.apples[i].tolist()
    if phase == tables.DISTRACTOR:
        board = [list(line) for line in tables.ORCHARD_FLOOR]
        for there, (r, c) in zip(apples, tables.APPLE_CELLS, strict=True):
            board[r][c] = "a" if there else board[r][c]
    r, c = player
    if board[r][c] != "d":
        board[r][c] = "+"
    half = tables.VIEW // 2
    grid = [[_floor(*looks[mark], near=max(abs(y - r), abs(x - c)) <= half) for x, mark in enumerate(line)] for y, line in enumerate(board)]
    words = f"phase {phase + 1}, {names[phase]}: frame {int(env.frame[i])} of {env.frames[phase]}"
    return [Caption(words), Caption(note), Grid(grid, side=34, boxed=True)]


def _room(env: Any, i: int) -> tuple[list[list[str]], dict[str, tuple[str, Colour]], str]:
    """The board of the present situation, what its marks look like, and a line about what is carried on."""
    from . import room_tables as tables

    rules: tables.Rules
    looks: dict[str, tuple[str, Colour]] = {mark: (mark, c) for mark, c in tables.COLOURS.items()} | {"a": ("a", tables.APPLE)}
    number = int(env.situation[i]) % env.situations
    if hasattr(env, "has_key"):
        from .key_to_door import KeyToDoorRules, _tables

        rules = KeyToDoorRules()
        note = "has the key" if bool(env.has_key[i]) else "the door is open" if bool(env.success()[i]) else "has no key"
    else:
        from .visual_match import VisualMatchRules, _tables

        rules = VisualMatchRules()
        order = tables.ORDERS[int(env.order[i])]
        for mark, code in zip("bce", order, strict=True):
            looks[mark] = ("RGB"[code], tables.CODE[code])
        target = ("red", "green", "blue")[order[int(env.target[i])]]
        note = f"the colour is {target}" + (": found" if bool(env.success()[i]) else "")
    now = _tables().situations[number]
    board = tables.ORCHARD_FLOOR if now.phase == tables.DISTRACTOR else rules.board(now)
    return [list(line) for line in board], looks, note


def _rgb(values: Any) -> Colour:
    r, g, b = (int(v) for v in values)
    return r, g, b


def _floor(mark: str, ground: Colour, near: bool = True) -> Square:
    """A cell of a room. near: within sight; others are drawn faintly."""
    if not near:
        ground = _rgb(0.45 * np.array(ground) + 0.55 * np.array((128, 128, 124)))
    ink = ground if mark in " #" else INK if sum(ground) > 380 else WHITE
    return Square({"#": "##" if near else "::", "+": "@"}.get(mark, mark), ground, ink)


def tmaze(env: Any, i: int, hidden: bool) -> list[Block]:
    x, y, goal = int(env.x[i]), int(env.y[i]), int(env.goal[i])
    at, other = env.observe()[i].tolist()
    word = ("at the junction" if at and not other else "above the junction" if at and other > 0 else "below the junction" if at
            else f"the cue says {'up' if other > 0 else 'down'}" if other else "in the corridor")
    blocks: list[Block] = [Caption(f"step {int(env.elapsed[i])} of {env.episode_steps}"), Caption(word, strong=True)]
    if hidden:
        width = min(env.junction + 1, 41)
        first = min(max(0, x - 20), env.junction + 1 - width)
        last = first + width - 1
        wall, path = Square("##", (66, 68, 74), (66, 68, 74)), (230, 230, 224)
        columns = range(first, last + 1)
        rows = [[Square(" ", path) if up == 0 or column == env.junction else wall for column in columns] for up in (1, 0, -1)]
        if first == 0:
            rows[1][0] = Square("^" if goal > 0 else "v", (250, 214, 130))
        if last == env.junction:
            rows[1 - goal][-1] = Square("G", (150, 210, 160))
        rows[1 - y][x - first] = Square("@", (170, 196, 230))
        blocks.append(Grid(rows, side=max(14, min(34, 440 // width))))
    return blocks


SCENES: dict[str, Scene] = {
    "Autoencode": autoencode, "Battleship": battleship, "CartPole": cartpole, "Concentration": concentration, "CountRecall": count_recall,
    "HigherLower": higher_lower, "MineSweeper": minesweeper, "MultiarmedBandit": multiarmed_bandit, "Pendulum": pendulum,
    "PlaneEnv": plane, "RepeatFirst": repeat_first, "RepeatPrevious": repeat_previous, "Rooms": rooms, "TMaze": tmaze,
}
