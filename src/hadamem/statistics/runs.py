"""From the metrics of one run to its score or its learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Rows = Sequence[Mapping[str, Any]]


def final_score(rows: Rows | Sequence[float] | np.ndarray, last: int = 10, name: str = "return") -> float:
    """Mean return at the end of training: over the last `last` iterations in which episodes ended, or all if there are fewer.

    rows: rows of metrics, or a plain curve with the mean return of each iteration (None: no episode ended). name: of the metric, e.g.
    "success" or "eval_return"; rows without it are skipped.
    """
    if last < 1:
        raise ValueError(f"last must be at least 1 iteration, got {last}")
    return float(np.mean(_iterations(rows, name)[-last:]))


def best_score(rows: Rows | Sequence[float] | np.ndarray, name: str = "return") -> float:
    """POPGym's score of a run (MMER): the maximum over iterations of the mean return of the episodes that ended in an iteration.

    It is biased upwards, more so with few episodes per iteration and many iterations. rows, name: as for `final_score`.
    """
    return float(np.max(_iterations(rows, name)))


def series(rows: Rows, name: str = "return") -> tuple[np.ndarray, np.ndarray]:
    """Env steps and values [K] of the rows in which `name` is finite: a learning curve."""
    pairs = [(row["steps"], row[name]) for row in rows if row.get(name) is not None and np.isfinite(row[name])]
    points = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return points[:, 0], points[:, 1]


def _iterations(rows: Rows | Sequence[float] | np.ndarray, name: str) -> np.ndarray:
    """The mean return of each iteration in which episodes ended [K]."""
    found = []
    for n, row in enumerate(rows):
        if isinstance(row, Mapping):
            value = row.get(name)
            if value is None and name == "return" and row.get("episodes"):
                raise ValueError(f"rows must have a return where episodes ended, got none in row {n} with {row['episodes']:g} "
                                 "episodes: it was not finite, so the run has no score")
        else:
            value = row
        if value is not None:
            if not np.isfinite(value):
                raise ValueError(f"rows must be finite, got {value} for iteration {n}; use None where no episode ended")
            found.append(float(value))
    if not found:
        raise ValueError(f"rows has no iteration with a value of {name!r}; train until episodes end, or name another metric")
    return np.array(found)
