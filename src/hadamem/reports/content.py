"""What a report says, as plain data: text, tables, figures. Other files of this folder turn it into pages, pictures, tables and JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

KINDS = ("line", "bar", "points")


@dataclass(frozen=True)
class Cell:
    """One number of a table, with everything that is known about it.

    `value` None: there is no result, and `note` says why ("missing", "2 of 3 seeds", "failed: ...").
    """

    value: float | None
    std: float | None = None             # over seeds
    low: float | None = None             # 95 % interval
    high: float | None = None
    seeds: int | None = None
    paper: float | None = None           # the paper's number for the same cell
    paper_std: float | None = None
    note: str = ""
    digits: int = 1                      # after the decimal point

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.value is None or self.paper is None else self.value - self.paper

    @property
    def agrees(self) -> bool | None:
        """Whether the paper's number lies within our interval; None where one of them is missing."""
        if self.paper is None or self.low is None or self.high is None:
            return None
        return self.low <= self.paper <= self.high


@dataclass(frozen=True)
class Table:
    """`columns` are the headings. A row has one entry each: text, a number, a Cell, or None for empty."""

    name: str                                                    # of its files: letters, digits and -
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | int | Cell | None]]
    note: str = ""                                               # below the table

    def __post_init__(self) -> None:
        _check_name(self.name)
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name!r} has {len(self.columns)} columns, got a row of {len(row)}: {row!r}")


@dataclass(frozen=True)
class Series:
    """One line, set of bars or set of points. low and high: a band around it, or error bars."""

    label: str
    x: Sequence[Any]                     # numbers; for bars: categories
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False                 # a reference, such as the paper's number or a theory

    def __post_init__(self) -> None:
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise ValueError(f"series {self.label!r}: {name} has {len(values)} values for {len(self.x)} of x")


@dataclass(frozen=True)
class Figure:
    """Lines, bars or points over labelled axes. Figures of one section with the same `group` are shown one at a time, chosen by title."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: str = "line"
    x_log: bool = False
    y_log: bool = False
    y_range: tuple[float, float] | None = None
    note: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.kind not in KINDS:
            raise ValueError(f"figure {self.name!r}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")


@dataclass(frozen=True)
class HeatMap:
    """A matrix as colours: rows go down, columns to the right."""

    name: str
    title: str
    x_label: str
    y_label: str
    values: np.ndarray                   # [rows, columns]
    value_label: str = ""
    x_ticks: Sequence[str] | None = None
    y_ticks: Sequence[str] | None = None
    centre: float | None = None          # the middle of a diverging colour map; None: from the smallest to the largest value
    note: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)
        shape = np.shape(self.values)
        if len(shape) != 2:
            raise ValueError(f"heat map {self.name!r}: values must be a matrix [rows, columns], got shape {list(shape)}")
        for name, ticks, count in (("y_ticks", self.y_ticks, shape[0]), ("x_ticks", self.x_ticks, shape[1])):
            if ticks is not None and len(ticks) != count:
                raise ValueError(f"heat map {self.name!r}: {name} has {len(ticks)} texts for {count} of them in a matrix of {list(shape)}")


Item = Table | Figure | HeatMap


@dataclass(frozen=True)
class Section:
    """`text`: paragraphs, separated by empty lines; `code` in backquotes and **bold** are understood."""

    title: str
    text: str = ""
    items: Sequence[Item] = ()


@dataclass(frozen=True)
class Report:
    title: str
    summary: str
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)      # commands, versions, machines, wall time: shown at the end

    def __post_init__(self) -> None:
        names = [item.name.lower() for item in self.items]      # some disks know no capitals
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise ValueError(f"two tables or figures of the report are named {double!r}; their files would replace each other, rename one")

    @property
    def items(self) -> list[Item]:
        """Tables and figures of all sections, in order."""
        return [item for section in self.sections for item in section.items]


def make_name(*parts: str) -> str:
    """A name for a table or figure from any texts: `make_name("curves", "popgym/Autoencode Easy")` is "curves-popgym-Autoencode-Easy"."""
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(parts)).strip("-")[:120] or "item"


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", name):
        raise ValueError(f"name must be letters, digits and -, for files are called so, got {name!r}")
