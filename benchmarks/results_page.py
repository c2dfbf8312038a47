"""The tables of docs/results.md, and the figure of popgym-best, from the records in docs/results.

    PYTHONPATH=src python benchmarks/results_page.py

A table stands between the lines `<!-- NAME: ... -->` and `<!-- end -->` of the page, and is replaced there; the text around it is not.
`tests/experiments/test_results_page.py` fails if a table and its records disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_minutes
from hadamem.experiments.records import read_record
from hadamem.experiments.results import Results
from hadamem.experiments.sections import run_sections
from hadamem.experiments.studies import ablation, popgym_table
from hadamem.experiments.study import Study
from hadamem.reports.content import Table
from hadamem.reports.data import item_data
from hadamem.reports.tables import to_markdown
from hadamem.reports.text import MINUS

ROOT = Path(__file__).parents[1]
PAGE, RECORDS = ROOT / "docs" / "results.md", ROOT / "docs" / "results"
SEEDS = 5      # more than any cell has
BLOCK = re.compile(r"(?<=<!-- )(?P<name>[a-z-]+)(?P<about>: made by [^\n]*-->\n).*?(?=<!-- end -->)", re.DOTALL)

# The variants of popgym-ablation, in the words of the page.
SETTINGS = {
    "popgym-best": "`popgym-best`",
    "fair-lambda": "lambda 1 instead of 0.3",
    "no-rotary": "no rotary rows",
    "fair-lr": "learning rate of 5e-5, constant, instead of 5e-4 falling to 0",
    "fair-batch": "batches of 65,536 and 30 epochs instead of 16,384 and 8",
    "fair-limits": "clip 0.3 instead of 0.2, KL target 0.01 instead of 0.02 and no floor, value errors cut at 10 and not scaled",
    "fair-entropy": "no entropy bonus instead of 0.02",
    "narrow-input": "input of the memory 64 wide instead of 128",
}
CALIBRATIONS = {
    "popgym-best": "`popgym-best`: rotary rows, C from the first row of theta",
    "calibration-none": "C = 1 (`calibration=\"none\"`)",
    "rows-per-step": "a random row at every step",
    "neural-theta": "theta from a network",
    "rotary-keys": "keys of their own for the rotary rows",
    "no-rotary": "no rotary rows, C from the first row",
    "no-rotary-calibration-none": "no rotary rows, C = 1",
    "no-rotary-rows-per-step": "no rotary rows, a random row at every step",
    "rows-per-episode": "no rotary rows, a random row for each episode",
}


def make_tables() -> dict[str, str]:
    """Every table of the page as Markdown."""
    tables = {f"popgym-{protocol}": popgym(protocol) for protocol in ("fair", "release", "best")}
    tables["short-horizon"] = compared(("popgym-best", "actor-gamma-0-joint-previous-action"), ("shm", "gpt2", "linear_attention"))
    return tables | {"settings": changed(SETTINGS), "calibrations": changed(CALIBRATIONS), "gpu-minutes": minutes()}


def popgym(protocol: str) -> str:
    """Tasks down, memories to the right, the average last."""
    memories = popgym_table.BEST if protocol == "best" else popgym_table.MEMORIES
    return markdown(without_gaps(scores(popgym_table.make(protocol, seeds=SEEDS, memories=memories))), best=True)


def compared(variants: Sequence[str], memories: Sequence[str]) -> str:
    """Tasks down, and for each memory a column for every variant."""
    study = ablation.make(seeds=SEEDS, memories=memories, tasks=popgym_table.TASKS, variants=variants)
    table = scores(study)
    order = [table.columns.index(f"{variant}, {memory}") for memory in memories for variant in variants]
    heads = {f"{variant}, {memory}": f"{memory}, {'popgym-best' if variant == 'popgym-best' else 'short horizon'}"
             for variant in variants for memory in memories}
    return markdown(replace(table, columns=[table.columns[0], *(heads[table.columns[i]] for i in order)],
                            rows=[[row[0], *(row[i] for i in order)] for row in table.rows]))


def changed(names: Mapping[str, str]) -> str:
    """Variants of popgym-best with `shm` down, tasks to the right."""
    table = scores(ablation.make(seeds=SEEDS, variants=tuple(names)))
    kept = [row for row in without_gaps(table).rows if row[0] != "average"]
    rows = [[words, *(row[table.columns.index(name)] for row in kept)] for name, words in names.items()]
    return markdown(Table(table.name, table.title, ["", *(str(row[0]) for row in kept)], rows), verbatim=(0,))


def minutes() -> str:
    rows = [[title, runs, f"{total / 60:.0f}", f"{total / runs:.0f}"] for title, runs, total in gpu_minutes.totals(RECORDS)]
    return markdown(Table("gpu-minutes", "", ["", "runs", "GPU minutes", "seconds per run"], rows))


def scores(study: Study) -> Table:
    """The table of scores of a study's report, from the records kept in the repository."""
    found = {task.name: read_record(RECORDS / f"{task.name}.json") for task in study.runs}
    results = Results(study, {name: record for name, record in found.items() if record is not None and record["finished"]}, {})
    return next(item for section in run_sections(results) for item in section.items if isinstance(item, Table) and item.name == "scores")


def without_gaps(table: Table) -> Table:
    """Without the tasks and memories that have no results yet."""
    def found(cell: Any) -> bool:
        return isinstance(cell, str) or cell.value is not None

    kept = [i for i in range(len(table.columns)) if any(found(row[i]) for row in table.rows)]
    rows = [[row[i] for i in kept] for row in table.rows if any(found(cell) for cell in row[1:])]
    return replace(table, columns=[table.columns[i] for i in kept], rows=rows)


def markdown(table: Table, best: bool = False, verbatim: Sequence[int] = ()) -> str:
    return to_markdown(item_data(table), best=best, verbatim=verbatim).replace(MINUS, "-")


def fill(page: str, tables: Mapping[str, str]) -> str:
    """The page with its tables replaced."""
    names = [match["name"] for match in BLOCK.finditer(page)]
    if sorted(names) != sorted(tables):
        raise ValueError(f"the page must have one block for each of {', '.join(tables)}, got {', '.join(names) or 'none'}")
    return BLOCK.sub(lambda match: f"{match['name']}{match['about']}\n{tables[match['name']]}\n", page)


def main() -> None:
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), make_tables()), encoding="utf-8")
    print(f"wrote the tables of {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
