"""Figures of a report as PNG and SVG, drawn by matplotlib in the same colours and markers as on the page."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..drawing import FAINT, new_canvas, save_canvas, short, style_axes
from .content import Figure, HeatMap, Series
from .data import find_styles, number
from .palette import DIVERGING, MISSING, SEQUENTIAL, Style

MARKERS = {"circle": "o", "square": "s", "up": "^", "diamond": "D", "down": "v", "plus": "P", "cross": "X", "star": "*", "pentagon": "p",
           "hexagon": "h"}
INK = "#23231f"
OVER_A_BAR = Style(INK, "circle", dash=(4, 2))      # a reference of the same label, seen on its colour


def draw(figure: Figure | HeatMap, path: Path | str, styles: Mapping[str, Style] | None = None) -> Path:
    """Write a figure as PNG or SVG, as the path ends. styles: by label, for figures that belong together; None: from this figure alone."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"path must end in .png or .svg, got {path.name!r}")
    canvas = draw_heat_map(figure) if isinstance(figure, HeatMap) else draw_figure(figure, styles or find_styles([figure]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")      # names in other scripts: boxes in the PNG, letters on the page
        return save_canvas(canvas, path)


def draw_figure(figure: Figure, styles: Mapping[str, Style]) -> Any:
    """Lines, bars or points as a matplotlib figure."""
    series = [one for one in figure.series if len(one.x)]
    places = [x for one in series for x in one.x]
    categories = list(dict.fromkeys(map(str, places))) if any(isinstance(x, str) for x in places) else None
    canvas, ax = _start(8.4 if not categories else min(16.0, max(8.4, 2.0 + 0.6 * len(categories))), 4.5)
    if figure.x_log and not categories:
        ax.set_xscale("log")
    if figure.y_log:
        ax.set_yscale("log", nonpositive="mask" if figure.kind == "line" else "clip")
    place = _slots(series, categories) if categories else _numeric_places(series)
    handles: dict[str, Any] = {}
    for i, one in enumerate(series):
        style = styles[one.label]
        x, wide = place(one)
        y = _array(one.y)
        if one.dashed:
            handle = _draw_reference(ax, x, y, wide if categories else None, OVER_A_BAR if categories and one.label in handles else style)
        elif figure.kind == "bar":
            handle = _draw_bars(ax, one, x, y, wide, style)
        elif figure.kind == "points":
            handle = _draw_points(ax, one, x, y, style)
        else:
            handle = _draw_line(ax, one, x, y, style, i, len(series))
        if one.label in handles and one.dashed:
            handles["dashed: reference"] = handle
        else:
            handles[one.label] = handle
    _finish_axes(ax, figure, series, categories)
    if len(handles) > 1:
        labels = [_plain(label, 48) for label in handles]
        where = {"loc": "outside right upper"} if max(map(len, labels)) <= 20 else {"loc": "outside lower center", "ncols": 2}
        canvas.legend(list(handles.values()), labels, frameon=False, fontsize=10, **where)
    return canvas


def draw_heat_map(item: HeatMap) -> Any:
    """A matrix as a matplotlib figure; entries without a finite value are hatched."""
    from matplotlib.colors import LinearSegmentedColormap

    values = _array(item.values)
    rows, columns = values.shape
    is_plain = item.x_ticks is None and item.y_ticks is None
    is_square = is_plain and 0.5 <= rows / max(columns, 1) <= 2      # others, such as cells over time, would be thin strips
    size = (6.6, 5.6) if is_square else (8.4, 4.5) if is_plain else (min(16.0, 3.2 + 0.62 * columns), min(16.0, 2.0 + 0.4 * rows))
    canvas, ax = _start(*size)
    ax.set_title(_title(item.title, 9 * size[0]), loc="left", fontsize=13, fontweight="bold", pad=10)
    ax.set_xlabel(_plain(item.x_label, 50), fontsize=11)
    ax.set_ylabel(_plain(item.y_label, 40), fontsize=11)
    present = values[np.isfinite(values)]
    if not present.size:
        _say_empty(ax)
        return canvas
    low, high = float(present.min()), float(present.max())
    if item.centre is not None:
        reach = max(high - item.centre, item.centre - low) or 1.0
        low, high = item.centre - reach, item.centre + reach
    elif low == high:
        low, high = low - 0.5, high + 0.5
    colours = LinearSegmentedColormap.from_list("report", DIVERGING if item.centre is not None else SEQUENTIAL)
    image = ax.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=low, vmax=high, aspect="equal" if is_square else "auto",
                      interpolation="nearest")
    ax.patch.set(hatch="////", edgecolor=MISSING, linewidth=0)
    ax.tick_params(labelsize=10, length=0)
    if item.x_ticks is not None:
        _name_columns(ax, item.x_ticks, 7)
    if item.y_ticks is not None:
        ax.set_yticks(range(rows), [_plain(tick, 26) for tick in item.y_ticks])
    if not is_plain and rows * columns <= 400:
        _write_values(ax, values, colours, low, high)
    for spine in ax.spines.values():
        spine.set_visible(False)
    bar = canvas.colorbar(image, ax=ax, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=10, length=0)
    bar.set_label(_plain(item.value_label, 40), fontsize=11)
    return canvas


def _write_values(ax: Any, values: np.ndarray, colours: Any, low: float, high: float) -> None:
    digits = max(0, 1 - int(np.floor(np.log10(high - low) - 1e-9)))
    for (i, j), value in np.ndenumerate(values):
        red, green, blue, _ = colours((value - low) / (high - low)) if np.isfinite(value) else (1.0, 1.0, 1.0, 1.0)
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.55
        ax.text(j, i, f"{value:.{digits}f}" if np.isfinite(value) else "–", ha="center", va="center", fontsize=9,
                color="white" if dark else INK)


def _slots(series: Sequence[Series], categories: Sequence[str]) -> Callable[[Series], tuple[np.ndarray, np.ndarray]]:
    """Where the values of a series stand, and how wide: beside the others that have a value in that category.

    A reference stands over the series of the same label, or over the whole category.
    """
    present: dict[str, list[str]] = {name: [] for name in categories}
    for one in series:
        for x in one.x:
            if not one.dashed and one.label not in present[str(x)]:
                present[str(x)].append(one.label)

    def place(one: Series) -> tuple[np.ndarray, np.ndarray]:
        centres, widths = [], []
        for x in one.x:
            labels, centre = present[str(x)], categories.index(str(x))
            if one.label in labels:
                wide = min(0.82 / len(labels), 0.4)
                centres.append(centre + (labels.index(one.label) - (len(labels) - 1) / 2) * wide)
                widths.append(wide)
            else:
                centres.append(centre)
                widths.append(0.82)
        return np.array(centres), np.array(widths)

    return place


def _numeric_places(series: Sequence[Series]) -> Callable[[Series], tuple[np.ndarray, np.ndarray]]:
    """Numbers are their own places; the width is that of a bar."""
    everything = np.unique(np.concatenate([_array(one.x) for one in series])) if series else np.zeros(0)
    gaps = np.diff(everything)
    wide = 0.7 * float(gaps.min()) if gaps.size else 0.7
    return lambda one: (_array(one.x), np.full(len(one.x), wide))


def _draw_line(ax: Any, series: Series, x: np.ndarray, y: np.ndarray, style: Style, index: int, count: int) -> Any:
    if series.low is not None and series.high is not None:
        ax.fill_between(x, _array(series.low), _array(series.high), color=style.colour, alpha=0.14, linewidth=0)
    every = 1 if len(x) <= 16 else -(-len(x) // 8)
    first = 0 if every == 1 else int(every * (index + 0.5) / count)      # markers of different series do not meet
    return ax.plot(x, y, color=style.colour, linewidth=1.8, markevery=(first, every), **_marker(style, 6))[0]


def _draw_points(ax: Any, series: Series, x: np.ndarray, y: np.ndarray, style: Style) -> Any:
    return ax.errorbar(x, y, yerr=_reach(series, y), color=style.colour, linestyle="none", capsize=3.5, elinewidth=1.5,
                       **_marker(style, 8))


def _draw_bars(ax: Any, series: Series, x: np.ndarray, y: np.ndarray, wide: np.ndarray, style: Style) -> Any:
    ax.bar(x, y, width=0.88 * wide, color=style.colour, yerr=_reach(series, y), error_kw={"elinewidth": 1.1, "capsize": 2, "ecolor": INK})
    for at, value in zip(x, y, strict=True):
        if np.isfinite(value) and value != 0 and ax.get_yscale() == "linear":      # white, in the foot of the bar
            ax.plot(at, 0, marker=MARKERS[style.marker], color="none" if style.hollow else "white", markeredgecolor="white", markersize=4,
                    markeredgewidth=0.6, transform=_lifted(ax, 7 if value > 0 else -7))
    return ax.plot([], [], color=style.colour, linewidth=5, **_marker(style, 7))[0]


def _draw_reference(ax: Any, x: np.ndarray, y: np.ndarray, wide: np.ndarray | None, style: Style) -> Any:
    """wide: of the pieces over categories; None: a line along x."""
    look = {"color": style.colour, "linewidth": 1.6, "linestyle": (0, tuple(n * 0.6 for n in style.dash))}
    if wide is not None:
        ax.hlines(y, x - wide / 2, x + wide / 2, **look)
        return ax.plot([], [], **look)[0]
    if len(x) == 1:
        return ax.axhline(y[0], **look)
    return ax.plot(x, y, **look)[0]


def _finish_axes(ax: Any, figure: Figure, series: Sequence[Series], categories: Sequence[str] | None) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

    style_axes(ax, labelsize=10)
    ax.set_title(_title(figure.title, 60), loc="left", fontsize=13, fontweight="bold", pad=10)
    ax.set_xlabel(_plain(figure.x_label, 60), fontsize=11)
    ax.set_ylabel(_plain(figure.y_label, 36), fontsize=11)
    if not series:
        _say_empty(ax)
        return
    if figure.y_range is not None:
        ax.set_ylim(*figure.y_range)
    if figure.y_log:
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(lambda value, _: _tick(value))
    if categories:
        _name_columns(ax, categories, 90 / len(categories))
        ax.set_xlim(-0.6, len(categories) - 0.4)
        ax.grid(visible=False, axis="x")
        return
    values = np.unique(np.concatenate([_array(one.x) for one in series if not (one.dashed and len(one.x) == 1)] or [np.zeros(0)]))
    values = values[np.isfinite(values)]
    if figure.x_log:
        ax.xaxis.set_minor_formatter(NullFormatter())
        if 0 < len(values) <= 8:
            ax.xaxis.set_major_locator(FixedLocator(values.tolist()))
            ax.xaxis.set_minor_locator(NullLocator())
    elif len(values) and np.array_equal(values, np.round(values)):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(lambda value, _: _tick(value))


def _start(width: float, height: float) -> tuple[Any, Any]:
    """A canvas with one pair of axes and some room around them."""
    canvas = new_canvas(width, height)
    canvas.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    return canvas, canvas.subplots()


def _name_columns(ax: Any, names: Sequence[str], room: float) -> None:
    """Names below the axis, turned where one has more than `room` letters."""
    texts = [_plain(name, 26) for name in names]
    turned = max(map(len, texts)) > room
    ax.set_xticks(range(len(texts)), texts, rotation=35 if turned else 0, ha="right" if turned else "center",
                  rotation_mode="anchor" if turned else "default")


def _say_empty(ax: Any) -> None:
    ax.text(0.5, 0.5, "no results yet", transform=ax.transAxes, ha="center", color=FAINT, fontsize=12)
    ax.set_xticks([])
    ax.set_yticks([])


def _marker(style: Style, size: float) -> dict[str, Any]:
    size += 0 if style.marker in ("circle", "square", "diamond") else 1.5      # the others cover less
    return {"markersize": size, "marker": MARKERS[style.marker], "markerfacecolor": "white" if style.hollow else style.colour,
            "markeredgecolor": style.colour if style.hollow else "white", "markeredgewidth": 1.4 if style.hollow else 0.4}


def _lifted(ax: Any, points: float) -> Any:
    """Data coordinates, moved up by some points."""
    from matplotlib.transforms import ScaledTranslation

    return ax.transData + ScaledTranslation(0, points / 72, ax.get_figure().dpi_scale_trans)


def _reach(series: Series, y: np.ndarray) -> np.ndarray | None:
    """Lengths of error bars [2, K] below and above y; an interval that does not contain y is cut at it."""
    if series.low is None or series.high is None:
        return None
    return np.maximum(np.stack([y - _array(series.low), _array(series.high) - y]), 0.0)


def _array(values: Any) -> np.ndarray:
    """Floats, with nan for None."""
    if isinstance(values, np.ndarray):
        return values.astype(np.float64)
    return np.array([np.nan if number(value) is None else float(value) for value in values], dtype=np.float64)


def _tick(value: float) -> str:
    text = f"{value:.0f}" if value == round(value) and abs(value) < 10_000 else short(value)
    return text.replace("-", "\N{MINUS SIGN}")


def _plain(text: str, length: int) -> str:
    """A text that matplotlib shows as it is: no formulas, no hidden labels; cut at `length`."""
    text = " ".join(str(text).split())
    text = text if len(text) <= length else text[:length - 1] + "…"
    return text.replace("$", r"\$") if not text.startswith("_") else "\N{ZERO WIDTH SPACE}" + text.replace("$", r"\$")


def _title(text: str, width: float) -> str:
    return "\n".join(_plain(line, 200) for line in textwrap.wrap(text, int(width))[:3])
