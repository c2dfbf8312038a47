"""Tables and figures from runs: the numbers are those of `hadamem.statistics`, and half-finished studies can be shown."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hadamem import statistics
from hadamem.reports.content import Figure, HeatMap, Report, Section, Table
from hadamem.reports.curves import comparison, learning_curves, score_cell, score_table
from hadamem.reports.data import to_json

SCORES = {("a", "shm"): [0.8, 0.9, 0.7], ("a", "gru"): [0.5, 0.6, 0.4], ("b", "shm"): [0.6, 0.5, 0.7], ("b", "gru"): [0.6, 0.3, 0.2]}


def by_name(items):
    return {item.name: item for item in items}


def test_a_cell_from_seeds():
    cell = score_cell([1.0, 2.0, 3.0], paper=2.5, paper_std=0.1, digits=2)
    assert (cell.value, cell.std, cell.seeds, cell.note) == (2.0, 1.0, 3, "")
    assert (cell.low, cell.high) == statistics.mean_interval([1.0, 2.0, 3.0])
    assert cell.agrees
    one = score_cell([1.0], expected=3)
    assert (one.value, one.std, one.low, one.high, one.note) == (1.0, None, None, None, "1 of 3 seeds")


def test_cells_without_a_value():
    assert score_cell([]).note == "missing"
    assert score_cell([], expected=3, note="running").note == "0 of 3 seeds; running"
    broken = score_cell([1.0, math.nan], paper=1.0)
    assert (broken.value, broken.paper, broken.note) == (None, 1.0, "1 of 2 seeds not finite")


def test_a_table_of_scores():
    cells = {key: score_cell(values) for key, values in SCORES.items() if key != ("b", "gru")}
    table = score_table("scores", "Scores", cells)
    assert table.columns == ["task", "shm", "gru"]
    assert [row[0] for row in table.rows] == ["a", "b"]
    assert table.rows[0][2] is cells["a", "gru"]
    assert (table.rows[1][2].value, table.rows[1][2].note) == (None, "missing")
    assert score_table("scores", "Scores", {}).rows == []


def test_learning_curves_are_bands_over_seeds():
    rng = np.random.default_rng(0)
    runs = [(np.arange(1, 11) * 100, rng.normal(size=10)) for _ in range(3)]
    (figure,) = learning_curves({("a", "shm"): runs, ("a", "gru"): runs[:1]}, points=20, scale=100.0, references={"a": {"paper": 50.0}})
    want = statistics.band([(steps, 100 * values) for steps, values in runs], 20)
    shm, gru, paper = figure.series
    np.testing.assert_allclose([shm.x, shm.y, shm.low, shm.high], [want.steps, want.middle, want.low, want.high])
    assert gru.low is None
    assert (paper.dashed, paper.y) == (True, [50.0])
    assert figure.note.startswith("Mean over 1 to 3 seeds")


def test_learning_curves_of_runs_that_have_just_begun():
    late, early, nothing = ([500, 600], [1.0, 2.0]), ([100], [0.0]), ([], [])
    curves = {("a/x", "shm"): [late, early, nothing], ("a x", "shm"): [nothing], ("b", "gru"): [([1, 2, 3], [0.0, math.nan, 1.0])]}
    figures = learning_curves(curves)
    assert [figure.name for figure in figures] == ["curves-a-x-1", "curves-a-x-2", "curves-b"]
    assert [figure.group for figure in figures] == ["Learning curves"] * 3
    assert (figures[0].series[0].x[0], figures[0].series[0].x[-1]) == (500, 600)
    assert figures[1].series == []
    assert figures[2].series[0].y[-1] == 1.0
    assert learning_curves({}) == []


def test_a_comparison_has_the_numbers_of_the_statistics():
    items = by_name(comparison(SCORES))
    assert list(items) == ["comparison-iqm", "comparison-aggregates", "comparison-profiles", "comparison-improvement", "comparison-pairs"]
    shm, gru = [SCORES["a", "shm"], SCORES["b", "shm"]], [SCORES["a", "gru"], SCORES["b", "gru"]]
    series = items["comparison-iqm"].series[0]
    assert (series.label, series.y) == ("shm", [statistics.iqm(shm)])
    assert (series.low[0], series.high[0]) == statistics.bootstrap_interval(shm, statistics.iqm)
    mean = items["comparison-aggregates"].rows[1][2]
    assert (mean.value, mean.low) == (statistics.task_mean(gru), statistics.bootstrap_interval(gru, statistics.task_mean)[0])
    better = statistics.probability_of_improvement(shm, gru)
    assert items["comparison-improvement"].series[0].y == [better.value]
    assert items["comparison-pairs"].values[0, 1] == better.value
    assert items["comparison-pairs"].values[1, 0] == pytest.approx(1 - better.value)
    profile = items["comparison-profiles"].series[1]
    assert profile.y == statistics.performance_profile(gru, profile.x).share.tolist()
    assert (profile.y[0], profile.y[-1]) == (1.0, 0.0)


def test_a_comparison_leaves_out_tasks_that_are_not_finished():
    scores = SCORES | {("c", "shm"): [0.1], ("d", "shm"): [0.1], ("d", "gru"): [math.nan]}
    items = by_name(comparison(scores))
    assert items["comparison-iqm"].series[0].y == by_name(comparison(SCORES))["comparison-iqm"].series[0].y
    assert "Over 2 of 4 tasks: not every memory has finite results for c, d." in items["comparison-iqm"].note


def test_comparisons_of_little():
    assert comparison({}) == []
    assert comparison({("a", "shm"): [], ("a", "gru"): [math.nan]}) == []
    assert comparison({("a", "shm"): [1.0], ("b", "gru"): [1.0]}) == []
    one = comparison({("a", "shm"): [1.0]})
    assert [type(item) for item in one] == [Figure, Table, Figure]
    two = comparison({("a", "shm"): [1.0], ("a", "gru"): [1.0]})
    assert isinstance(two[-1], HeatMap)
    assert two[0].series[0].low is None                       # one seed: nothing is known about others
    to_json(Report("r", "", [Section("s", "", two)]))


def test_scores_on_the_scale_of_their_task():
    items = by_name(comparison({("a", "shm"): [10.0, 20.0], ("b", "shm"): [0.1, 0.2]}, ranges={"a": (0.0, 20.0), "b": (0.0, 0.2)}))
    assert items["comparison-iqm"].series[0].y == [pytest.approx(0.75)]
    with pytest.raises(ValueError, match="two different scores for task 'b'"):
        comparison({("b", "shm"): [1.0]}, ranges={"a": (0.0, 1.0)})
