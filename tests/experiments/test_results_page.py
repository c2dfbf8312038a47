"""The tables of docs/results.md are those of the records in docs/results."""

import re

import pytest

pytest.importorskip("safetensors")

results_page = pytest.importorskip("results_page")      # benchmarks/

PAGE = results_page.PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tables():
    return results_page.make_tables()


def test_the_page_has_the_tables_of_the_records(tables):
    for name, table in tables.items():
        assert f"<!-- {name}: " in PAGE
        assert f"\n\n{table}\n<!-- end -->" in PAGE, f"{name} and its records disagree; PYTHONPATH=src python benchmarks/results_page.py"
    assert results_page.fill(PAGE, tables) == PAGE


def test_a_cell_is_the_mean_of_its_records(tables):
    row = next(line for line in tables["popgym-fair"].splitlines() if line.startswith("| RepeatPrevious-Easy |"))
    found = [100 * results_page.read_record(results_page.RECORDS / f"popgym-fair-RepeatPreviousEasy-shm-{seed}.json")["final"]["return"]
             for seed in (0, 1)]
    assert float(re.search(r"\| \**(-?[\d.]+) ± ", row)[1]) == pytest.approx(sum(found) / 2, abs=0.051)


def test_a_page_without_one_of_the_tables_is_an_error(tables):
    with pytest.raises(ValueError, match=r"the page must have one block for each of popgym-fair, .*, got none"):
        results_page.fill("# Results\n", tables)
