"""The page: every number of the report is on it, and no text of a user becomes HTML."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser

import pytest

pytest.importorskip("jinja2")

from hadamem.reports.content import Cell, Figure, Report, Section, Series, Table
from hadamem.reports.data import to_data
from hadamem.reports.html import prose, render, write_html
from hadamem.reports.text import fixed

from .demo import EMPTY, EVIL, make_report


class Page(HTMLParser):
    """Cells by row, the embedded data, and all elements."""

    def __init__(self, text: str):
        super().__init__()
        self.rows: list[list[dict]] = []
        self.elements: list[tuple[str, dict]] = []
        self.data = ""
        self.words = ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append(dict(attrs) | {"text": ""})
        if tag in ("td", "script", "style"):
            self.inside = f"{tag} {dict(attrs).get('id', '')}"

    def handle_endtag(self, tag):
        if tag in ("td", "script", "style"):
            self.inside = ""

    def handle_data(self, data):
        if self.inside == "script data":
            self.data += data
        elif self.inside.startswith("td"):
            self.rows[-1][-1]["text"] += data
        if not self.inside.startswith(("script", "style")):
            self.words += data


@pytest.fixture(scope="module")
def report():
    return make_report()


@pytest.fixture(scope="module")
def page(report):
    return Page(render(report))


def test_every_cell_is_on_the_page(report, page):
    want = [list(row) for item in report.items if isinstance(item, Table) for row in item.rows]
    got = [row for row in page.rows if row]
    assert len(got) == len(want)
    for want_row, got_row in zip(want, got, strict=True):
        for entry, td in zip(want_row, got_row, strict=True):
            if isinstance(entry, Cell):
                check_cell(entry, td)
            elif isinstance(entry, str):
                assert td["text"] == td["data-sort"] == entry
            else:
                assert float(td["data-sort"]) == entry


def check_cell(cell, td):
    if cell.value is None or not math.isfinite(cell.value):
        assert td["data-sort"] == ""
        assert (cell.note or "not a finite number") in td["text"]
        return
    assert float(td["data-sort"]) == cell.value                      # in full precision
    assert td["text"].split()[0] == fixed(cell.value, cell.digits)
    assert (f"± {fixed(cell.std, cell.digits)}" if cell.std is not None else fixed(cell.low, cell.digits)) in td["text"]
    assert fixed(cell.low, cell.digits + 1) in td["data-tip"]
    if cell.paper is not None:
        assert f"paper {fixed(cell.paper, cell.digits)}" in td["text"]
        assert fixed(cell.difference, cell.digits, sign=True) in td["text"]
        assert ("✓" in td["text"]) is cell.agrees


def test_every_number_of_the_figures_is_in_the_page(report, page):
    figures = json.loads(page.data)["figures"]
    want = {item["name"]: item for section in to_data(report)["sections"] for item in section["items"] if item["type"] != "table"}
    assert figures == want
    for item in report.items:
        if isinstance(item, Figure) and item.name.startswith("curves"):
            assert [series["y"] for series in figures[item.name]["series"]] == [list(series.y) for series in item.series]


def test_texts_of_users_stay_texts(page):
    assert page.words.count(EVIL) >= 8
    assert [tag for tag, _ in page.elements if tag in ("img", "b", "iframe")] == []
    assert [attrs for tag, attrs in page.elements if tag == "script"] == [{"type": "application/json", "id": "data"}, {}]
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert "<" not in page.data


def test_the_page_loads_nothing(page):
    for _, attrs in page.elements:
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
    policy = next(attrs["content"] for tag, attrs in page.elements if attrs.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_prose():
    assert prose("a **b** c\n\n`<x> **y**`\n\n\n") == ("<p>a <strong>b</strong> c</p>\n<p><code>&lt;x&gt; **y**</code></p>")
    assert prose("") == ""
    assert prose("**a `b` ** <i>") == "<p>**a <code>b</code> ** &lt;i&gt;</p>"


@pytest.mark.parametrize("report", EMPTY, ids=lambda report: report.title)
def test_reports_without_results(report, tmp_path):
    path = write_html(report, tmp_path / "new" / "index.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert report.title in page.words
    json.loads(page.data)
    assert [other.name for other in path.parent.iterdir()] == ["index.html"]      # no temporary file is left


def test_toggles_are_for_memories_and_labels_of_several_figures():
    figures = [Figure(name, name, "x", "y", [Series(label, [1], [1.0]) for label in labels] + [Series("paper", [1], [1.0], dashed=True)])
               for name, labels in (("a", ["gru", "mine", "once"]), ("b", ["mine"]))]
    page = Page(render(Report("r", "", [Section("s", "", figures)])))
    assert [attrs["data-label"] for _, attrs in page.elements if attrs.get("class") == "toggle"] == ["gru", "mine"]


def test_figures_of_a_group_share_a_block(page):
    blocks = [attrs["id"] for tag, attrs in page.elements if tag == "figure"]
    assert "item-curves-0" in blocks
    assert "item-curves-1" not in blocks
    options = [attrs["value"] for tag, attrs in page.elements if tag == "option"]
    assert options[:12] == [f"curves-{i}" for i in range(12)]
