"""Statistics of runs: against tables, formulas and enumeration, and their edges. test_statistics_rliable.py compares with rliable."""

import math

import numpy as np
import pytest

from hadamem.statistics import (
    band,
    best_score,
    bootstrap_interval,
    curves,
    final_score,
    iqm,
    mean_interval,
    mean_std,
    moving_mean,
    performance_profile,
    probability_of_improvement,
    rate_interval,
    series,
    task_mean,
)

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


# --- scores of seeds and tasks

RAGGED = [[1.0, 2.0, 6.0], [4.0, 4.0], [0.0, 1.0, 2.0, 3.0, 4.0]]


def random_scores(seeds=5, tasks=3, seed=0):
    return np.random.default_rng(seed).normal(size=(seeds, tasks))


def test_mean_and_deviation():
    assert mean_std([1.0, 2.0, 6.0]) == (3.0, pytest.approx(math.sqrt(7)))
    assert mean_std([3.0]) == (3.0, None)
    assert mean_std(np.array([2.0, 2.0])) == (2.0, 0.0)
    with pytest.raises(ValueError, match="one task, got 5 tasks"):
        mean_std(random_scores(2, 5))


def test_iqm_is_the_mean_of_the_middle_half():
    assert iqm([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -100.0]) == 3.5
    assert iqm(RAGGED) == stats.trim_mean(np.concatenate(RAGGED), 0.25)
    assert iqm([5.0]) == 5.0
    assert iqm([1.0, 2.0, 6.0]) == 3.0                             # of three, none is cut
    assert iqm(random_scores()) == pytest.approx(iqm(random_scores().ravel()))


def test_task_mean_counts_tasks_alike():
    assert task_mean(RAGGED) == pytest.approx(3.0)
    assert task_mean(random_scores()) == pytest.approx(random_scores().mean())


CALLS = {
    "scores": [iqm, task_mean, lambda x: bootstrap_interval(x, iqm), lambda x: performance_profile(x, [0.0])],
    "x": [lambda x: probability_of_improvement(x, [1.0, 2.0])],
    "y": [lambda y: probability_of_improvement([1.0, 2.0], y)],
    "values": [mean_std],
    "thresholds": [lambda t: performance_profile(RAGGED, t)],
}


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in CALLS.items() for call in calls])
@pytest.mark.parametrize(("bad", "message"), [
    ([], "has no values"), (np.zeros((0, 3)), "has no values"), ([1.0, float("nan")], "must be finite, got nan for seed 1 of task 0"),
    ([1.0, float("-inf")], "must be finite, got -inf"), (["a"], "must be numbers"),
])
def test_bad_values_are_named(name, call, bad, message):
    with pytest.raises(ValueError, match=f"{name}.* {message}" if message == "must be numbers" else f"{name} {message}"):
        call(bad)


@pytest.mark.parametrize(("bad", "message"), [
    ([[1.0], []], "task 1 of scores has no seeds"), ([[1.0], [float("nan")]], "got nan for seed 0 of task 1"),
    ([[[1.0]], [[2.0]]], r"task 0 of scores must be 1-D.*\(1, 1\)"), (np.zeros((2, 2, 2)), r"got shape \(2, 2, 2\)"),
    ({"a": [1.0]}, "scores must be numbers, got dict"),
])
def test_bad_shapes_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        iqm(bad)


# --- bootstrap


def test_bootstrap_by_enumeration():
    """Two seeds: the mean of a resample is the lower one, the middle or the higher one with 1/4, 1/2, 1/4."""
    assert bootstrap_interval([0.0, 1.0], task_mean, 0.4) == (0.5, 0.5)
    assert bootstrap_interval([0.0, 1.0], task_mean, 0.6) == (0.0, 1.0)
    values = np.array([0.0, 1.0, 5.0])
    means = np.sort([(a + b + c) / 3 for a in values for b in values for c in values])      # all 27 resamples
    low, high = bootstrap_interval(values, task_mean, 0.9, repeats=100_000)
    assert low == pytest.approx(means[1])                          # 1/27 < 5 % < 4/27
    assert high == pytest.approx(means[-4])                        # 1/27 < 5 % < 4/27 from above


def test_bootstrap_stays_within_tasks():
    assert bootstrap_interval(np.array([[0.0, 10.0], [0.0, 10.0]]), task_mean) == (5.0, 5.0)
    assert bootstrap_interval([[0.0, 2.0], [10.0, 10.0]], task_mean) == (5.0, 6.0)


@pytest.mark.parametrize("scores", [random_scores(), random_scores(7, 1), RAGGED])
@pytest.mark.parametrize("statistic", [iqm, task_mean])
def test_all_resamples_at_once_are_the_same_as_one_by_one(scores, statistic):
    assert bootstrap_interval(scores, lambda x: statistic(x)) == pytest.approx(bootstrap_interval(scores, statistic), rel=1e-12)


