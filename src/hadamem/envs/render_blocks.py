"""Blocks that a scene is made of: each knows how to be text and how to be a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import render_canvas as canvas
from .render_canvas import BLACK, FAINT, GOLD, INK, PAPER, WHITE, Colour

RESET = "\x1b[0m"


class Block:
    """A part of a scene."""

    def lines(self, colour: bool) -> list[str]:
        raise NotImplementedError

    def pixels(self) -> np.ndarray:
        """[h, w, 3] uint8."""
        raise NotImplementedError


@dataclass
class Caption(Block):
    """A line of text; strong ones are larger."""

    words: str
    strong: bool = False

    def lines(self, colour: bool) -> list[str]:
        return [self.words]

    def pixels(self) -> np.ndarray:
        scale = 3 if self.strong else 2
        width, height = canvas.text_size(self.words, scale)
        out = canvas.blank(max(width, 1), height)
        canvas.write(out, 0, 0, self.words, INK if self.strong else (104, 106, 110), scale)
        return out


class Card(NamedTuple):
    """label: what its face shows; "" for a card that lies face down. lit: framed. faint: to be seen through its back.

    plain: what to write where there are no colours, if it is not the label.
    """

    label: str
    ink: Colour = BLACK
    lit: bool = False
    faint: bool = False
    plain: str = ""

    def face(self, colour: bool) -> str:
        return self.label if colour else self.plain or self.label


@dataclass
class Cards(Block):
    """Cards in rows."""

    cards: Sequence[Card]
    columns: int = 13

    def lines(self, colour: bool) -> list[str]:
        if len(self.cards) <= 4:
            return self._large(colour)
        shown = [self._small(card, colour) for card in self.cards]
        return ["".join(shown[start:start + self.columns]) for start in range(0, len(shown), self.columns)]

    def _large(self, colour: bool) -> list[str]:
        rows = ["", "", ""]
        for card in self.cards:
            left, right = ("║", "║") if card.lit else ("│", "│")
            face = "░░░" if card.label == "" else card.face(colour).center(3)
            rows[0] += ("╔═══╗ " if card.lit else "┌───┐ ")
            rows[1] += f"{left}{_inked(face, card.ink, colour and card.label != '')}{right} "
            rows[2] += ("╚═══╝ " if card.lit else "└───┘ ")
        return rows

    def _small(self, card: Card, colour: bool) -> str:
        face = _inked(card.face(colour).rjust(2), card.ink, colour) if card.label else " ░"
        left, right = ("[", "]") if card.lit else ("(", ")") if card.faint else (" ", " ")
        return f"{left}{face}{right}"

    def pixels(self) -> np.ndarray:
        scale = 3 if len(self.cards) <= 4 else 2
        width, height, gap = 20 * scale, 26 * scale, 2 * scale
        rows = -(-len(self.cards) // self.columns)
        across = min(len(self.cards), self.columns)
        out = canvas.blank(across * (width + gap) + gap, rows * (height + gap) + gap)
        for number, card in enumerate(self.cards):
            x, y = gap + number % self.columns * (width + gap), gap + number // self.columns * (height + gap)
            self._draw(out, card, x, y, width, height, scale)
        return out

    def _draw(self, out: np.ndarray, card: Card, x: int, y: int, width: int, height: int, scale: int) -> None:
        if card.lit:
            canvas.fill(out, x - scale, y - scale, width + 2 * scale, height + 2 * scale, GOLD)
        back = (120, 146, 190) if card.faint else (76, 104, 156)
        canvas.fill(out, x, y, width, height, WHITE if card.label and not card.faint else back)
        if card.label == "" or card.faint:
            down, right = np.mgrid[:height, :width]
            out[y:y + height, x:x + width][(down + right) % (4 * scale) == 0] = _mixed(back, (150, 166, 200))      # a pattern
        canvas.frame(out, x, y, width, height, (60, 62, 70))
        if card.label:
            size = scale + 1 if len(card.label) == 1 else scale
            wide, high = canvas.text_size(card.label, size)
            ink = _mixed(card.ink, _mixed(card.ink, back)) if card.faint else card.ink
            canvas.write(out, x + (width - wide) // 2, y + (height - high) // 2, card.label, ink, size)


class Square(NamedTuple):
    """A cell of a grid. lit: framed."""

    mark: str = " "
    ground: Colour = PAPER
    ink: Colour = INK
    lit: bool = False


@dataclass
class Grid(Block):
    """A board of cells, row by row."""

    rows: Sequence[Sequence[Square]]
    ruled: bool = True        # lines between the cells
    side: int = 30            # pixels of a cell
    labels: bool = False      # number rows and columns
    boxed: bool = False       # a frame around it, as text
    wide: int = 2             # characters of a cell

    def lines(self, colour: bool) -> list[str]:
        out = []
        if self.labels:
            out.append("   " + "".join(str(c).rjust(self.wide) for c in range(len(self.rows[0]))))
        for r, row in enumerate(self.rows):
            head = f"{r:>2} " if self.labels else ""
            out.append(head + "".join(self._cell(square, colour) for square in row))
        if not self.boxed:
            return out
        edge = "─" * (self.wide * len(self.rows[0]))
        return [f"┌{edge}┐", *(f"│{line}│" for line in out), f"└{edge}┘"]

    def _cell(self, square: Square, colour: bool) -> str:
        mark = square.mark.rjust(self.wide)[:self.wide]
        if not colour:
            return mark
        ground, ink = ";".join(map(str, square.ground)), ";".join(map(str, square.ink))
        return f"\x1b[48;2;{ground}m\x1b[38;2;{ink}m{mark}{RESET}"

    def pixels(self) -> np.ndarray:
        side, head = self.side, 18 if self.labels else 0
        height, width = len(self.rows), len(self.rows[0])
        out = canvas.blank(width * side + head, height * side + head)
        for r, row in enumerate(self.rows):
            for c, square in enumerate(row):
                x, y = head + c * side, head + r * side
                canvas.fill(out, x, y, side, side, square.ground)
                if self.ruled:
                    canvas.frame(out, x, y, side, side, _darker(square.ground))
                if square.mark.strip():
                    scale = max(1, side // 14)
                    wide, high = canvas.text_size(square.mark.strip(), scale)
                    canvas.write(out, x + (side - wide) // 2, y + (side - high) // 2, square.mark.strip(), square.ink, scale)
        for r, row in enumerate(self.rows):
            for c, square in enumerate(row):
                if square.lit:
                    canvas.frame(out, head + c * side, head + r * side, side, side, GOLD, 2)
        if self.labels:
            for number in range(max(height, width)):
                wide, high = canvas.text_size(str(number), 1)
                middle = head + number * side + side // 2
                if number < width:
                    canvas.write(out, middle - wide // 2, head - high - 4, str(number), FAINT, 1)
                if number < height:
                    canvas.write(out, head - wide - 4, middle - high // 2, str(number), FAINT, 1)
        return out


@dataclass
class Bars(Block):
    """A bar for each value in 0 .. 1."""

    values: Sequence[float]

    def lines(self, colour: bool) -> list[str]:
        return [f"{i:>3} {'█' * round(24 * v):<24} {v:.2f}" for i, v in enumerate(self.values)]

    def pixels(self) -> np.ndarray:
        out = canvas.blank(len(self.values) * 24, 140)
        best = int(np.argmax(self.values))
        for i, value in enumerate(self.values):
            high = round(120 * value)
            canvas.fill(out, i * 24 + 3, 120 - high, 18, high, GOLD if i == best else (96, 132, 180))
            wide, _ = canvas.text_size(str(i), 1)
            canvas.write(out, i * 24 + 12 - wide // 2, 127, str(i), INK, 1)
        return out


class Stroke(NamedTuple):
    """A line from (x0, y0) to (x1, y1), y upwards; thick in the same units, at least a pixel."""

    x0: float
    y0: float
    x1: float
    y1: float
    ink: Colour = INK
    thick: float = 0.0
    mark: str = "*"


class Spot(NamedTuple):
    """A disc around (x, y), y upwards."""

    x: float
    y: float
    radius: float
    ink: Colour = INK
    mark: str = "o"


@dataclass
class Plane(Block):
    """Lines and discs in the part of the plane from `low` to `high`, later ones above earlier ones."""

    shapes: Sequence[Stroke | Spot]
    low: tuple[float, float]
    high: tuple[float, float]
    width: int = 300

    def lines(self, colour: bool) -> list[str]:
        columns = 49 if self.high[0] - self.low[0] > 2 * (self.high[1] - self.low[1]) else 33
        rows = max(5, round(columns / 2 * (self.high[1] - self.low[1]) / (self.high[0] - self.low[0])))
        cells = [[" "] * columns for _ in range(rows)]

        def put(x: float, y: float, mark: str) -> None:
            c = (x - self.low[0]) / (self.high[0] - self.low[0]) * (columns - 1)
            r = (self.high[1] - y) / (self.high[1] - self.low[1]) * (rows - 1)
            if -0.5 <= c < columns - 0.5 and -0.5 <= r < rows - 0.5:
                cells[round(r)][round(c)] = mark

        for shape in self.shapes:
            if isinstance(shape, Spot):
                put(shape.x, shape.y, shape.mark)
            else:
                for t in np.linspace(0, 1, 2 * columns):
                    put(shape.x0 + t * (shape.x1 - shape.x0), shape.y0 + t * (shape.y1 - shape.y0), shape.mark)
        edge = "+" + "-" * columns + "+"
        return [edge, *("|" + "".join(row) + "|" for row in cells), edge]

    def pixels(self) -> np.ndarray:
        fine = 3
        unit = self.width / (self.high[0] - self.low[0])
        out = canvas.blank(fine * self.width, fine * max(1, round(unit * (self.high[1] - self.low[1]))), WHITE)
        unit *= fine
        for shape in self.shapes:
            if isinstance(shape, Spot):
                canvas.disc(out, *self._at(shape.x, shape.y, unit), max(shape.radius * unit, 1.2 * fine), shape.ink)
            else:
                ends = *self._at(shape.x0, shape.y0, unit), *self._at(shape.x1, shape.y1, unit)
                canvas.line(out, *ends, shape.ink, max(shape.thick * unit, 1.2 * fine))
        out = canvas.shrink(out, fine)
        canvas.frame(out, 0, 0, out.shape[1], out.shape[0], FAINT)
        return out

    def _at(self, x: float, y: float, unit: float) -> tuple[float, float]:
        return (x - self.low[0]) * unit, (self.high[1] - y) * unit


def _inked(words: str, ink: Colour, colour: bool) -> str:
    return f"\x1b[48;2;250;250;250m\x1b[38;2;{ink[0]};{ink[1]};{ink[2]}m{words}{RESET}" if colour else words


def _mixed(a: Colour, b: Colour) -> Colour:
    return (a[0] + b[0]) // 2, (a[1] + b[1]) // 2, (a[2] + b[2]) // 2


def _darker(ground: Colour) -> Colour:
    r, g, b = (int(0.86 * value) for value in ground)
    return r, g, b
