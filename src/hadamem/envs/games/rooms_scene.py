"""The scene of the three-phase games: the 5 x 5 cells that the agent sees, or the whole room with the agent's view highlighted.

`env` is a `Rooms` env, which imports this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..render.blocks import INK, WHITE, Block, Caption, Colour, Grid, Square
from .room_tables import APPLE, APPLE_CELLS, CODE, COLOURS, DISTRACTOR, ORCHARD_FLOOR, VIEW

PHASES = ("look around", "pick apples", "the end")
LOOKS: dict[str, tuple[str, Colour]] = {mark: (mark, colour) for mark, colour in COLOURS.items()} | {"a": ("a", APPLE)}
MARKS = {colour: mark for mark, colour in COLOURS.items()} | dict(zip(CODE, "RGB", strict=True)) | {APPLE: "a"}


def agent_view(env: Any, i: int) -> list[Block]:
    """What the agent sees."""
    image = env.observe()[i].reshape(3, VIEW, VIEW).cpu().numpy()
    pixels = [[_rgb(image[:, r, c]) for c in range(VIEW)] for r in range(VIEW)]
    return [Caption(f"step {int(env.elapsed[i])} of {env.episode_steps}"),
            Grid([[_cell(MARKS[pixel], pixel) for pixel in line] for line in pixels], side=44, boxed=True)]


def whole_room(env: Any, i: int) -> list[Block]:
    """The room of the current phase, with what is out of the agent's sight drawn faintly."""
    phase, (r, c) = int(env.phase[i]), env.player[i].tolist()
    board = _board(env, i)
    if board[r][c] != "d":
        board[r][c] = "+"
    looks: dict[str, tuple[str, Colour]] = {**LOOKS, **env.looks(i)}
    near = VIEW // 2
    grid = [[_cell(*looks[mark], near=max(abs(y - r), abs(x - c)) <= near) for x, mark in enumerate(line)] for y, line in enumerate(board)]
    words = f"phase {phase + 1}, {PHASES[phase]}: frame {int(env.frame[i])} of {env.frames[phase]}"
    return [Caption(words), Caption(env.note(i)), Grid(grid, side=34, boxed=True)]


def _board(env: Any, i: int) -> list[list[str]]:
    """The marks of the current room, without the player."""
    now = env.situation_of(i)
    if now.phase != DISTRACTOR:
        return [list(line) for line in env.rules.board(now)]
    board = [list(line) for line in ORCHARD_FLOOR]
    for there, (r, c) in zip(env.apples[i].tolist(), APPLE_CELLS, strict=True):
        if there:
            board[r][c] = "a"
    return board


def _rgb(values: Any) -> Colour:
    r, g, b = (int(v) for v in values)
    return r, g, b


def _cell(mark: str, ground: Colour, near: bool = True) -> Square:
    """A cell of a room. near: within the agent's sight; others are drawn faintly."""
    if not near:
        ground = _rgb(0.45 * np.array(ground) + 0.55 * np.array((128, 128, 124)))
    ink = ground if mark in " #" else INK if sum(ground) > 380 else WHITE
    return Square({"#": "##" if near else "::", "+": "@"}.get(mark, mark), ground, ink)
