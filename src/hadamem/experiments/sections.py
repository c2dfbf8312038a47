"""What a report says of training runs: scores beside the paper's, learning curves, comparisons, cost, what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..reports.content import Cell, Item, Section, Table
from ..reports.curves import comparison, learning_curves, score_cell, score_table
from ..statistics import bootstrap_interval, task_mean
from . import paper
from .results import Results

Records = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]      # by task and memory
WORDS = {"return": "return", "success": "success", "eval_return": "return in evaluations", "eval_success": "success in evaluations"}


def run_sections(results: Results) -> list[Section]:
    """The sections of a study of the paper that trains."""
    return own_sections(results, beside_paper=True)


def own_sections(results: Results, beside_paper: bool = False) -> list[Section]:
    """The sections of any study that trains."""
    columns = [label for label in ("agent", "memory", "variant") if len(results.label_values(label)) > 1] or ["memory"]
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    expected: dict[tuple[str, str], int] = {}
    for labels, records in results.cells("task", *columns).items():
        cells[labels[0], ", ".join(part for part in labels[1:] if part)] = records
    for task in results.study.runs:
        key = task.labels.get("task", ""), ", ".join(task.labels[label] for label in columns if task.labels.get(label))
        expected[key] = expected.get(key, 0) + 1
    unit = WORDS[results.study.score] + {1.0: "", 100.0: " x 100"}.get(results.study.scale, f" x {results.study.scale:g}")
    if results.study.score.endswith("success") and results.study.scale == 100.0:
        unit = f"{WORDS[results.study.score]}, percent"
    sections = [Section("Scores", results.study.about, _scores(results, cells, expected, unit, beside_paper))]
    curves = {key: results.curves(records) for key, records in cells.items()}
    if any(curves.values()):
        references = {task: {f"the paper's {name}": value for name in ("shm",) if (value := paper.find(task, name)) is not None}
                      for task in results.label_values("task")} if beside_paper and "shm" in results.label_values("memory") else None
        sections.append(Section("Learning curves", "", learning_curves(curves, y_label=unit, references=references)))
    compared = comparison({key: results.scores(records) for key, records in cells.items()}, score_label=unit)
    if not _one_scale(results, beside_paper):
        compared = [item for item in compared if item.name in ("comparison-improvement", "comparison-pairs")]
    if compared and len({memory for _, memory in cells}) > 1:
        sections.append(Section("Comparison", "Over tasks with finished runs of all. One seed per cell gives no intervals.", compared))
    if results.records:
        sections.append(Section("Time", "Wall time of training alone, without building; runs may have shared the machine.",
                                [_times(cells)]))
    return sections


def _scores(results: Results, cells: Records, expected: Mapping[tuple[str, str], int], unit: str, beside_paper: bool) -> list[Item]:
    largest = max((abs(score) for records in cells.values() for score in results.scores(records, "best")), default=0.0)
    digits = 1 if largest >= 20 or results.study.scale == 100.0 else 3
    last, best = ({key: score_cell(results.scores(records, which), expected=expected[key], digits=digits,
                                   **(_of_paper(*key) if beside_paper and which == "final" else {}))
                   for key, records in cells.items()} for which in ("final", "best"))
    tables: list[Item] = [_with_average(results, score_table("scores", f"At the end of training ({unit})", last,
                                                    "Mean over the last ten iterations, or evaluations, of a run, or the last fifth if "
                                                    "it has fewer than fifty. ± is the standard deviation over seeds; the interval is "
                                                    "Student's, 95 %."), cells, beside_paper)]
    if any(cell.value is not None for cell in best.values()):
        tables.append(score_table("best", f"Best of training ({unit})", best, "The largest mean of an iteration, or evaluation, of a run, "
                                  "which is higher by chance alone the more there are. POPGym's own tables have this number (MMER)."))
    return tables


def _of_paper(task: str, memory: str) -> dict[str, Any]:
    return {"paper": paper.find(task, memory), "paper_std": paper.find_std(task, memory)}


def _with_average(results: Results, table: Table, cells: Records, beside_paper: bool) -> Table:
    """Add a row with the mean over tasks, where a memory has all of them."""
    tasks = list(dict.fromkeys(task for task, _ in cells))
    if len(tasks) < 2 or not _one_scale(results, beside_paper):
        return table
    row: list[Any] = ["average"]
    for memory in table.columns[1:]:
        scores = [results.scores(cells.get((task, memory), ())) for task in tasks]
        whole = paper.POPGYM_AVERAGES.get(paper.SAME.get(memory, memory)) if beside_paper and len(tasks) == 12 else None
        if not all(scores):
            row.append(Cell(None, paper=whole, note=f"{sum(map(bool, scores))} of {len(tasks)} tasks"))
            continue
        low, high = bootstrap_interval(scores, task_mean) or (None, None)
        digits = next((cell.digits for cell in table.rows[0] if isinstance(cell, Cell)), 1)
        row.append(Cell(task_mean(scores), low=low, high=high, seeds=min(map(len, scores)), paper=whole, digits=digits))
    return Table(table.name, table.title, table.columns, [*table.rows, row], table.note)


def _one_scale(results: Results, beside_paper: bool) -> bool:
    """Whether scores of different tasks can be averaged: returns of different envs cannot."""
    return beside_paper or results.study.score.endswith("success") or len(results.label_values("task")) < 2


def _times(cells: Records) -> Table:
    """Minutes per run, and env steps per second."""
    memories = list(dict.fromkeys(memory for _, memory in cells))
    rows: list[list[Any]] = []
    for memory in memories:
        records = [record for (_, name), found in cells.items() if name == memory for record in found]
        if records:
            seconds, steps = sum(record["seconds"] for record in records), sum(record["steps"] for record in records)
            devices = ", ".join(sorted({record["machine"].get("gpu") or record["machine"].get("cpu") or "?" for record in records}))
            speed = Cell(steps / max(seconds, 1e-9), digits=0)
            rows.append([memory, len(records), Cell(seconds / 60 / len(records), digits=2), speed, devices])
    return Table("times", "Time", ["memory", "runs", "minutes per run", "env steps per second", "machine"], rows)
