"""Helpers on top of Pillow: centred text, symbols that its font lacks, smooth edges, and pictures below each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .blocks import PAPER, Colour

FINE = 4       # shapes are drawn this much larger and then reduced, for smooth edges
SHADES = 8     # steps of a smooth edge: few, so that the 128 or 256 colours of a GIF are enough


def sheet(width: int, height: int, colour: Colour = PAPER) -> Image.Image:
    return Image.new("RGB", (max(width, 1), max(height, 1)), colour)


@lru_cache(maxsize=32)
def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's built-in font. size: in pixels."""
    found = ImageFont.load_default(size)
    if not isinstance(found, ImageFont.FreeTypeFont):
        raise ImportError("pictures need Pillow with FreeType: pip install --force-reinstall pillow")
    return found


def text_width(words: str, size: int) -> int:
    return math.ceil(font(size).getlength(words))


def write(image: Image.Image, x: float, y: float, words: str, ink: Colour, size: int, anchor: str = "la") -> None:
    """Text at (x, y), the upper left corner unless `anchor` says otherwise (Pillow's anchors). What does not fit is cut off."""
    left, top, right, bottom = (int(edge) for edge in font(size).getbbox(words, anchor=anchor))
    mask = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
    ImageDraw.Draw(mask).text((-left, -top), words, 255, font(size), anchor)
    image.paste(ink, (round(x) + left, round(y) + top), _few_shades(mask))


def write_centred(image: Image.Image, x: float, y: float, words: str, ink: Colour, size: int) -> None:
    """Text or one of SYMBOLS whose visible part is centred at (x, y)."""
    if words in SYMBOLS:
        mask = symbol(words, size)
        image.paste(ink, (round(x - mask.width / 2), round(y - mask.height / 2)), mask)
        return
    left, top, right, bottom = font(size).getbbox(words)
    write(image, round(x - (left + right) / 2), round(y - (top + bottom) / 2), words, ink, size)


# --- symbols -------------------------------------------------------------------------------------------------------


def _heart(draw: ImageDraw.ImageDraw, side: int) -> None:
    draw.polygon(_heart_curve(side, 0.05, 0.94), 255)


def _spade(draw: ImageDraw.ImageDraw, side: int) -> None:
    draw.polygon(_heart_curve(side, 0.82, -0.80), 255)
    _stem(draw, side)


def _diamond(draw: ImageDraw.ImageDraw, side: int) -> None:
    draw.polygon([(0.5 * side, 0), (0.88 * side, 0.5 * side), (0.5 * side, side), (0.12 * side, 0.5 * side)], 255)


def _club(draw: ImageDraw.ImageDraw, side: int) -> None:
    for x, y in ((0.5, 0.25), (0.25, 0.6), (0.75, 0.6)):
        _disc(draw, side, x, y, 0.24)
    _disc(draw, side, 0.5, 0.5, 0.14)
    _stem(draw, side)


def _dot(draw: ImageDraw.ImageDraw, side: int) -> None:
    _disc(draw, side, 0.5, 0.5, 0.46)


def _box(draw: ImageDraw.ImageDraw, side: int) -> None:
    draw.rounded_rectangle((0.02 * side, 0.02 * side, 0.98 * side, 0.98 * side), 0.15 * side, 255)


def _star(draw: ImageDraw.ImageDraw, side: int) -> None:
    for angle in (30, 90, 150):
        x, y = 0.4 * math.cos(math.radians(angle)), 0.4 * math.sin(math.radians(angle))
        draw.line([(side * (0.5 - x), side * (0.5 - y)), (side * (0.5 + x), side * (0.5 + y))], 255, round(0.16 * side))


SYMBOLS = {"♥": _heart, "♠": _spade, "♦": _diamond, "♣": _club, "●": _dot, "■": _box, "*": _star}


@lru_cache(maxsize=64)
def symbol(char: str, side: int) -> Image.Image:
    """The mask [side, side] of one of SYMBOLS."""
    mask = Image.new("L", (FINE * side, FINE * side))
    SYMBOLS[char](ImageDraw.Draw(mask), FINE * side)
    return _few_shades(mask.reduce(FINE))


def _heart_curve(side: int, top: float, height: float) -> list[tuple[float, float]]:
    """Points of a heart across the whole width, from `top` to `top + height`; a negative height turns it over."""
    points = []
    for t in np.linspace(0, 2 * math.pi, 72, endpoint=False):
        x = math.sin(t) ** 3                                                                            # -1 .. 1
        y = (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 17        # -1 .. 0.7
        points.append((side * (0.5 + 0.49 * x), side * (top + height * (0.7 - y) / 1.7)))
    return points


def _disc(draw: ImageDraw.ImageDraw, side: int, x: float, y: float, radius: float) -> None:
    draw.ellipse((side * (x - radius), side * (y - radius), side * (x + radius), side * (y + radius)), 255)


def _stem(draw: ImageDraw.ImageDraw, side: int) -> None:
    draw.polygon([(0.5 * side, 0.45 * side), (0.7 * side, 0.99 * side), (0.3 * side, 0.99 * side)], 255)


# --- shapes --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def rounded(width: int, height: int, radius: int) -> Image.Image:
    """The mask of a rectangle with round corners."""
    mask = Image.new("L", (FINE * width, FINE * height))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, FINE * width - 1, FINE * height - 1), FINE * radius, 255)
    return _few_shades(mask.reduce(FINE))


def frame(image: Image.Image, x: int, y: int, width: int, height: int, colour: Colour, thick: int = 1) -> None:
    ImageDraw.Draw(image).rectangle((x, y, x + width - 1, y + height - 1), outline=colour, width=thick)


def stack(parts: Sequence[Image.Image], min_width: int, gap: int = 8, margin: int = 14) -> np.ndarray:
    """Pictures below each other, [H, W, 3] uint8; parts wider than `min_width` are cut off. Sides are multiples of 16: videos need it."""
    width = min_width + 2 * margin
    height = sum(part.height for part in parts) + gap * (len(parts) - 1) + 2 * margin
    out = sheet(-(-width // 16) * 16, -(-height // 16) * 16)
    y = margin
    for part in parts:
        out.paste(part.crop((0, 0, min(part.width, out.width - margin), part.height)), (margin, y))
        y += part.height + gap
    return np.array(out)


def _few_shades(mask: Image.Image) -> Image.Image:
    return mask.point([round(round(value / 255 * SHADES) / SHADES * 255) for value in range(256)])
