"""Learning curves of several runs on one grid of env steps, with a confidence band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from .bootstrap import check_options, percentiles
from .intervals import students_reach
from .scores import as_tasks, middle_mean

BLOCK = 1 << 22      # numbers resampled at once: 32 MiB

Curve = tuple[Sequence[float] | np.ndarray, Sequence[float] | np.ndarray]


class Band(NamedTuple):
    steps: np.ndarray            # [P] env steps
    middle: np.ndarray           # [P] mean or IQM over runs
    low: np.ndarray | None       # [P] pointwise confidence band; None for one run
    high: np.ndarray | None
    runs: int


def band(curves: Sequence[Curve], points: int | Sequence[float] | np.ndarray = 200, *, statistic: Literal["mean", "iqm"] = "mean",
         interval: Literal["t", "bootstrap"] | None = None, level: float = 0.95, repeats: int = 2000, seed: int = 0,
         smooth: int = 1) -> Band:
    """Mean or IQM over runs as a function of env steps, with a pointwise confidence band.

    curves: (steps, values) of each run, with increasing steps; `series` makes one from rows of metrics. Each is interpolated linearly.
    points: number of points of the grid, evenly spaced where all runs have data; or the env steps themselves, of which those are kept.
    interval: "t" is Student's interval of the mean; "bootstrap" draws whole runs, and is too narrow for few. None: "t" for the mean,
    "bootstrap" for the IQM.
    smooth: each run is first replaced by a moving mean over this many of its measurements; 1 leaves it as it is. It makes curves easier to
    read, shifts steep rises, and narrows the band by averaging noise within runs; say so beside a figure.
    """
    check_options(level, repeats)
    interval = interval or ("t" if statistic == "mean" else "bootstrap")
    if statistic not in ("mean", "iqm") or interval not in ("t", "bootstrap"):
        raise ValueError(f"statistic must be 'mean' or 'iqm' and interval 't' or 'bootstrap', got {statistic!r} and {interval!r}")
    if statistic == "iqm" and interval == "t":
        raise ValueError("interval='t' is for means, got statistic='iqm'; use interval='bootstrap'")
    runs = [_checked(curve, n) for n, curve in enumerate(curves)]
    if not runs:
        raise ValueError("curves has no runs; pass a list of (steps, values)")
    grid = _grid(runs, points)
    values = np.stack([np.interp(grid, steps, moving_mean(curve, smooth)) for steps, curve in runs], axis=-1)       # [P, runs]
    middle = _aggregate(values, statistic)
    if len(runs) == 1:
        return Band(grid, middle, None, None, 1)
    if interval == "t":
        reach = students_reach(values, level)
        return Band(grid, middle, middle - reach, middle + reach, len(runs))
    low, high = _bootstrapped(values, statistic, level, repeats, seed)
    return Band(grid, middle, low, high, len(runs))


def moving_mean(values: Sequence[float] | np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean [K] over `window` values, fewer at both ends. An even window reaches one further ahead than back."""
    if window < 1:
        raise ValueError(f"the window of a moving mean must be at least 1, got {window}")
    values = np.asarray(values, dtype=np.float64)
    if window == 1:
        return values
    n = len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    low, high = np.maximum(np.arange(n) - (window - 1) // 2, 0), np.minimum(np.arange(n) + window // 2 + 1, n)
    return (sums[high] - sums[low]) / (high - low)


def _checked(curve: Curve, n: int) -> tuple[np.ndarray, np.ndarray]:
    if len(curve) != 2:
        raise ValueError(f"curves[{n}] must be (steps, values), got {len(curve)} parts; `series` makes a pair from rows of metrics")
    (steps,) = as_tasks(np.ravel(curve[0]), f"steps of curves[{n}]")
    (values,) = as_tasks(np.ravel(curve[1]), f"values of curves[{n}]")
    if len(steps) != len(values):
        raise ValueError(f"curves[{n}] must have a value for each step, got {len(steps)} steps and {len(values)} values")
    falls = np.flatnonzero(np.diff(steps) <= 0)
    if len(falls):
        raise ValueError(f"the steps of curves[{n}] must increase, got {steps[falls[0]]:.12g} and then {steps[falls[0] + 1]:.12g}; sort "
                         "them, and keep one value per step")
    return steps, values


def _grid(runs: Sequence[tuple[np.ndarray, np.ndarray]], points: int | Sequence[float] | np.ndarray) -> np.ndarray:
    """Env steps [P] at which all runs have data."""
    start, end = max(steps[0] for steps, _ in runs), min(steps[-1] for steps, _ in runs)
    if start > end:
        raise ValueError(f"curves must have env steps in common, got a start at {start:.12g} and an end at {end:.12g}; leave out "
                         "the shortest run")
    if isinstance(points, int | np.integer):
        if points < 2:
            raise ValueError(f"points must be at least 2, got {points}")
        return np.unique(np.linspace(start, end, int(points)))
    (grid,) = as_tasks(np.ravel(points), "points")
    kept = grid[(grid >= start) & (grid <= end)]
    if not len(kept):
        raise ValueError(f"points must have env steps from {start:.12g} to {end:.12g}, where all curves have data, got {grid[0]:.12g} to "
                         f"{grid[-1]:.12g}")
    return kept


def _aggregate(values: np.ndarray, statistic: str) -> np.ndarray:
    """values [..., runs] -> [...]."""
    return values.mean(axis=-1) if statistic == "mean" else middle_mean(values)


def _bootstrapped(values: np.ndarray, statistic: str, level: float, repeats: int, seed: int) -> np.ndarray:
    """values [P, runs] -> low and high [2, P], over resamples of whole runs."""
    size, n = values.shape
    chosen = np.random.default_rng(seed).integers(n, size=(repeats, n))
    width = max(1, BLOCK // chosen.size)                            # points at a time, so that long grids need little memory
    parts = [percentiles(_aggregate(values[at:at + width, chosen], statistic).T, level) for at in range(0, size, width)]
    return np.concatenate(parts, axis=1)
