"""Links and file references in the docs lead to existing files, and no data file is orphaned."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = [page for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md") if (page := ROOT / name).exists()]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
MEASUREMENTS = sorted((ROOT / "docs" / "measurements").rglob("*.*"))


def prose(page):
    """The page without its code blocks, which may hold brackets of any kind."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """The anchors that GitHub gives to the page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def name(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_resolve(page):
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{name(page)} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(page)} links to {link}, but {name(target.resolve())} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_named_in_the_text_exist(page):
    for path in re.findall(r"`((?:docs|src|tests|benchmarks|examples)/[\w./-]+)`", prose(page)):
        assert (ROOT / path).exists(), f"{name(page)} names {path}"


@pytest.mark.parametrize("path", MEASUREMENTS, ids=name)
def test_every_measurement_is_cited_and_says_when_it_was_made(path):
    assert any(path.name in prose(page) for page in PAGES), f"{name(path)} is cited nowhere: cite it beside its table, or remove it"
    if path.suffix == ".json":
        text = path.read_text(encoding="utf-8")
        json.loads(text)
        for key in ("date", "commit"):
            assert f'"{key}":' in text, f"{name(path)} needs the {key} of the measurement"


def test_every_result_is_a_run_record_or_cited():
    for path in (ROOT / "docs" / "results").iterdir():
        assert path.match("popgym-*.json") or any(path.name in prose(page) for page in PAGES), f"{name(path)} is cited nowhere"
