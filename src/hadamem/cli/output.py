"""Printing for all commands."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(rows: Sequence[Sequence[str]], *, indent: int = 0, width: int = 0) -> None:
    """Print rows of cells in aligned columns; the first column is at least `width` wide."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = max(widths[0], width)
    for row in rows:
        cells = "  ".join(f"{cell:<{size}}" for cell, size in zip(row, widths, strict=True))
        print(f"{' ' * indent}{cells}".rstrip())
