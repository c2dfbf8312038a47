"""Mean and deviation of one sample, and confidence intervals of means and rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .scores import as_tasks


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1 in the denominator), as papers print them: "31.2 ± 4.0". One value has no deviation: None.

    The deviation says how much single runs differ. It does not shrink with more runs; for how well the mean is known see `mean_interval`.
    """
    tasks = as_tasks(values, "values")
    if len(tasks) > 1:
        raise ValueError(f"values must be the scores of one task, got {len(tasks)} tasks; call mean_std for each")
    sample = tasks[0]
    return float(sample.mean()), float(sample.std(ddof=1)) if len(sample) > 1 else None


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Confidence interval of the mean of a sample, by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean, reach = float(np.mean(values)), float(students_reach(np.asarray(values), level))
    return mean - reach, mean + reach


def students_reach(values: np.ndarray, level: float) -> np.ndarray:
    """Half the width of Student's interval of the mean over the last axis: [..., n] with n > 1 -> [...]."""
    from scipy import stats

    n = values.shape[-1]
    return stats.t.ppf((1 + level) / 2, n - 1) * values.std(axis=-1, ddof=1) / math.sqrt(n)


def rate_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a rate, for `successes` out of `n`, by Wilson: it stays within 0 and 1 and has a width even at 0 and n."""
    from scipy import stats

    found = stats.binomtest(int(successes), int(n)).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)
