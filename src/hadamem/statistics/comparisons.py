"""Comparing methods: how often one beats the other, and how many runs reach a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .bootstrap import all_vary, check_options, draw_counts, percentiles
from .scores import Scores, as_tasks


class Estimate(NamedTuple):
    value: float
    interval: tuple[float, float] | None      # None: a task has one seed, so that there is nothing to resample


class Profile(NamedTuple):
    thresholds: np.ndarray       # [K]
    share: np.ndarray            # [K] of the runs that are above each threshold
    low: np.ndarray | None       # [K] pointwise confidence band; None: a task has one seed, so that there is nothing to resample
    high: np.ndarray | None


def probability_of_improvement(x: Scores, y: Scores, level: float = 0.95, repeats: int = 2000, seed: int = 0) -> Estimate:
    """How likely a run of X scores higher than a run of Y: P(X > Y) + P(X = Y) / 2 on each task, averaged over tasks.

    x, y: arrays [seeds, tasks] or lists with one 1-D array per task. The tasks are the same, in the same order; the numbers of seeds may
    differ. On one task it is Mann and Whitney's U, divided by the number of pairs. 0.5: neither is better. It says nothing about by how
    much. The interval is that of a stratified bootstrap, with the seeds of X and Y drawn independently.
    """
    xs, ys = as_tasks(x, "x"), as_tasks(y, "y")
    check_options(level, repeats)
    if len(xs) != len(ys):
        raise ValueError(f"x and y must have the same tasks, got {len(xs)} and {len(ys)}; leave out tasks that only one of them has")
    wins = [(a[:, None] > b) + 0.5 * (a[:, None] == b) for a, b in zip(xs, ys, strict=True)]      # [seeds of X, seeds of Y] each
    value = float(np.mean([table.mean() for table in wins]))
    if not (all_vary(xs) and all_vary(ys)):
        return Estimate(value, None)
    rng = np.random.default_rng(seed)
    total = np.zeros(repeats)
    for table in wins:
        counts_x, counts_y = (draw_counts(n, repeats, rng) for n in table.shape)
        total += (counts_x @ table * counts_y).sum(axis=1) / table.size
    low, high = percentiles(total / len(wins), level)
    return Estimate(value, (float(low), float(high)))


def performance_profile(scores: Scores, thresholds: Sequence[float] | np.ndarray, level: float = 0.95, repeats: int = 2000,
                        seed: int = 0) -> Profile:
    """Share of the runs that score above each threshold, with a pointwise band from a stratified bootstrap.

    scores: array [seeds, tasks], or a list with one 1-D array per task; every task counts the same. thresholds [K], in any order. A profile
    that is higher everywhere belongs to the better method; where two cross, each is better in a part of the range.
    """
    tasks = as_tasks(scores)
    check_options(level, repeats)
    (at,) = as_tasks(np.ravel(thresholds), "thresholds")
    above = [task[:, None] > at for task in tasks]                                # [seeds, K] each
    share = np.mean([table.mean(axis=0) for table in above], axis=0)
    if not all_vary(tasks):
        return Profile(at, share, None, None)
    rng = np.random.default_rng(seed)
    total = sum((draw_counts(len(table), repeats, rng) @ table / len(table) for table in above), np.zeros((repeats, len(at))))
    low, high = percentiles(total / len(above), level)
    return Profile(at, share, low, high)
