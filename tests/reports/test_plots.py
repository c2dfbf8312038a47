"""Figures as PNG and SVG: every kind can be drawn, in the colours of the palette."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from hadamem.reports.content import Figure, HeatMap, Series
from hadamem.reports.data import find_styles
from hadamem.reports.palette import KNOWN
from hadamem.reports.plots import draw, draw_figure, draw_heat_map

from .demo import EVIL, make_report

NAMES = ["bars", "iqm", "growth", "one", "calibration", "improvement", "evil", "curves-4"]
ODD = {
    "no series": Figure("f", "t", "x", "y", []),
    "no points": Figure("f", "t", "x", "y", [Series("shm", [], [])]),
    "nan": Figure("f", "t", "x", "y", [Series("shm", [1, 2, None], [math.nan, None, 3.0], [math.nan] * 3, [math.inf] * 3)]),
    "one point": Figure("f", "t", "x", "y", [Series("shm", [1], [1.0])]),
    "zeros on a log axis": Figure("f", "t", "x", "y", [Series("shm", [0, 1, 10], [0.0, 1.0, -1.0])], x_log=True, y_log=True),
    "bars on a log axis": Figure("f", "t", "x", "y", [Series("shm", ["a", "b"], [1.0, 100.0])], kind="bar", y_log=True),
    "bars over numbers": Figure("f", "t", "x", "y", [Series("shm", [1, 2, 4], [1.0, -1.0, 2.0])], kind="bar"),
    "signs of other programs": Figure("f", "$\\frac{$", "$x$", "_y", [Series(label, [1], [1.0]) for label in ("_hidden", "$a", "日本")]),
    "long texts": Figure("f", EVIL * 9, EVIL * 9, EVIL * 9, [Series(EVIL * 9, [1], [1.0]), Series("b", [1], [1.0])]),
    "empty map": HeatMap("h", "t", "x", "y", np.full((2, 2), np.nan)),
    "flat map": HeatMap("h", "t", "x", "y", np.ones((2, 3)), centre=1.0),
    "one entry": HeatMap("h", "t", "x", "y", np.ones((1, 1)), x_ticks=["a"], y_ticks=["b"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_figures_of_the_demonstration(name, tmp_path):
    figure = next(item for item in make_report().items if item.name == name)
    assert draw(figure, tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in draw(figure, tmp_path / "a.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "new"]


@pytest.mark.parametrize("case", ODD)
def test_odd_figures(case, tmp_path):
    assert draw(ODD[case], tmp_path / "a.png").stat().st_size > 1000


def test_other_endings(tmp_path):
    with pytest.raises(ValueError, match=r"must end in .png or .svg, got 'a.pdf'"):
        draw(ODD["one point"], tmp_path / "a.pdf")


def test_lines_have_the_values_and_the_colours_of_their_memories():
    figure = Figure("f", "t", "steps", "return", [Series("gru", [1, 2, 3], [1.0, 4.0, 9.0], [0.5, 3.0, 8.0], [1.5, 5.0, 10.0]),
                                                  Series("paper", [0], [5.0], dashed=True)])
    ax = draw_figure(figure, find_styles([figure])).axes[0]
    line, reference = ax.lines
    assert line.get_xydata().tolist() == [[1, 1], [2, 4], [3, 9]]
    assert line.get_color() == KNOWN["gru"].colour
    assert reference.get_linestyle() == "--"
    assert set(reference.get_ydata()) == {5.0}
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("steps", "return")
    assert len(ax.collections) == 1                               # the band


def test_bars_of_one_category_stand_beside_each_other():
    figure = Figure("f", "t", "x", "y", [Series("a", ["p", "q"], [1.0, 2.0]), Series("b", ["q"], [3.0])], kind="bar")
    bars = draw_figure(figure, find_styles([figure])).axes[0].patches
    places = [bar.get_x() + bar.get_width() / 2 for bar in bars]
    assert places[0] == pytest.approx(0.0)                        # alone in its category
    assert places[1] + places[2] == pytest.approx(2.0)            # around the second
    assert places[1] + bars[1].get_width() / 2 <= places[2] - bars[2].get_width() / 2 + 1e-9


def test_a_centred_map_has_its_centre_in_the_middle_of_its_colours():
    image = draw_heat_map(HeatMap("h", "t", "x", "y", np.array([[0.9, 1.0], [1.0, 3.0]]), centre=1.0)).axes[0].images[0]
    assert image.get_clim() == (-1.0, 3.0)
    image = draw_heat_map(HeatMap("h", "t", "x", "y", np.array([[0.9, 1.0], [1.0, 3.0]]))).axes[0].images[0]
    assert image.get_clim() == (0.9, 3.0)
