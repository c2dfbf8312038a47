"""Plots of learning curves from metrics.jsonl, one line per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..drawing import COLOURS, FAINT, new_canvas, save_canvas, short, style_axes
from ..statistics import moving_mean, series

PARTS = {"return": "return", "success": "success rate"}
FEW = 40              # evaluations; the dots of more are smaller
SMOOTHING = 0.05      # window of the smoothed line, as a fraction of the curve

Rows = Sequence[Mapping[str, Any]]


def draw_curves(runs: Mapping[str, Rows], path: Path | str, title: str, subtitle: str = "") -> Path:
    """Write a PNG with the return over env steps and, if a run has one, the success rate below it.

    runs: rows of metrics by label. Each run has a light line, as measured, and a dark one, smoothed; and a dashed one with dots, if it was
    evaluated while training.
    """
    parts = [part for part in PARTS if part == "return" or any(_has(rows, part) or _has(rows, f"eval_{part}") for rows in runs.values())]
    figure = new_canvas(8, 3.1 + 1.7 * len(parts))
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
    return save_canvas(figure, path)


def draw_run(run: Any, path: Path | str | None = None) -> Path:
    """Draw the curve of a run of `train` or `open_run`. path: a PNG file; None: curve.png in the run's folder."""
    if path is None and run.folder is None:
        raise ValueError("the run has no folder; pass a path: draw_run(run, path)")
    config = run.config
    subtitle = f"{config.agent} with {config.network.memory}, preset {config.preset}, seed {config.seed}"
    return draw_curves({config.network.memory: run.metrics}, path or Path(run.folder) / "curve.png", config.env, subtitle)


def smooth(values: np.ndarray, share: float = SMOOTHING) -> np.ndarray:
    """Centred moving average [K] over a share of the curve, with shorter windows at the ends."""
    return moving_mean(values, 2 * int(np.ceil(len(values) * share / 2)) + 1)


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
    style_axes(ax)
