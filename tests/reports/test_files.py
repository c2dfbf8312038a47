"""The files of a report: which there are, and that the numbers in them are those of the report."""

from __future__ import annotations

import csv
import io
import json
import math
import re

import numpy as np
import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from hadamem.reports.content import Cell, Figure, HeatMap, Report, Section, Series, Table
from hadamem.reports.data import CELL_FIELDS, item_data
from hadamem.reports.files import write_report
from hadamem.reports.tables import escape, to_csv, to_latex, to_markdown

from .demo import EVIL, MEMORIES, TASKS, make_report

SMALL = Report("small", "", [Section("s", "", [
    Table("t", "a table", ["task", "shm"], [["one", Cell(1.0, 0.5, 0.1, 1.9, 3, 2.0)]]),
    Figure("f", "a figure", "x", "y", [Series("shm", [1, 2], [1.0, 2.0])]), HeatMap("h", "a map", "x", "y", np.eye(2))])])


def test_all_files_of_a_report(tmp_path):
    paths = write_report(SMALL, tmp_path / "new" / "folder")
    names = [str(path.relative_to(tmp_path / "new" / "folder")) for path in paths]
    assert names == ["index.html", "report.json", "tables/t.csv", "tables/t.tex", "tables/t.md", "figures/f.png", "figures/f.svg",
                     "figures/h.png", "figures/h.svg"]
    assert sorted(path for path in (tmp_path / "new").rglob("*") if path.is_file()) == sorted(paths)      # no temporary file is left
    page = paths[0].read_text(encoding="utf-8")
    assert re.findall(r'<a href="([^#"]+)">', page) == [name for name in names if "/" in name]


def test_some_formats(tmp_path):
    assert [path.name for path in write_report(SMALL, tmp_path, ["json"])] == ["report.json"]
    assert [path.name for path in write_report(SMALL, tmp_path, "csv")] == ["t.csv"]
    with pytest.raises(ValueError, match=r"formats must be some of html, png, .*, got 'pdf'"):
        write_report(SMALL, tmp_path / "none", ["json", "pdf"])
    assert not (tmp_path / "none").exists()


def test_files_are_replaced_and_the_same_report_gives_the_same_bytes(tmp_path):
    first = {path: path.read_bytes() for path in write_report(SMALL, tmp_path)}
    assert {path: path.read_bytes() for path in write_report(SMALL, tmp_path)} == first


def test_json_has_every_cell(tmp_path):
    report = make_report()
    write_report(report, tmp_path, ["json"])
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    items = {item["name"]: item for section in data["sections"] for item in section["items"]}
    table = next(item for item in report.items if item.name == "scores")
    assert data["facts"] == report.facts
    for row, got in zip(table.rows, items["scores"]["rows"], strict=True):
        for cell, found in zip(row[1:], got[1:], strict=True):
            is_good = cell.value is not None and math.isfinite(cell.value)
            for name in ("value", "difference", "agrees"):
                assert found[name] == (getattr(cell, name) if is_good else None)
            for name in ("std", "low", "high", "seeds", "paper", "paper_std"):
                assert found[name] == getattr(cell, name)
    curve = next(item for item in report.items if item.name == "curves-3")
    assert items["curves-3"]["series"][2]["high"] == list(curve.series[2].high)
    assert np.array(items["large"]["values"]).shape == (128, 128)


def test_csv_has_every_cell_in_full_precision():
    table = next(item for item in make_report().items if item.name == "scores")
    lines = list(csv.DictReader(io.StringIO(to_csv(item_data(table)))))
    assert list(lines[0]) == ["task", "column", *CELL_FIELDS]
    assert [(line["task"], line["column"]) for line in lines] == [(task, memory) for task in TASKS for memory in MEMORIES]
    cells = [cell for row in table.rows for cell in row[1:]]
    for line, cell in zip(lines, cells, strict=True):
        if cell.value is not None and math.isfinite(cell.value):
            assert float(line["value"]) == cell.value
            assert float(line["std"]) == cell.std
            assert int(line["seeds"]) == 3
            assert line["paper"] == ("" if cell.paper is None else repr(cell.paper))
            assert line["difference"] == ("" if cell.difference is None else repr(cell.difference))
        else:
            assert line["value"] == ""
            assert line["note"]


def test_csv_of_other_tables():
    plain = Table("p", "t", ["a", "b, c"], [["x\"y", 1], [None, 2.5]])
    assert list(csv.reader(io.StringIO(to_csv(item_data(plain))))) == [["a", "b, c"], ["x\"y", "1"], ["", "2.5"]]
    mixed = Table("m", "t", ["task", "runs", "shm"], [["x", 3, Cell(1.5)], ["y", 4, 2.5], ["z", 5, None]])
    lines = list(csv.DictReader(io.StringIO(to_csv(item_data(mixed)))))
    assert [[line[name] for name in ("task", "runs", "column", "value")] for line in lines] == [["x", "3", "shm", "1.5"],
                                                                                                 ["y", "4", "shm", "2.5"]]


def test_latex():
    table = Table("t", "R & D\n50 %", ["task_id", "100 %"], [
        ["A&B", Cell(-1.25, 0.5, -2, 0, 3, 1.0, digits=2)], ["{x}~^\\", Cell(None, note="2 of 3 seeds")], ["[5] $x$ #1", 1234567]])
    assert to_latex(item_data(table)) == r"""% R & D 50 %
\begin{tabular}{lr}
\hline
task\_id & 100 \% \\
\hline
A\&B & $-$1.25 $\pm$ 0.50 (paper 1.00) \\
\{x\}\textasciitilde{}\textasciicircum{}\textbackslash{} & -- 2 of 3 seeds \\
{[}5{]} \$x\$ \#1 & 1,234,567 \\
\hline
\end{tabular}
"""
    assert not re.search(r"(?<!\\)[&%$#_]", escape(EVIL + "&%$#_"))


def test_markdown():
    table = Table("t", "title", ["task_id", "a|b", "*c*", "_d"], [
        ["x", Cell(-1.25, 0.5, -2, 0, 3, 1.0, digits=2), Cell(None, paper=3.0, note="missing"), Cell(-1.5)],
        ["<b>[y]\n`", 12345, None, Cell(2.0, low=1.0, high=3.0)]])
    assert to_markdown(item_data(table)) == r"""| task_id | a\|b | \*c\* | \_d |
| --- | ---: | ---: | ---: |
| x | −1.25 ± 0.50 (1.00) | – (3.0) | −1.5 |
| \<b\>\[y\] \` | 12,345 |  | 2.0 [1.0, 3.0] |
"""
    assert to_markdown(item_data(Table("e", "empty", [], []))) == ""


def test_markdown_marks_the_best_of_a_row():
    rows = [["x", Cell(99.54), Cell(100.0), Cell(99.4)], ["y", Cell(1.0), Cell(None), 3]]
    marked = to_markdown(item_data(Table("t", "title", ["task", "a", "b", "c"], rows)), best=True)
    assert marked.splitlines()[2:] == ["| x | **99.5** | **100.0** | 99.4 |", "| y | 1.0 | – | 3 |"]
    assert to_markdown(Table("t", "", ["a"], [["`x`"]]).__dict__, verbatim=(0,)).splitlines()[2] == "| `x` |"