def test_bootstrap_is_deterministic_and_takes_any_statistic():
    scores = random_scores(6, 4)
    assert bootstrap_interval(scores, iqm) == bootstrap_interval(scores, iqm)
    assert bootstrap_interval(scores, iqm) != bootstrap_interval(scores, iqm, seed=1)
    low, high = bootstrap_interval(scores, np.median, 0.9, repeats=300)
    assert low < np.median(scores) < high
    assert bootstrap_interval(RAGGED, lambda tasks: tasks[1][0]) == (4.0, 4.0)      # different numbers of seeds: a list of arrays


def test_one_seed_has_no_interval():
    one = np.array([[1.0, 2.0, 3.0]])
    assert bootstrap_interval(one, iqm) is None
    assert bootstrap_interval([[0.0, 2.0], [10.0]], task_mean) is None      # of one task nothing is known
    assert probability_of_improvement(one, one + 1) == (0.0, None)
    assert probability_of_improvement(one, random_scores()).interval is None
    profile = performance_profile(one, [1.5])
    assert profile.share.tolist() == [pytest.approx(2 / 3)]
    assert profile.low is None
    assert profile.high is None


@pytest.mark.parametrize(("options", "message"), [
    ({"level": 95}, "level must be between 0 and 1, got 95"), ({"level": 0.0}, "level"),
    ({"repeats": 0}, "repeats must be at least 1, got 0"),
])
def test_bad_options_are_named(options, message):
    for call in (lambda **o: bootstrap_interval(RAGGED, iqm, **o), lambda **o: probability_of_improvement(RAGGED, RAGGED, **o),
                 lambda **o: performance_profile(RAGGED, [0.0], **o), lambda **o: band([([0, 1], [0, 1])], **o)):
        with pytest.raises(ValueError, match=message):
            call(**options)
    with pytest.raises(ValueError, match="statistic must return one finite number"):
        bootstrap_interval(RAGGED, lambda tasks: tasks[0])


def test_few_seeds_make_the_bootstrap_too_narrow():
    """What docs/statistics.md says: for n seeds its spread is sqrt((n - 1) / n) of the usual estimate; Student's t is right."""
    rng = np.random.default_rng(0)
    shares = {}
    for n in (3, 10):
        samples = rng.normal(size=(400, n))
        for name, make in (("t", mean_interval), ("bootstrap", lambda x: bootstrap_interval(x, task_mean, repeats=500))):
            intervals = [make(sample) for sample in samples]
            shares[name, n] = np.mean([low <= 0 <= high for low, high in intervals])
    assert shares["t", 3] == pytest.approx(0.95, abs=0.035)
    assert shares["t", 10] == pytest.approx(0.95, abs=0.035)
    assert shares["bootstrap", 3] < 0.85 < shares["bootstrap", 10] < 0.95


# --- comparisons


@pytest.mark.parametrize("seed", range(4))
def test_probability_of_improvement_is_mann_whitneys(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 5, 6) + 0.0, rng.integers(0, 5, 4) + 0.0
    got = probability_of_improvement(x, y)
    assert got.value == pytest.approx(stats.mannwhitneyu(x, y).statistic / 24)
    assert got.interval[0] <= got.value <= got.interval[1]
    assert probability_of_improvement(y, x).value == pytest.approx(1 - got.value)


def test_probability_of_improvement_at_its_edges():
    scores = random_scores()
    assert probability_of_improvement(scores + 100, scores) == (1.0, (1.0, 1.0))
    assert probability_of_improvement(np.ones((4, 2)), np.ones((3, 2))) == (0.5, (0.5, 0.5))
    assert probability_of_improvement(RAGGED, [[0.0, 1.5], [5.0, 5.0], [2.0]]).value == pytest.approx((5 / 6 + 0 + 0.5) / 3)
    with pytest.raises(ValueError, match="x and y must have the same tasks, got 3 and 1"):
        probability_of_improvement(RAGGED, [1.0])


def test_profile_is_the_share_of_runs_above():
    profile = performance_profile(RAGGED, [-1.0, 2.0, 3.0, 6.0])
    np.testing.assert_allclose(profile.share, [1.0, (1 / 3 + 1 + 2 / 5) / 3, (1 / 3 + 1 + 1 / 5) / 3, 0.0])      # tasks count alike
    assert (profile.low <= profile.share).all()
    assert (profile.share <= profile.high).all()
    assert profile.low[0] == profile.high[0] == 1.0
    assert profile.low[-1] == profile.high[-1] == 0.0
    assert performance_profile(RAGGED, 2.0).share.shape == (1,)


# --- scores and curves of runs

ROWS = [{"steps": 100 * n, "episodes": 2.0, "return": float(x)} for n, x in enumerate([9, 1, 2, 3, 4, 5], start=1)]
QUIET = {"steps": 350, "episodes": 0.0}


def test_scores_of_a_run():
    rows = [*ROWS[:3], QUIET, *ROWS[3:], QUIET]
    assert final_score(rows) == 4.0                                # fewer than 10 iterations: all
    assert final_score(rows, last=3) == 4.0
    assert final_score(rows, last=1) == 5.0
    assert best_score(rows) == 9.0
    assert final_score([1.0, None, 2.0, 3.0], last=2) == 2.5
    assert best_score(np.array([1.0, 3.0, 2.0])) == 3.0
    assert final_score([{**row, "eval_return": 7.0} if n == 2 else row for n, row in enumerate(rows)], name="eval_return") == 7.0


