"""A report as plain values, as JSON has them: what the page embeds and what report.json holds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .content import Cell, Figure, HeatMap, Item, Report, Section, Series, Table
from .palette import Style, make_styles

CELL_FIELDS = ("value", "std", "low", "high", "seeds", "paper", "paper_std", "difference", "agrees", "note")


def to_data(report: Report) -> dict[str, Any]:
    """Everything in a report as dicts, lists, texts and numbers. Numbers that are not finite become None, because JSON has none."""
    return {
        "title": report.title, "summary": report.summary, "facts": {str(name): str(fact) for name, fact in report.facts.items()},
        "sections": [section_data(section) for section in report.sections],
    }


def to_json(report: Report) -> str:
    """`to_data` as text, for report.json."""
    return json.dumps(to_data(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def section_data(section: Section) -> dict[str, Any]:
    return {"title": section.title, "text": section.text, "items": [item_data(item) for item in section.items]}


def item_data(item: Item) -> dict[str, Any]:
    if isinstance(item, Table):
        return {"type": "table", "name": item.name, "title": item.title, "columns": list(item.columns),
                "rows": [[entry_data(entry) for entry in row] for row in item.rows], "note": item.note}
    if isinstance(item, HeatMap):
        return heat_map_data(item)
    return figure_data(item)


def figure_data(figure: Figure) -> dict[str, Any]:
    return {
        "type": "figure", "name": figure.name, "title": figure.title, "x_label": figure.x_label, "y_label": figure.y_label,
        "kind": figure.kind, "x_log": figure.x_log, "y_log": figure.y_log,
        "y_range": None if figure.y_range is None else numbers(figure.y_range),
        "note": figure.note, "group": figure.group, "series": [series_data(series) for series in figure.series],
    }


def series_data(series: Series) -> dict[str, Any]:
    return {
        "label": series.label, "x": [x if isinstance(x, str) else number(x) for x in series.x], "y": numbers(series.y),
        "low": None if series.low is None else numbers(series.low), "high": None if series.high is None else numbers(series.high),
        "dashed": series.dashed,
    }


def heat_map_data(item: HeatMap) -> dict[str, Any]:
    return {
        "type": "heat_map", "name": item.name, "title": item.title, "x_label": item.x_label, "y_label": item.y_label,
        "values": [numbers(row) for row in np.asarray(item.values)], "value_label": item.value_label,
        "x_ticks": None if item.x_ticks is None else [str(tick) for tick in item.x_ticks],
        "y_ticks": None if item.y_ticks is None else [str(tick) for tick in item.y_ticks],
        "centre": number(item.centre), "note": item.note, "group": item.group,
    }


def entry_data(entry: str | float | Cell | None) -> str | float | Mapping[str, Any] | None:
    """One entry of a table's row. A Cell becomes a dict of CELL_FIELDS and "digits"."""
    if isinstance(entry, Cell):
        return cell_data(entry)
    if entry is None or isinstance(entry, str):
        return entry
    return str(entry) if isinstance(entry, bool | np.bool_) else number(entry)


def cell_data(cell: Cell) -> dict[str, Any]:
    """A value that is not finite is none, and the note says so."""
    values: dict[str, Any] = {name: getattr(cell, name) for name in CELL_FIELDS if name not in ("agrees", "note")}
    data = {name: number(value) for name, value in values.items()}
    broken = cell.value is not None and data["value"] is None
    note = "; ".join(part for part in (f"not a finite number: {cell.value}" if broken else "", cell.note) if part)
    if cell.value is None and not note:
        note = "missing"
    agrees = None if cell.agrees is None or broken else bool(cell.agrees)
    return data | {"agrees": agrees, "note": note, "digits": cell.digits}


def numbers(values: Iterable[Any]) -> list[float | None]:
    return [number(value) for value in values]


def number(value: Any) -> float | None:
    """A number of Python, int or float; None for None and what is not finite."""
    if value is None:
        return None
    if isinstance(value, int | np.integer):
        return int(value)
    value = float(value)
    return value if math.isfinite(value) else None


def find_styles(figures: Iterable[Item]) -> dict[str, Style]:
    """The style of every label in some figures, by the order in which they come."""
    series = [one for figure in figures if isinstance(figure, Figure) for one in figure.series]
    return make_styles([one.label for one in series if not one.dashed], [one.label for one in series if one.dashed])
