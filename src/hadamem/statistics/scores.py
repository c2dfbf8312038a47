"""Scores of several seeds on several tasks: reading and checking them, and the aggregates that turn them into one number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# An array [seeds, tasks], or a list or tuple with one 1-D array of seeds per task where the numbers of seeds differ.
# A flat list or 1-D array holds the seeds of one task.
Scores = np.ndarray | Sequence[Any]


def iqm(scores: Scores) -> float:
    """Interquartile mean: the mean of the middle half of all runs, over seeds and tasks together.

    One lucky or failed run hardly moves it, and it uses more of the data than the median. Fewer than four runs: the plain mean. Where tasks
    have different numbers of seeds, those with more count more. The scores of all tasks must have one scale; normalise them first.
    """
    return float(_iqm(as_tasks(scores)))


def task_mean(scores: Scores) -> float:
    """Mean over tasks of the mean over seeds: every task counts the same, whatever its number of seeds."""
    return float(_task_mean(as_tasks(scores)))


def as_tasks(scores: Scores, name: str = "scores") -> list[np.ndarray]:
    """The seeds of each task, as float64 arrays [seeds] of finite values. name: of the argument, for errors."""
    if isinstance(scores, list | tuple) and any(isinstance(task, Sequence) or np.ndim(task) for task in scores):
        tasks = [_as_array(task, f"task {m} of {name}") for m, task in enumerate(scores)]
        for m, task in enumerate(tasks):
            if task.ndim != 1:
                raise ValueError(f"task {m} of {name} must be 1-D, the score of each seed, got shape {task.shape}; "
                                 "for scores [seeds, tasks] pass one array instead of a list")
    else:
        table = _as_array(scores, name)
        if table.ndim not in (1, 2):
            raise ValueError(f"{name} must be an array [seeds, tasks] or a list with one 1-D array per task, got shape {table.shape}")
        tasks = list(table.reshape(len(table), -1).T) if table.size else []
    if not tasks:
        raise ValueError(f"{name} has no values; pass an array [seeds, tasks] with at least one run")
    for m, task in enumerate(tasks):
        if not len(task):
            raise ValueError(f"task {m} of {name} has no seeds; leave the task out or add its runs")
        if not np.isfinite(task).all():
            n = int(np.argmin(np.isfinite(task)))
            raise ValueError(f"{name} must be finite, got {task[n]} for seed {n} of task {m}; give a failed run a score, and where tasks "
                             "have different numbers of seeds pass a list with one array per task")
    return tasks


def middle_mean(values: np.ndarray) -> np.ndarray:
    """Interquartile mean over the last axis: [..., K] -> [...]."""
    from scipy import stats

    return stats.trim_mean(values, 0.25, axis=-1)


def _as_array(values: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} must be numbers, got {type(values).__name__}: {error}") from None


def _iqm(tasks: Sequence[np.ndarray]) -> np.ndarray:
    """tasks: [..., seeds] each. Returns [...]."""
    return middle_mean(np.concatenate(tasks, axis=-1))


def _task_mean(tasks: Sequence[np.ndarray]) -> np.ndarray:
    """tasks: [..., seeds] each. Returns [...]."""
    return np.mean([task.mean(axis=-1) for task in tasks], axis=0)


# The same aggregates for many resamples at once, tasks [..., seeds] each -> [...].
BATCHED: dict[Callable[..., Any], Callable[[Sequence[np.ndarray]], np.ndarray]] = {iqm: _iqm, task_mean: _task_mean}
