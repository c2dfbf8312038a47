"""The blocks that a scene is made of: plain data, and how each looks as text. `pictures.py` draws them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Colour = tuple[int, int, int]

PAPER: Colour = (246, 244, 238)
INK: Colour = (52, 54, 60)
FAINT: Colour = (164, 164, 160)
RED: Colour = (196, 40, 40)
BLACK: Colour = (32, 34, 40)
BLUE: Colour = (70, 104, 160)
GOLD: Colour = (240, 180, 40)
WHITE: Colour = (255, 255, 255)

RESET = "\x1b[0m"


class Block:
    """A part of a scene."""

    def lines(self, colour: bool) -> list[str]:
        """The block as text. colour: with ANSI colour codes."""
        raise NotImplementedError


@dataclass
class Caption(Block):
    """A line of text; strong ones are larger."""

    words: str
    strong: bool = False

    def lines(self, colour: bool) -> list[str]:
        return [self.words]


def numbers(names: Sequence[str], values: Iterable[Any]) -> Caption:
    """A caption such as "x +0.100   y -0.250"."""
    return Caption("   ".join(f"{name} {float(value):+.3f}" for name, value in zip(names, values, strict=True)))


class Card(NamedTuple):
    """A playing card. label: its face, "" for a card that lies face down. lit: framed. faint: the face shows through the back.

    plain: the label for text without colours, where it differs.
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
    """Cards in rows. Up to four are drawn large."""

    cards: Sequence[Card]
    columns: int = 13

    @property
    def large(self) -> bool:
        return len(self.cards) <= 4

    def lines(self, colour: bool) -> list[str]:
        if self.large:
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
    ruled: bool = True        # lines between the cells, in pictures
    side: int = 30            # pixels of a cell
    labels: bool = False      # number rows and columns
    boxed: bool = False       # a frame around the board, in text
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


@dataclass
class Bars(Block):
    """A bar for each value in 0 .. 1."""

    values: Sequence[float]

    def lines(self, colour: bool) -> list[str]:
        return [f"{i:>3} {'█' * round(24 * v):<24} {v:.2f}" for i, v in enumerate(self.values)]


class Stroke(NamedTuple):
    """A line from (x0, y0) to (x1, y1), y upwards. thick: in the same units; at least about a pixel is drawn."""

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
    """Lines and discs in the rectangle from `low` to `high`; later shapes cover earlier ones."""

    shapes: Sequence[Stroke | Spot]
    low: tuple[float, float]
    high: tuple[float, float]
    width: int = 300          # pixels

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


def _inked(words: str, ink: Colour, colour: bool) -> str:
    return f"\x1b[48;2;250;250;250m\x1b[38;2;{ink[0]};{ink[1]};{ink[2]}m{words}{RESET}" if colour else words
