"""Plots of learning curves from metrics.jsonl, one line per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")      # colour-blind safe
GRID, FAINT = "#e4e4e0", "#6b6b68"
PARTS = {"return": "return", "success": "success rate"}
FEW = 40              # evaluations; the dots of more are smaller
SMOOTHING = 0.05      # window of the smoothed line, as a fraction of the curve

Rows = Sequence[Mapping[str, Any]]


def draw_curves(runs: Mapping[str, Rows], path: Path | str, title: str, subtitle: str = "") -> Path:
    """Write a PNG with the return over env steps and, if a run has one, the success rate below it.

    runs: rows of metrics by label. Each run has a light line, as measured, and a dark one, smoothed; and a dashed one with dots, if it was
    evaluated while training.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parts = [part for part in PARTS if part == "return" or any(_has(rows, part) or _has(rows, f"eval_{part}") for rows in runs.values())]
    figure = Figure(figsize=(8, 3.1 + 1.7 * len(parts)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=[2.0, 1.0][:len(parts)])
    for (ax,), part in zip(grid, parts, strict=True):
        _draw_part(ax, runs, part)
    top, bottom = grid[0][0], grid[-1][0]
    bottom.set_xlabel("env steps", fontsize=12)
    bottom.xaxis.set_major_formatter(lambda x, _: short(x))
    top.set_title(title, loc="left", fontsize=14, fontweight="bold", pad=26 if subtitle else 10)
    top.annotate(subtitle, (0, 1), xytext=(0, 9), xycoords="axes fraction", textcoords="offset points", fontsize=11, color=FAINT)
    if top.lines and (len(runs) > 1 or any(_has(rows, "eval_return") for rows in runs.values())):
        top.legend(loc="best", frameon=False, fontsize=11)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part_path = path.with_name(f".{path.name}.part")      # readers never see an incomplete file
    figure.savefig(part_path, format="png")
    part_path.replace(path)
    return path


def draw_run(run: Any, path: Path | str | None = None) -> Path:
    """Draw the curve of a run of `train` or `open_run`. path: a PNG file; None: curve.png in the run's folder."""
    if path is None and run.folder is None:
        raise ValueError("the run has no folder; pass a path: draw_run(run, path)")
    config = run.config
    subtitle = f"{config.agent} with {config.network.memory}, preset {config.preset}, seed {config.seed}"
    return draw_curves({config.network.memory: run.metrics}, path or Path(run.folder) / "curve.png", config.env, subtitle)


def series(rows: Rows, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values [K] of the rows in which `name` is finite."""
    pairs = [(row["steps"], row[name]) for row in rows if row.get(name) is not None and np.isfinite(row[name])]
    points = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def smooth(values: np.ndarray, share: float = SMOOTHING) -> np.ndarray:
    """Centred moving average [K], with shorter windows at the ends."""
    n = len(values)
    half_width = int(np.ceil(n * share / 2))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    low, high = np.maximum(np.arange(n) - half_width, 0), np.minimum(np.arange(n) + half_width + 1, n)
    return (sums[high] - sums[low]) / (high - low)


def short(x: float) -> str:
    """A number of steps in compact form: 400k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:.4g}{letter}"
    return f"{x:.4g}"


def _has(rows: Rows, name: str) -> bool:
    return len(series(rows, name)[0]) > 0


def _darker(colour: str) -> str:
    """A colour "#rrggbb" at half its brightness."""
    return "#" + "".join(f"{int(colour[i:i + 2], 16) // 2:02x}" for i in (1, 3, 5))


def _draw_part(ax: Any, runs: Mapping[str, Rows], part: str) -> None:
    for i, (label, rows) in enumerate(runs.items()):
        colour, evaluated = COLOURS[i % len(COLOURS)], _has(rows, f"eval_{part}")
        steps, values = series(rows, part)
        if len(steps):
            marker = "o" if len(steps) < 3 else None      # a line through one point is invisible
            ax.plot(steps, values, color=colour, alpha=0.25, linewidth=1.0, marker=marker)
            ax.plot(steps, smooth(values), color=colour, linewidth=2.2, label=f"{label}, training" if evaluated else label)
        if evaluated:
            steps, values = series(rows, f"eval_{part}")
            size = 5.0 if len(steps) <= FEW else 2.5
            ax.plot(steps, values, color=_darker(colour), linewidth=1.4, linestyle="--", marker="o", markersize=size,
                    label=f"{label}, evaluation")
    ax.set_ylabel(PARTS[part], fontsize=12)
    if part == "success":
        ax.set_ylim(-0.03, 1.03)
        ax.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")
    if not ax.lines:
        ax.text(0.5, 0.5, "no episode has finished", transform=ax.transAxes, ha="center", color=FAINT, fontsize=12)
    ax.set_xlim(left=0)
    ax.grid(color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=11, length=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color("#b8b8b4")
