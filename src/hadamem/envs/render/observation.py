"""Observations as text, and the scene of envs that define none: their observation."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from .blocks import Block, Caption, Grid, Square

SHADES = " .:-=+*#%@"      # dark to bright, for images as text
LARGEST_IMAGE = 96         # pixels along a side
LINE = 37                  # characters


def row(tree: Any, i: int) -> Any:
    """Entry i of each leaf, as numpy arrays."""
    if isinstance(tree, dict):
        return {key: row(value, i) for key, value in tree.items()}
    return tuple(row(value, i) for value in tree) if isinstance(tree, tuple) else tree[i].cpu().numpy()


def format_value(value: Any) -> str:
    """An observation or action as a short text; large arrays by shape, dtype and range."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {format_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(format_value(inner) for inner in value) + ")"
    value = np.asarray(value)
    if value.size > 160:
        return f"{' x '.join(map(str, value.shape))} {value.dtype}, from {value.min()} to {value.max()}"
    return np.array2string(value, max_line_width=100, precision=3, suppress_small=True, separator=" ")


def observation_scene(env: Any, i: int) -> list[Block]:
    """The observation of env i, with images as grids of pixels."""
    seen = row(env.observe(), i)
    blocks: list[Block] = [Caption(f"step {int(env.elapsed[i])}")]
    parts = seen if isinstance(seen, dict) else dict(enumerate(seen)) if isinstance(seen, tuple) else {"observation": seen}
    for name, part in parts.items():
        grid = _image_grid(part)
        if grid is not None:
            blocks += [Caption(f"{name}:"), grid]
        else:
            blocks += [Caption(line) for line in textwrap.wrap(f"{name}: {format_value(part)}", LINE)]
    return blocks


def _image_grid(part: Any) -> Grid | None:
    if isinstance(part, (dict, tuple)) or part.dtype != np.uint8 or part.ndim != 3 or max(part.shape) > LARGEST_IMAGE:
        return None
    image = part if part.shape[2] in (1, 3) else part.transpose(1, 2, 0) if part.shape[0] in (1, 3) else None
    if image is None:
        return None
    image = np.broadcast_to(image, (*image.shape[:2], 3))
    return Grid([[_pixel(*map(int, pixel)) for pixel in line] for line in image], ruled=False, side=max(2, 240 // max(image.shape[:2])))


def _pixel(red: int, green: int, blue: int) -> Square:
    colour = red, green, blue
    return Square(SHADES[int(np.mean(colour) * 9.99 / 255)] * 2, colour, colour)
