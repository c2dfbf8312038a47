"""What an env looks like to people: `text(env)` for a terminal, `picture(env)` for a file.

Every task has a scene in render_scenes.py, a list of blocks to be drawn one below the other; other envs show their observation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import render_canvas, render_scenes
from .render_blocks import Block, Caption

WIDTH = 452      # pixels for captions: they say different things from step to step


def text(env: Any, i: int = 0, *, hidden: bool = True, colour: bool = False) -> str:
    """Env i as lines of text. hidden: also what the agent cannot see. colour: with the codes that colour a terminal."""
    return "\n".join(line if colour else line.rstrip() for block in _scene(env, i, hidden) for line in block.lines(colour))


def picture(env: Any, i: int = 0, *, hidden: bool = True) -> np.ndarray:
    """Env i as an RGB picture [H, W, 3] uint8, of the same size throughout an episode. hidden: also what the agent cannot see."""
    blocks = _scene(env, i, hidden)
    parts = [block.pixels() for block in blocks]
    widths = [part.shape[1] for part, block in zip(parts, blocks, strict=True) if not isinstance(block, Caption)]
    return render_canvas.stack(parts, [WIDTH, *widths])


def _scene(env: Any, i: int, hidden: bool) -> list[Block]:
    env = env.unwrapped
    if not 0 <= i < env.num_envs:
        raise ValueError(f"i must be in 0 .. {env.num_envs - 1}, got {i}")
    return render_scenes.scene(env, i, hidden)
