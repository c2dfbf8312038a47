"""Confidence intervals of means and rates. scipy is imported at the first use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Confidence interval of the mean of a sample, by Student's t; None for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    from scipy import stats

    mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
    reach = float(stats.t.ppf((1 + level) / 2, n - 1)) * std / math.sqrt(n)
    return mean - reach, mean + reach


def rate_interval(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a rate, for `successes` out of `n`, by Wilson: it stays within 0 and 1 and has a width even at 0 and n."""
    from scipy import stats

    found = stats.binomtest(int(successes), int(n)).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)
