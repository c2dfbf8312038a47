"""Sets of tasks for meta-learning: points in the plane, drawn from a seed or taken from the code published with the SHM paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import random
from ..checks import positive

RELEASE_SEED, RELEASE_SIZE = 1337, 200
KINDS = ("wind", "point_robot", "point_robot_dense")
STREAM = -1     # stream key of tasks; envs have keys from 0


def draw_tasks(shape: str, size: float, seed: int, n: int) -> Tensor:
    """n points [n, 2] float64 on the CPU: from the "square" [-size, size) x [-size, size) or the upper "half_circle" of radius `size`.

    Point i depends only on the seed and i, so a longer set starts with the shorter one.
    """
    counter = random.stream(seed, STREAM, torch.arange(n))
    unit = random.uniform(counter[:, None] + torch.arange(2), torch.float64)
    if shape == "half_circle":
        angle = math.pi * unit[:, 0]
        return size * torch.stack([torch.cos(angle), torch.sin(angle)], dim=1)
    return size * (2 * unit - 1)


def release_tasks(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The tasks [200, 2] float64 of the released code, and its permutation [200]: training tasks come first in it, held-out ones last.

    kind: "wind" (winds), "point_robot" or "point_robot_dense" (goals). The released code draws them from a fixed seed, so they are the same
    in all its runs; numbers that it draws and does not use are drawn here as well. Goals on the circle may differ in the last two bits, as
    numpy versions round sines differently.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of tasks {kind!r}; choose from {', '.join(KINDS)}")
    rng, n = np.random.RandomState(RELEASE_SEED), RELEASE_SIZE
    if kind == "wind":
        tasks = rng.uniform(-0.1, 0.1, (n, 2))
    else:
        tasks = rng.uniform(-10, 10, (n, 2))        # the sparse variant replaces them below
        rng.uniform(size=2)                         # a start
    if kind == "point_robot":
        angles = rng.uniform(0, np.pi, n)
        tasks = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        rng.shuffle(tasks)
        rng.uniform(size=2)                         # another start
    return tasks, rng.permutation(n)


class TaskSet:
    """The tasks of an env: given ones, those of the released code, or drawn from a seed. `draw` returns `len(self)` of them.

    tasks: "train", "eval", "all" (train, then eval) or the tasks themselves [n, 2]. task_seed: a number, "release", or None for the run's.
    shape, size: for `draw_tasks`. kind: for `release_tasks`; None where the release has no such tasks.
    """

    def __init__(self, tasks: Any, task_seed: int | str | None, num_train: int, num_eval: int, *, shape: str, size: float,
                 kind: str | None):
        self.shape, self.size, self.seed = shape, size, task_seed
        train, total = positive("num_train", num_train), positive("num_train", num_train) + positive("num_eval", num_eval)
        rows = {"train": slice(0, train), "eval": slice(train, total), "all": slice(0, total)}
        self.fixed: Tensor | None = None
        if not isinstance(tasks, str):
            if task_seed is not None:
                raise ValueError(f"task_seed is for drawn tasks, but tasks are given; got task_seed={task_seed!r}: pass only one of them")
            self.fixed, self.rows = _points(tasks), slice(None)
        elif tasks not in rows:
            raise ValueError(f"unknown tasks {tasks!r}; choose from {', '.join(rows)}, or give an array [n, 2]")
        else:
            self.rows = rows[tasks]
        if task_seed == "release":
            if kind is None:
                raise ValueError("task_seed='release' needs preset='release': the published code has no tasks for this preset")
            if total > RELEASE_SIZE:
                raise ValueError(f"num_train + num_eval must be at most {RELEASE_SIZE} with task_seed='release', got {train} + {num_eval}")
            known, order = release_tasks(kind)
            self.fixed = torch.from_numpy(known[np.concatenate([order[:train], order[-num_eval:]])])
        elif task_seed is not None and (not isinstance(task_seed, (int, np.integer)) or isinstance(task_seed, bool) or task_seed < 0):
            raise ValueError(f"task_seed must be a whole number >= 0, 'release' or None, got {task_seed!r}")
        self.total = total if self.fixed is None else len(self.fixed)

    def __len__(self) -> int:
        return len(range(self.total)[self.rows])

    def draw(self, run_seed: int) -> Tensor:
        """The tasks [n, 2] float64 of a run with this seed, on the CPU."""
        if self.fixed is not None:
            return self.fixed[self.rows]
        seed = run_seed if self.seed is None else int(self.seed)
        return draw_tasks(self.shape, self.size, seed, self.total)[self.rows]


def _points(tasks: Any) -> Tensor:
    points = torch.as_tensor(np.asarray(tasks) if not isinstance(tasks, Tensor) else tasks, dtype=torch.float64).cpu().clone()
    if points.ndim != 2 or points.shape[1] != 2 or not len(points) or not bool(points.isfinite().all()):
        raise ValueError(f"tasks must be 'train', 'eval', 'all' or finite numbers [n, 2], got shape {list(points.shape)}")
    return points
