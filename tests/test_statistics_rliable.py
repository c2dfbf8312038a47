"""hadamem's statistics against rliable: numbers that tests/data/rliable/record.py wrote, and the library itself if it is installed."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from hadamem.statistics import bootstrap_interval, iqm, performance_profile, probability_of_improvement, task_mean

pytest.importorskip("scipy.stats")

FOLDER = Path(__file__).parent / "data" / "rliable"
RECORDED = json.loads((FOLDER / "recorded.json").read_text(encoding="utf-8"))
SCORES, PAIRS, THRESHOLDS = RECORDED["scores"], RECORDED["pairs"], RECORDED["thresholds"]


def assert_same_interval(make, want, margin=0.01):
    """want: a 95 % interval from other draws. Its ends lie between those of our intervals at 94 % and 96 %.

    margin: in probability, about five deviations of a percentile of 50,000 draws, counted for both sides.
    """
    wide, narrow = (np.array(make(0.95 + sign * margin)) for sign in (1, -1))
    assert (wide[0] - 1e-9 <= want[0]).all()
    assert (want[0] <= narrow[0] + 1e-9).all()
    assert (narrow[1] - 1e-9 <= want[1]).all()
    assert (want[1] <= wide[1] + 1e-9).all()


@pytest.mark.parametrize("name", SCORES)
def test_aggregates(name):
    scores, want = np.array(SCORES[name]["scores"]), SCORES[name]
    assert iqm(scores) == pytest.approx(want["iqm"], rel=1e-12)
    assert task_mean(scores) == pytest.approx(want["mean"], rel=1e-12)
    assert iqm(list(scores.T)) == iqm(scores)
    for statistic, key in ((iqm, "iqm interval"), (task_mean, "mean interval")):
        assert_same_interval(lambda level, f=statistic: bootstrap_interval(scores, f, level, repeats=RECORDED["reps"]), np.array(want[key]))


@pytest.mark.parametrize("name", SCORES)
def test_profiles(name):
    scores, want = np.array(SCORES[name]["scores"]), SCORES[name]
    profile = performance_profile(scores, THRESHOLDS)
    np.testing.assert_allclose(profile.share, want["profile"], rtol=1e-12)

    def make(level):
        wide = performance_profile(scores, THRESHOLDS, level, repeats=20_000)
        return wide.low, wide.high

    assert_same_interval(make, np.array(want["band"]), margin=0.03)      # recorded from 2000 draws, rliable's default


@pytest.mark.parametrize("name", PAIRS)
def test_probability_of_improvement(name):
    x, y, want = (np.array(PAIRS[name][key]) for key in ("x", "y", "interval"))
    assert probability_of_improvement(x, y).value == pytest.approx(PAIRS[name]["probability"], rel=1e-12)
    assert_same_interval(lambda level: probability_of_improvement(x, y, level, repeats=20_000).interval, want, margin=0.02)


@pytest.fixture(scope="module")
def record():
    """The script that recorded the numbers, as a module."""
    pytest.importorskip("rliable.library")
    spec = importlib.util.spec_from_file_location("record_rliable", FOLDER / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_library_itself(record):
    rng = np.random.default_rng(7)
    x, y = rng.normal(0.3, 1, (6, 4)), rng.normal(0, 1, (5, 4)).round(1)
    assert iqm(x) == pytest.approx(record.metrics.aggregate_iqm(x), rel=1e-12)
    assert task_mean(x) == pytest.approx(record.metrics.aggregate_mean(x), rel=1e-12)
    assert probability_of_improvement(x, y).value == pytest.approx(record.metrics.probability_of_improvement(x, y), rel=1e-12)
    profiles, _ = record.library.create_performance_profile({"x": x}, np.array(THRESHOLDS), reps=10)
    np.testing.assert_allclose(performance_profile(x, THRESHOLDS).share, profiles["x"], rtol=1e-12)
    np.random.seed(1)      # noqa: NPY002  # rliable draws from the global generator
    _, interval = record.estimate(x, record.metrics.aggregate_iqm, reps=5000)
    assert_same_interval(lambda level: bootstrap_interval(x, iqm, level, repeats=20_000), np.array(interval), margin=0.025)


def test_the_recorded_arrays_are_those_of_the_script(record):
    for name, scores in record.arrays().items():
        np.testing.assert_array_equal(scores, SCORES[name]["scores"])
    for name, (x, y) in record.pairs().items():
        np.testing.assert_array_equal(x, PAIRS[name]["x"])
        np.testing.assert_array_equal(y, PAIRS[name]["y"])
