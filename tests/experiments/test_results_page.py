"""The tables of docs/results.md and the README are those of the records in docs/results."""

import re

import pytest

pytest.importorskip("safetensors")
pytest.importorskip("matplotlib")

import results_page  # of benchmarks/


@pytest.fixture(scope="module")
def tables():
    return results_page.make_tables()


@pytest.mark.parametrize("page", results_page.PAGES, ids=lambda page: page.name)
def test_pages_have_the_tables_of_the_records(page, tables):
    text, names = page.read_text(encoding="utf-8"), results_page.PAGES[page]
    for name in names:
        assert f"\n\n{tables[name]}\n<!-- end -->" in text, f"{name} is not up to date; PYTHONPATH=src python benchmarks/results_page.py"
    assert results_page.fill(text, names, tables) == text


def test_every_table_has_a_page(tables):
    assert sorted(tables) == sorted(name for names in results_page.PAGES.values() for name in names)


def test_a_cell_is_the_mean_of_its_records(tables):
    row = next(line for line in tables["popgym-fair"].splitlines() if line.startswith("| RepeatPrevious-Easy |"))
    found = [100 * results_page.read_record(results_page.RECORDS / f"popgym-fair-RepeatPreviousEasy-shm-{seed}.json")["final"]["return"]
             for seed in (0, 1)]
    assert float(re.search(r"\| \**(-?[\d.]+) ± ", row)[1]) == pytest.approx(sum(found) / 2, abs=0.051)


def test_a_page_without_one_of_its_tables_is_an_error(tables):
    with pytest.raises(ValueError, match=r"the page must have one block for each of averages, got none"):
        results_page.fill("# Results\n", ("averages",), tables)
