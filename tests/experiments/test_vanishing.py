"""Products of C in episodes of untrained and briefly trained agents."""

from __future__ import annotations

import math

import pytest

from hadamem.experiments.studies import vanishing

from .studies import run

pytestmark = pytest.mark.slow      # it trains agents for a moment

@pytest.fixture(scope="module")
def found():
    return run(vanishing.make(quick=True))


def last(found, design, name, stage="untrained"):
    return found[0].measures[f"{design}-{stage}"][name][-1]


def test_designs_differ_as_they_must(found):
    assert last(found, "fixed-C", "median") < 1e-20
    assert last(found, "random-C", "median") == pytest.approx(math.exp(-0.0303 * 103), rel=0.2)      # exp(t E[log C]), z std 0.25
    assert last(found, "no-calibration", "median") == last(found, "no-calibration", "mean") == 1
    assert 0.5 < last(found, "random-theta", "median") < 1.2
    assert abs(last(found, "zero-drift", "mean_log")) < abs(last(found, "random-C", "mean_log")) / 20
    assert last(found, "fixed-theta", "mean") > 100 * last(found, "random-theta", "mean")


def test_ours_starts_at_one_and_learns_another(found):
    assert last(found, "shm", "mean") == 1
    assert last(found, "shm", "mean", "trained") != 1


def test_a_learned_drift_starts_at_none(found):
    assert found[0].measures["learned-drift-untrained"] == found[0].measures["zero-drift-untrained"]
    assert last(found, "learned-drift", "mean_log", "trained") != last(found, "zero-drift", "mean_log", "trained")


def test_figures_and_tables(found):
    results, sections = found
    assert [section.title for section in sections] == ["Untrained agents", "Trained agents"]
    for section in sections:
        table, *figures = section.items
        assert len(table.rows) == len(vanishing.DESIGNS)
        assert [len(figure.series) for figure in figures] == [len(vanishing.DESIGNS)] * 3
        assert all(y > 0 for figure in figures for series in figure.series for y in series.y)
    assert results.measures["fixed-C-untrained"]["steps"] == 103