@pytest.mark.parametrize(("rows", "message"), [
    ([], "rows has no iteration"), ([QUIET], "no iteration with a value of 'return'"),
    ([1.0, float("nan")], "rows must be finite, got nan"),
    ([*ROWS, {"steps": 700, "episodes": 3.0}], "got none in row 6 with 3 episodes"),
])
def test_runs_without_a_score(rows, message):
    for score in (final_score, best_score):
        with pytest.raises(ValueError, match=message):
            score(rows)
    with pytest.raises(ValueError, match="last must be at least 1"):
        final_score(ROWS, last=0)


def test_series_skips_iterations_without_episodes():
    steps, values = series([*ROWS[:2], QUIET])
    assert (steps.tolist(), values.tolist()) == ([100.0, 200.0], [9.0, 1.0])


def test_band_is_where_all_runs_have_data():
    first, second = ([0, 100, 200], [0.0, 1.0, 2.0]), ([50, 150], [1.0, 2.0])
    got = band([first, second], 3, interval="bootstrap")
    assert got.steps.tolist() == [50, 100, 150]
    np.testing.assert_allclose(got.middle, [0.75, 1.25, 1.75])
    np.testing.assert_allclose([got.low, got.high], [[0.5, 1.0, 1.5], [1.0, 1.5, 2.0]])      # two runs: one of them twice
    assert got.runs == 2
    assert band([first, second], [0, 60, 200]).steps.tolist() == [60]
    assert band([first, ([200, 300], [5.0, 6.0])]).steps.tolist() == [200]
    one = band([first], 5)
    assert (one.low, one.high, one.runs) == (None, None, 1)


def test_band_by_student_and_iqm():
    rng = np.random.default_rng(3)
    runs = [(np.arange(20), rng.normal(size=20)) for _ in range(8)]
    values = np.stack([values for _, values in runs])
    got = band(runs, np.arange(20), level=0.9)
    for n in range(20):
        assert (got.low[n], got.high[n]) == pytest.approx(mean_interval(values[:, n], 0.9))
    got = band(runs, np.arange(20), statistic="iqm")
    np.testing.assert_allclose(got.middle, stats.trim_mean(values, 0.25, axis=0))
    assert (got.low <= got.high).all()
    mean = band(runs, np.arange(20), interval="bootstrap", repeats=20_000)
    want = [bootstrap_interval(values[:, n], task_mean, repeats=20_000) for n in range(20)]
    np.testing.assert_allclose([mean.low, mean.high], np.transpose(want), rtol=1e-9)


def test_band_in_blocks_is_the_same(monkeypatch):
    runs = [series([{"steps": n, "return": math.sin(n + k)} for n in range(30)]) for k in range(4)]
    want = band(runs, 30, interval="bootstrap")
    monkeypatch.setattr(curves, "BLOCK", 7 * 2000 * 4)
    np.testing.assert_array_equal(band(runs, 30, interval="bootstrap").low, want.low)


def test_smoothing():
    values = np.random.default_rng(0).normal(size=12)
    for window in (2, 3, 5, 30):
        want = [values[max(0, n - (window - 1) // 2):n + window // 2 + 1].mean() for n in range(12)]
        np.testing.assert_allclose(moving_mean(values, window), want)
    np.testing.assert_array_equal(moving_mean(values, 1), values)
    np.testing.assert_allclose(band([(np.arange(12), values)], np.arange(12), smooth=3).middle, moving_mean(values, 3))


GOOD = ([0, 1, 2], [0.0, 1.0, 2.0])


@pytest.mark.parametrize(("runs", "options", "message"), [
    ([], {}, "curves has no runs"), ([GOOD, ([0, 1], [1.0])], {}, r"curves\[1\] must have a value for each step, got 2 steps and 1 values"),
    ([([0, 1, 1], [0.0, 1.0, 2.0])], {}, r"steps of curves\[0\] must increase, got 1 and then 1"),
    ([([0, 1], [0.0, float("nan")])], {}, r"values of curves\[0\] must be finite, got nan"),
    ([([], [])], {}, r"steps of curves\[0\] has no values"),
    ([GOOD, ([5, 6], [0.0, 0.0])], {}, "env steps in common, got a start at 5 and an end at 2"),
    ([[1.0, 2.0, 3.0]], {}, "must be .steps, values."),
    ([GOOD], {"points": 1}, "points must be at least 2"), ([GOOD], {"points": [7.0]}, "points must have env steps from 0 to 2"),
    ([GOOD], {"statistic": "median"}, "'median'"), ([GOOD], {"interval": "std"}, "'std'"), ([GOOD], {"smooth": 0}, "at least 1, got 0"),
    ([GOOD], {"statistic": "iqm", "interval": "t"}, "interval='t' is for means"),
])
def test_bad_curves_are_named(runs, options, message):
    with pytest.raises(ValueError, match=message):
        band(runs, **options)
