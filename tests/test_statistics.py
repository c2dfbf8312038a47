"""Confidence intervals: against values from tables and formulas, and their edges."""

import math

import numpy as np
import pytest

from hadamem.statistics import mean_interval, rate_interval

stats = pytest.importorskip("scipy.stats")

VALUES = [3.0, -1.0, 4.0, 1.5, -9.0, 2.0, 6.0]


def quantile(interval, values):
    """The t that an interval was made with."""
    low, high = interval
    assert (low + high) / 2 == pytest.approx(np.mean(values), rel=1e-12)
    return (high - low) / 2 / (np.std(values, ddof=1) / math.sqrt(len(values)))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 99, 1000, 9999])
def test_mean_interval_is_students(freedom):
    values = np.random.default_rng(freedom).normal(size=freedom + 1)
    assert quantile(mean_interval(values), values) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    assert quantile(mean_interval(values, 0.5), values) == pytest.approx(stats.t.ppf(0.75, freedom), rel=1e-9)


KNOWN = [(1, math.tan(0.475 * math.pi)), (2, 0.95 * math.sqrt(2 / (1 - 0.95 ** 2))), (6, 2.4469118511449692)]


@pytest.mark.parametrize(("freedom", "t"), KNOWN)
def test_mean_interval_by_closed_forms_and_a_table(freedom, t):
    values = VALUES[:freedom + 1]
    assert quantile(mean_interval(values), values) == pytest.approx(t, rel=1e-9)


def test_mean_interval_of_one_value_is_unknown():
    assert mean_interval([3.0]) is None
    assert mean_interval([]) is None
    assert mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


@pytest.mark.parametrize(("wins", "n"), [(0, 1), (1, 1), (0, 10), (7, 10), (100, 100), (513, 1000)])
def test_rate_interval_is_wilsons(wins, n):
    z, rate = 1.959963984540054, wins / n
    middle, width = (rate + z * z / (2 * n)) / (1 + z * z / n), z / (1 + z * z / n)
    reach = width * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    assert rate_interval(wins, n) == pytest.approx((max(0.0, middle - reach), min(1.0, middle + reach)), abs=1e-9)
    want = stats.binomtest(wins, n).proportion_ci(method="wilson")
    assert rate_interval(wins, n) == pytest.approx((want.low, want.high), abs=1e-9)
    assert all(type(x) is float for x in rate_interval(np.int64(wins), n))
