"""Learning curves: which rows count, how they are smoothed, and that a PNG is written."""

import math

import numpy as np
import pytest

from hadamem.view.curves import draw_curves, series, short, smooth

pytest.importorskip("matplotlib")


def rows(values, **more):
    return [{"steps": 100 * (i + 1), "episodes": 4, "return": value, **more} for i, value in enumerate(values)]


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_rows_without_finished_episodes_are_left_out():
    mixed = [{"steps": 100, "episodes": 0}, *rows([1.0, math.nan, 3.0])]
    steps, values = series(mixed, "return")
    assert (steps.tolist(), values.tolist()) == ([100, 300], [1.0, 3.0])
    assert len(series(mixed, "success")[0]) == 0


def test_smoothing_is_a_mean_around_each_point():
    values = np.random.default_rng(0).normal(size=101)
    got = smooth(values, share=0.1)                     # 6 values to both sides
    for i in (0, 3, 50, 98, 100):
        np.testing.assert_allclose(got[i], values[max(0, i - 6):i + 7].mean())
    np.testing.assert_allclose(smooth(np.full(30, 2.5)), 2.5)
    assert smooth(np.array([1.0])).tolist() == [1.0]


@pytest.mark.parametrize(("x", "text"), [(0, "0"), (400, "400"), (4000, "4k"), (1_500_000, "1.5M"), (2e9, "2G")])
def test_compact_numbers_of_steps(x, text):
    assert short(x) == text


@pytest.mark.parametrize("values", [[], [1.0], [0.5] * 5, list(range(300))], ids=["none", "one", "flat", "many"])
def test_any_curve_can_be_drawn(values, tmp_path):
    path = draw_curves({"shm": rows(values), "none": rows(values, success=0.5)}, tmp_path / "new" / "curve.png", "TMaze", "seed 0")
    assert is_png(path)
    assert [p.name for p in path.parent.iterdir()] == ["curve.png"]      # no temporary file is left


def test_a_curve_is_replaced(tmp_path):
    path = tmp_path / "curve.png"
    path.write_text("old")
    assert is_png(draw_curves({"shm": rows([1.0, 2.0])}, path, "TMaze"))


def test_evaluations_are_drawn_beside_the_training(tmp_path, monkeypatch):
    """With a legend, as soon as there is one; a run that has finished evaluations but no training episodes is drawn as well."""
    from matplotlib.axes import Axes

    drawn, legends, plot = [], [], Axes.plot

    def record(self, x, y, **how):
        drawn.append((how.get("label"), list(x), list(y)))
        return plot(self, x, y, **how)

    monkeypatch.setattr(Axes, "plot", record)
    monkeypatch.setattr(Axes, "legend", lambda self, **how: legends.append(len(self.lines)))
    draw_curves({"shm": rows([1.0, 2.0])}, tmp_path / "curve.png", "TMaze")
    assert not legends
    drawn.clear()
    mixed = rows([1.0, 2.0, 3.0])
    mixed[1] |= {"eval_return": 2.5, "eval_success": 0.75}
    assert is_png(draw_curves({"shm": mixed}, tmp_path / "curve.png", "TMaze"))
    assert [(label, x) for label, x, _ in drawn if label] == [("shm, training", [100, 200, 300]), ("shm, evaluation", [200]),
                                                              ("shm, evaluation", [200])]
    assert [y for label, _, y in drawn if label == "shm, evaluation"] == [[2.5], [0.75]]
    assert legends == [3]
    draw_curves({"shm": [{"steps": 100, "episodes": 0, "eval_return": 1.0}]}, tmp_path / "curve.png", "TMaze")
    assert legends == [3, 1]
