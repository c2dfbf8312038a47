"""Draws blocks with Pillow: one function for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import numpy as np
from PIL import Image, ImageDraw

from . import canvas
from .blocks import FAINT, GOLD, INK, WHITE, Bars, Block, Caption, Card, Cards, Colour, Grid, Plane, Spot

WIDTH = 452              # pixels for captions: a fixed width, as their text changes from step to step
GREY: Colour = (104, 106, 110)
NORMAL, STRONG, SMALL = 19, 28, 12      # font sizes, in pixels
STRIP = 34               # height of a caption below a picture


def draw_scene(blocks: Sequence[Block]) -> np.ndarray:
    """The blocks below each other, [H, W, 3] uint8."""
    parts = [draw(block) for block in blocks]
    widths = [part.width for part, block in zip(parts, blocks, strict=True) if not isinstance(block, Caption)]
    return canvas.stack(parts, max([WIDTH, *widths]))


def add_caption(picture: np.ndarray, words: str, min_width: int) -> np.ndarray:
    """The picture [H, W, 3] with a line of text below it, smaller where it would not fit."""
    width = max(picture.shape[1], min_width)
    strip = canvas.sheet(width, STRIP)
    size = next((size for size in (NORMAL, 15) if canvas.text_width(words, size) + 28 <= width), SMALL)
    canvas.write(strip, 14, STRIP / 2, words, INK, size, "lm")
    return canvas.stack([Image.fromarray(np.ascontiguousarray(picture)), strip], width, gap=0, margin=0)


@singledispatch
def draw(block: Block) -> Image.Image:
    """A block as a picture. For a block class of your own: `@draw.register`."""
    raise TypeError(f"cannot draw a {type(block).__name__}; register a function for it: @hadamem.envs.render.pictures.draw.register")


@draw.register
def _(block: Caption) -> Image.Image:
    size, ink = (STRONG, INK) if block.strong else (NORMAL, GREY)
    out = canvas.sheet(canvas.text_width(block.words, size), round(1.05 * size))
    canvas.write(out, 0, round(0.8 * size), block.words, ink, size, "ls")
    return out


@draw.register
def _(block: Cards) -> Image.Image:
    scale = 3 if block.large else 2
    width, height, gap = 20 * scale, 26 * scale, 2 * scale
    rows, across = -(-len(block.cards) // block.columns), min(len(block.cards), block.columns)
    out = canvas.sheet(across * (width + gap) + gap, rows * (height + gap) + gap)
    for number, card in enumerate(block.cards):
        row, column = divmod(number, block.columns)
        x, y = gap + column * (width + gap), gap + row * (height + gap)
        if card.lit:
            out.paste(GOLD, (x - scale, y - scale), canvas.rounded(width + 2 * scale, height + 2 * scale, 3 * scale))
        out.paste(_card(card, width, height, scale), (x, y), canvas.rounded(width, height, 2 * scale))
    return out


def _card(card: Card, width: int, height: int, scale: int) -> Image.Image:
    back = (120, 146, 190) if card.faint else (76, 104, 156)
    out = canvas.sheet(width, height, (60, 62, 70))
    inner = canvas.sheet(width - 2, height - 2, back)
    if card.label and not card.faint:
        inner.paste(WHITE, (0, 0, width, height))
    else:
        pen = ImageDraw.Draw(inner)
        for x in range(-height, width, 4 * scale):
            pen.line((x, height, x + height, 0), _mixed(back, (150, 166, 200)))
    out.paste(inner, (1, 1), canvas.rounded(width - 2, height - 2, 2 * scale - 1))
    if card.label:
        ink = _mixed(card.ink, _mixed(card.ink, back)) if card.faint else card.ink
        canvas.write_centred(out, width / 2, height / 2, card.label, ink, 13 * scale)
    return out


@draw.register
def _(block: Grid) -> Image.Image:
    side, head = block.side, 18 if block.labels else 0
    height, width = len(block.rows), len(block.rows[0])
    out = canvas.sheet(width * side + head, height * side + head)
    pen = ImageDraw.Draw(out)
    cells = [(head + c * side, head + r * side, square) for r, row in enumerate(block.rows) for c, square in enumerate(row)]
    for x, y, square in cells:
        pen.rectangle((x, y, x + side - 1, y + side - 1), square.ground, _darker(square.ground) if block.ruled else None)
        if square.mark.strip() and square.ink != square.ground:
            canvas.write_centred(out, x + side / 2, y + side / 2, square.mark.strip(), square.ink, max(8, round(0.62 * side)))
    for x, y, square in cells:
        if square.lit:
            canvas.frame(out, x, y, side, side, GOLD, 2)
    if block.labels:
        for number in range(max(height, width)):
            middle = head + number * side + side / 2
            if number < width:
                canvas.write_centred(out, middle, head / 2, str(number), FAINT, SMALL)
            if number < height:
                canvas.write_centred(out, head / 2, middle, str(number), FAINT, SMALL)
    return out


@draw.register
def _(block: Bars) -> Image.Image:
    out = canvas.sheet(len(block.values) * 24, 140)
    pen = ImageDraw.Draw(out)
    best = int(np.argmax(block.values))
    for i, value in enumerate(block.values):
        high = round(120 * value)
        if high > 0:
            pen.rectangle((i * 24 + 3, 120 - high, i * 24 + 20, 119), GOLD if i == best else (96, 132, 180))
        canvas.write_centred(out, i * 24 + 12, 130, str(i), INK, SMALL)
    return out


@draw.register
def _(block: Plane) -> Image.Image:
    fine = canvas.FINE
    unit = block.width / (block.high[0] - block.low[0])
    height = max(1, round(unit * (block.high[1] - block.low[1])))
    out = canvas.sheet(fine * block.width, fine * height, WHITE)
    pen, unit, thinnest = ImageDraw.Draw(out), unit * fine, 1.2 * fine

    def at(x: float, y: float) -> tuple[float, float]:
        return (x - block.low[0]) * unit, (block.high[1] - y) * unit

    def disc(x: float, y: float, radius: float, ink: Colour) -> None:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), ink)

    for shape in block.shapes:
        if isinstance(shape, Spot):
            disc(*at(shape.x, shape.y), max(shape.radius * unit, thinnest), shape.ink)
        else:
            ends, thick = (at(shape.x0, shape.y0), at(shape.x1, shape.y1)), max(shape.thick * unit, thinnest)
            pen.line(ends, shape.ink, round(thick))
            for end in ends:
                disc(*end, thick / 2, shape.ink)
    out = out.reduce(fine)
    canvas.frame(out, 0, 0, out.width, out.height, FAINT)
    return out


def _mixed(a: Colour, b: Colour) -> Colour:
    return (a[0] + b[0]) // 2, (a[1] + b[1]) // 2, (a[2] + b[2]) // 2


def _darker(ground: Colour) -> Colour:
    r, g, b = (int(0.86 * value) for value in ground)
    return r, g, b
