"""What reports are made of: names, cells, and errors that say what is wrong."""

import math

import numpy as np
import pytest

from hadamem.reports.content import Cell, Figure, HeatMap, Report, Section, Series, Table, make_name
from hadamem.reports.data import cell_data
from hadamem.reports.text import MINUS, VERDICTS, cell_text, fixed, general


@pytest.mark.parametrize("name", ["", "a/b", "../up", "-x", "a b", "ä", "x.png"])
def test_names_that_cannot_be_files(name):
    for kind, rest in ((Table, ([], [])), (Figure, ("x", "y", [])), (HeatMap, ("x", "y", np.eye(2)))):
        with pytest.raises(ValueError, match="name must be letters"):
            kind(name, "title", *rest)


def test_two_items_with_one_name():
    table, figure = Table("Scores", "t", [], []), Figure("scores", "t", "x", "y", [])
    with pytest.raises(ValueError, match="named 'scores'"):
        Report("r", "", [Section("a", items=[table]), Section("b", items=[figure])])


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Table("t", "t", ["a", "b"], [["x"]]), "2 columns, got a row of 1"),
    (lambda: Series("s", [1, 2], [1.0]), "y has 1 values for 2 of x"),
    (lambda: Series("s", [1], [1.0], [0.5, 0.6]), "low has 2 values for 1 of x"),
    (lambda: Figure("f", "t", "x", "y", [], kind="pie"), "kind must be one of line, bar, points, got 'pie'"),
    (lambda: HeatMap("h", "t", "x", "y", np.zeros(3)), r"must be a matrix \[rows, columns\], got shape \[3\]"),
    (lambda: HeatMap("h", "t", "x", "y", np.zeros((2, 3)), x_ticks=["a", "b"]), "x_ticks has 2 texts for 3"),
])
def test_parts_that_do_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_name_from_any_text():
    assert make_name("curves", "popgym/Auto encode:Easy") == "curves-popgym-Auto-encode-Easy"
    for text in ("", "///", "日本", "x" * 500):
        Table(make_name(text), "t", [], [])


@pytest.mark.parametrize(("paper", "verdict"), [(1.0, "within"), (0.4, "above"), (1.6, "below"), (0.5, "within"), (None, "")])
def test_where_the_papers_number_lies(paper, verdict):
    text = cell_text(cell_data(Cell(1.0, 0.1, 0.5, 1.5, 3, paper)))
    assert text.verdict == verdict
    assert (VERDICTS[verdict][1] in text.tip) if verdict else ("paper" not in text.tip)


def test_a_cell_in_words():
    text = cell_text(cell_data(Cell(-1.25, 0.5, -2.0, -0.5, 3, -1.0, 0.2, "one seed failed", digits=2)))
    assert (text.value, text.spread) == (f"{MINUS}1.25", "± 0.50")
    assert (text.paper, text.difference) == (f"{MINUS}1.00 ± 0.20", f"{MINUS}0.25")
    assert "over 3 seeds" in text.tip
    assert f"[{MINUS}2.000, {MINUS}0.500]" in text.tip
    assert text.tip.endswith("one seed failed")
    assert cell_text(cell_data(Cell(1.0, low=0.5, high=1.5))).spread == "[0.5, 1.5]"
    assert "no interval to compare" in cell_text(cell_data(Cell(1.0, paper=1.1))).tip


def test_a_cell_without_a_value_says_why():
    assert cell_text(cell_data(Cell(None))).note == "missing"
    text = cell_text(cell_data(Cell(None, low=0.0, high=1.0, paper=0.5, note="2 of 3 seeds")))
    assert (text.value, text.spread, text.paper, text.verdict, text.note) == ("", "", "0.5", "", "2 of 3 seeds")
    for value in (math.nan, math.inf, -math.inf):
        data = cell_data(Cell(value, low=0.0, high=1.0, paper=0.5))
        assert (data["value"], data["difference"], data["agrees"]) == (None, None, None)
        assert data["note"] == f"not a finite number: {value}"


def test_numbers_in_words():
    assert fixed(-0.04, 1) == "0.0"
    assert fixed(0.04, 1, sign=True) == "0.0"
    assert fixed(-10.04, 1, sign=True) == f"{MINUS}10.0"
    assert fixed(100, 0) == "100"
    assert fixed(-250216.4, 0) == f"{MINUS}250,216"
    assert general(15_000_000) == "15,000,000"
    assert general(-0.000123456) == f"{MINUS}0.0001235"
