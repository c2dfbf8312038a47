"""Stratified bootstrap: what an aggregate might have been with other seeds on the same tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .scores import BATCHED, Scores, as_tasks


def bootstrap_interval(scores: Scores, statistic: Callable[[Any], float], level: float = 0.95, repeats: int = 2000,
                       seed: int = 0) -> tuple[float, float] | None:
    """Confidence interval of statistic(scores): percentiles over `repeats` resamples of the seeds within each task.

    scores: array [seeds, tasks], or a list with one 1-D array per task.
    statistic: `iqm` and `task_mean` are computed for all resamples at once. Any other function is called per resample, with an array
    [seeds, tasks], or with a list of 1-D arrays where the numbers of seeds differ, and returns one number.
    seed: the same seed gives the same interval.

    None if a task has one seed only: nothing is known of its other seeds, and to take it as exact would make the interval too narrow. It
    is too narrow for few seeds, see docs/statistics.md.
    """
    tasks = as_tasks(scores)
    check_options(level, repeats)
    if not all_vary(tasks):
        return None
    samples = resample(tasks, repeats, np.random.default_rng(seed))
    batched = BATCHED.get(statistic)
    values = np.array([_call(statistic, sample) for sample in _one_by_one(samples)]) if batched is None else batched(samples)
    low, high = percentiles(values, level)
    return float(low), float(high)


def check_options(level: float, repeats: int) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}; 0.95 is usual")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}; 2000 is usual")


def all_vary(tasks: Sequence[np.ndarray]) -> bool:
    """Whether every task has more than one seed, so that there is something to resample."""
    return all(len(task) > 1 for task in tasks)


def resample(tasks: Sequence[np.ndarray], repeats: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Seeds drawn with replacement within each task: [repeats, seeds] each."""
    return [task[rng.integers(len(task), size=(repeats, len(task)))] for task in tasks]


def draw_counts(n: int, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """How often each of n seeds occurs in a resample of n: [repeats, n]. For statistics that are sums over seeds."""
    return rng.multinomial(n, np.full(n, 1 / n), size=repeats)


def percentiles(values: np.ndarray, level: float) -> np.ndarray:
    """Both ends of the middle `level` of values [repeats, ...]: [2, ...]."""
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)


def _one_by_one(samples: list[np.ndarray]) -> Iterator[np.ndarray | list[np.ndarray]]:
    """What a statistic gets for each resample."""
    if len({sample.shape[1] for sample in samples}) == 1:
        yield from np.stack(samples, axis=-1)                    # [repeats, seeds, tasks]
    else:
        yield from (list(sample) for sample in zip(*samples, strict=True))


def _call(statistic: Callable[[Any], float], sample: np.ndarray | list[np.ndarray]) -> float:
    value = np.asarray(statistic(sample), dtype=np.float64)
    if value.ndim or not np.isfinite(value):
        raise ValueError(f"statistic must return one finite number for every resample, got {value.tolist()}")
    return float(value)
