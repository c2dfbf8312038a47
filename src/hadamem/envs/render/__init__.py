"""What a person sees of an env: `text(env)` for a terminal, `picture(env)` for an image file.

An env's `scene` is a list of blocks (`blocks.py`), shown one below the other. Text needs no extra package; pictures need Pillow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .blocks import PAPER, Block
from .observation import format_value, row

__all__ = ["PAPER", "Block", "caption", "format_value", "picture", "row", "text"]


def text(env: Any, i: int = 0, *, hidden: bool = True, colour: bool = False) -> str:
    """Env i as lines of text. hidden: include what the agent cannot see. colour: add ANSI colour codes."""
    return "\n".join(line if colour else line.rstrip() for block in _scene(env, i, hidden) for line in block.lines(colour))


def picture(env: Any, i: int = 0, *, hidden: bool = True) -> np.ndarray:
    """Env i as an RGB picture [H, W, 3] uint8, of the same size throughout an episode. hidden: include what the agent cannot see."""
    return _pictures().draw_scene(_scene(env, i, hidden))


def caption(picture: np.ndarray, words: str, min_width: int = 240) -> np.ndarray:
    """The picture [H, W, 3] with a line of text below it; sides are multiples of 16, and text that is too long is cut off."""
    return _pictures().add_caption(picture, words, min_width)


def _scene(env: Any, i: int, hidden: bool) -> list[Block]:
    env = env.unwrapped
    if not 0 <= i < env.num_envs:
        raise ValueError(f"i must be in 0 .. {env.num_envs - 1}, got {i}")
    return env.scene(i, hidden)


def _pictures() -> Any:
    """The drawing code, imported on first use: it needs Pillow."""
    try:
        from . import pictures
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "PIL":
            raise
        raise ImportError("pictures need Pillow: pip install 'hadamem[plot]'") from error
    return pictures
