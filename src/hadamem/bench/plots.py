"""Scaling plots of a benchmark: time and memory against T and against H, log-log, one line per model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..drawing import new_canvas, save_canvas

if TYPE_CHECKING:
    from .memory import Result

COLOURS = {
    "shm[reference]": "#999999", "shm[scan]": "#56b4e9", "shm[cpu]": "#d55e00", "shm[triton]": "#d55e00",
    "gru": "#0072b2", "lstm": "#009e73", "fla.chunk_gla": "#cc79a7",
}
LABELS = {
    "shm[reference]": "SHM, plain loop", "shm[scan]": "SHM, scan", "shm[cpu]": "SHM, cpu (fused)",
    "shm[triton]": "SHM, triton (fused)", "gru": "nn.GRU", "lstm": "nn.LSTM", "fla.chunk_gla": "fla chunk_gla",
}
MARKERS = {"gru": "s", "lstm": "D", "fla.chunk_gla": "^"}
DIRECTIONS = {"forward": "forward", "both": "forward + backward"}
PARTS = {"op": "recurrence alone", "module": "whole module", "step": "one acting step"}


def draw(results: list[Result], out: Path, subtitle: str) -> list[Path]:
    """Write the PNG files that the results can fill, and return their paths. Prints a note when matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed (pip install 'hadamem[plot]')")
        return []
    paths = []
    for part in PARTS:
        mine = [r for r in results if r.part == part and r.seconds is not None]
        if not mine:
            continue
        for axis, symbol in (("T", "sequence length T"), ("H", "memory size H")):
            if len({getattr(r, axis) for r in mine}) < 2:
                continue
            path = out / f"{part}_time_vs_{axis}.png"
            title = f"SHM, {PARTS[part]}: time against {symbol}"
            _figure(mine, axis, symbol, "time per call [ms]", _milliseconds, title, subtitle, path)
            paths.append(path)
            if axis == "T" and any(_mebibytes(r) is not None for r in mine):
                path = out / f"{part}_memory_vs_{axis}.png"
                title = f"SHM, {PARTS[part]}: peak memory against {symbol}"
                _figure(mine, axis, symbol, "peak memory [MiB]", _mebibytes, title, subtitle, path)
                paths.append(path)
    return paths


def _milliseconds(result: Result) -> float | None:
    return None if result.seconds is None else 1e3 * result.seconds.median


def _mebibytes(result: Result) -> float | None:
    """Peaks below half a MiB are measurement noise on the CPU and clutter anywhere."""
    return None if result.peak_bytes is None or result.peak_bytes < 1 << 19 else result.peak_bytes / 2**20


def _figure(results: list[Result], axis: str, xlabel: str, ylabel: str, value: Callable[[Result], float | None],
            title: str, subtitle: str, path: Path) -> None:
    """One panel per batch size and direction; the other axis of the grid is held at its typical value."""
    other = "H" if axis == "T" else "T"
    held = _typical(sorted({getattr(r, other) for r in results}), 128 if other == "H" else 256)
    shown = [(r, getattr(r, axis), value(r)) for r in results if getattr(r, other) == held]
    batches = sorted({r.B for r in results})
    directions = [d for d in DIRECTIONS if any(r.direction == d for r in results)]
    ticks = sorted({getattr(r, axis) for r in results})
    figure = new_canvas(1.4 + 4.0 * max(1.4, len(directions)), 1.7 + 2.8 * len(batches))
    grid = figure.subplots(len(batches), len(directions), squeeze=False, sharex=True, sharey=True)
    handles: dict[str, Any] = {}
    for row, B in enumerate(batches):
        for column, direction in enumerate(directions):
            ax = grid[row][column]
            for model in COLOURS:
                points = sorted((x, y) for r, x, y in shown
                                if (r.model, r.B, r.direction) == (model, B, direction) and y is not None)
                if points:
                    fused = model in ("shm[cpu]", "shm[triton]")
                    handles[model], = ax.plot(
                        *zip(*points, strict=True), marker=MARKERS.get(model, "o"), markersize=5, color=COLOURS[model],
                        linewidth=2.4 if fused else 1.5, zorder=3 if fused else 2)
            _style(ax, ticks)
            fixed = "" if held == 1 else f", {other} = {held}"   # a step has no T
            ax.set_title((f"{DIRECTIONS[direction]}, " if len(directions) > 1 else "") + f"B = {B}{fixed}", fontsize=10)
            if row == len(batches) - 1:
                ax.set_xlabel(xlabel)
            if column == 0:
                ax.set_ylabel(ylabel)
    figure.suptitle(f"{title}\n{subtitle}", fontsize=10.5)
    figure.legend(handles.values(), [LABELS[m] for m in handles], loc="outside lower center",
                  ncols=min(5, len(handles)), frameon=False, fontsize=9, columnspacing=1.4, handlelength=1.8)
    save_canvas(figure, path)


def _style(ax: Any, ticks: list[int]) -> None:
    from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    ax.grid(True, which="major", color="#dddddd", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _typical(values: list[int], wanted: int) -> int:
    return min(values, key=lambda v: abs(v - wanted))
