"""The tables of docs/results.md and the README, and the figure of popgym-best, from the records in docs/results.

    PYTHONPATH=src python benchmarks/results_page.py

A table stands between the lines `<!-- NAME: ... -->` and `<!-- end -->` of its page, and is replaced there; the text around it is not.
`tests/experiments/test_results_page.py` fails if a table and its records disagree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gpu_minutes
import popgym_players
from hadamem.drawing import new_canvas, save_canvas, style_axes
from hadamem.experiments import paper
from hadamem.experiments.records import read_record
from hadamem.experiments.results import Results
from hadamem.experiments.sections import run_sections
from hadamem.experiments.studies import ablation, popgym_table
from hadamem.experiments.study import Study
from hadamem.reports.content import Cell, Table
from hadamem.reports.data import item_data
from hadamem.reports.palette import REFERENCES, make_styles
from hadamem.reports.tables import to_markdown
from hadamem.reports.text import MINUS
from hadamem.statistics import band, bootstrap_interval, iqm, task_mean

ROOT = Path(__file__).parents[1]
RECORDS, FIGURE = ROOT / "docs" / "results", ROOT / "docs" / "figures" / "popgym-best.png"
PAGES = {      # and the tables on each
    ROOT / "README.md": ("averages",),
    ROOT / "docs" / "results.md": ("popgym-fair", "popgym-release", "popgym-best", "popgym-gae", "aggregates", "settings", "calibrations",
                                   "short-horizon", "small", "undone", "players", "gpu-minutes"),
}
AVERAGED = ("shm", "gpt2", "linear_attention", "ffm", "gru", "none")
SHOWN = ("shm", "gpt2", "linear_attention", "ffm", "gru", "none")      # in the figure
SEEDS = 5      # more than any cell has
BLOCK = re.compile(r"(?<=<!-- )(?P<name>[a-z-]+)(?P<about>: made by [^\n]*-->\n).*?(?=<!-- end -->)", re.DOTALL)

# The variants of popgym-ablation, in the words of the page, by protocol.
SETTINGS = {"gae": {
    "popgym-gae": "`popgym-gae`",
    "fair-lambda": "lambda 1 instead of 0.3",
    "no-rotary": "no rotary rows",
    "fair-lr": "learning rate of 5e-5, constant, instead of 5e-4 falling to 0",
    "fair-batch": "batches of 65,536 and 30 epochs instead of 16,384 and 8",
    "fair-limits": "clip 0.3 instead of 0.2, KL target 0.01 instead of 0.02 and no floor, value errors cut at 10 and not scaled",
    "fair-entropy": "no entropy bonus instead of 0.02",
    "narrow-input": "input of the memory 64 wide instead of 128",
}}
CALIBRATIONS = {"gae": {
    "popgym-gae": "`popgym-gae`: rotary rows, C from the first row of theta",
    "calibration-none": "C = 1 (`calibration=\"none\"`)",
    "rows-per-step": "a random row at every step",
    "neural-theta": "theta from a network",
    "rotary-keys": "keys of their own for the rotary rows",
    "no-rotary": "no rotary rows, C from the first row",
    "no-rotary-calibration-none": "no rotary rows, C = 1",
    "no-rotary-rows-per-step": "no rotary rows, a random row at every step",
    "rows-per-episode": "no rotary rows, a random row for each episode",
}}
HORIZONS = {
    "actor-gamma-0-joint-previous-action": "short horizon",
    "actor-gamma-0-soft-keys": "short horizon and soft keys",
}
SMALL = {
    "gae-small": {
        "popgym-gae": "`popgym-gae`",
        "linear-output": "`popgym-gae`, linear output",
        "signed-keys-linear-output": "`popgym-gae`, signed keys, linear output",
        "actor-gamma-0-joint-previous-action": "short horizon",
        "actor-gamma-0-linear-output": "short horizon, linear output",
        "actor-gamma-0-soft-keys-linear-output": "short horizon, soft keys, linear output",
        "actor-gamma-0-signed-keys": "short horizon, signed keys",
        "actor-gamma-0-signed-keys-linear-output": "short horizon, signed keys, linear output",
        "actor-gamma-0-signed-keys-linear-output-wide-head": "short horizon, signed keys, linear output, wide head",
    },
    "best-small": {
        "tied-actor-init-0.01": "the same, 128 x 64, and queries that start as keys",
        "actor-init-0.01": "the same, 128 x 64",
        "popgym-best": "`popgym-best`: the same, 128 x 64, and an actor that starts at 0.1",
    },
}
UNDONE = {"best-small": {
    "popgym-best": "`popgym-best`",
    "gae": "generalized advantages instead of a short horizon",
    "relu-output": "relu behind the memory",
    "narrow-head": "head of 64 instead of 256",
    "actor-init-0.01": "an actor that starts at 0.01 instead of 0.1",
    "entropy-0.08": "entropy 0.08 instead of 0.02",
    "square": "64 x 64 instead of 128 x 64",
    "relu-keys": "keys and queries through relu instead of signed ones",
    "no-rotary": "no rotary rows",
    "calibration-none": "C = 1 (`calibration=\"none\"`)",
}}


def make_tables() -> dict[str, str]:
    """Every table as Markdown."""
    tables = {"averages": averages(), **{f"popgym-{protocol}": popgym(protocol) for protocol in ("fair", "release", "best", "gae")}}
    tables |= {"aggregates": aggregates(), "short-horizon": compared()}
    found = {"settings": SETTINGS, "calibrations": CALIBRATIONS, "small": SMALL, "undone": UNDONE}
    return tables | {name: changed(variants) for name, variants in found.items()} | {"players": players(), "gpu-minutes": minutes()}


def averages() -> str:
    """The last rows of three tables, and what the paper reports."""
    rows = []
    for protocol, name in (("fair", "the paper's settings"), ("gae", "`popgym-gae`"), ("best", "`popgym-best`")):
        table = scores(popgym_table.make(protocol, seeds=SEEDS, memories=AVERAGED))
        rows.append([name, *(replace(cell, paper=None) for cell in table.rows[-1][1:])])
    reported = [Cell(paper.POPGYM_AVERAGES.get(memory)) for memory in AVERAGED]
    return markdown(Table("averages", "", ["", *AVERAGED], [["the paper reports", *reported], *rows]), verbatim=(0,))


def popgym(protocol: str) -> str:
    """Tasks down, memories to the right, the average last."""
    memories = popgym_table.BEST if protocol in popgym_table.TUNED else popgym_table.MEMORIES
    return markdown(without_gaps(scores(popgym_table.make(protocol, seeds=SEEDS, memories=memories))), best=True)


def aggregates() -> str:
    """Presets and memories down; two averages over the 12 tasks to the right, with intervals where every task has two seeds."""
    rows: list[list[Any]] = []
    for protocol in ("fair", "best", "gae"):
        memories = popgym_table.BEST if protocol in popgym_table.TUNED else popgym_table.MEMORIES
        cells = results_of(popgym_table.make(protocol, seeds=SEEDS, memories=memories)).cells("task", "memory")
        for memory in memories:
            runs = [cells[popgym_table.title(task), memory] for task in popgym_table.TASKS]
            values = [[100 * record["final"]["return"] for record in records] for records in runs]
            if not all(values):
                continue
            fewest, most = (count(len(found) for found in values) for count in (min, max))
            equal = [found[:fewest] for found in values]      # a mean over runs would count tasks with more seeds twice
            rows.append([f"`popgym-{protocol}`", memory, fewest if fewest == most else f"{fewest} to {most}",
                         with_interval(values, task_mean), with_interval(equal, iqm)])
    return markdown(Table("aggregates", "", ["preset", "memory", "seeds", "mean", "interquartile mean"], rows), verbatim=(0,))


def with_interval(values: Sequence[Sequence[float]], average: Callable[[Any], float]) -> str:
    scores = [np.array(found) for found in values]
    interval = bootstrap_interval(scores, average, level=0.95)
    return f"{average(scores):.1f}" + ("" if interval is None else " [{:.1f}, {:.1f}]".format(*interval))


def compared(memories: Sequence[str] = ("shm", "gpt2")) -> str:
    """Tasks down; to the right the steps from popgym-gae to popgym-best for each memory."""
    short, tasks = next(iter(HORIZONS)), popgym_table.TASKS
    steps = [(popgym_table.make("gae", seeds=SEEDS, memories=memories), "{}", "popgym-gae"),
             (ablation.make("gae", seeds=SEEDS, memories=memories, tasks=tasks, variants=[short]), f"{short}, {{}}", "short horizon"),
             (popgym_table.make("best", seeds=SEEDS, memories=memories), "{}", "popgym-best")]
    tables = [scores(study) for study, _, _ in steps]
    columns, rows = ["task"], [[row[0]] for row in tables[0].rows]
    for memory in memories:
        for table, (_, label, words) in zip(tables, steps, strict=True):
            columns.append(f"{memory}, {words}")
            at = table.columns.index(label.format(memory))
            for row, found in zip(rows, table.rows, strict=True):
                row.append(replace(cell, paper=None) if isinstance(cell := found[at], Cell) else cell)
    return markdown(Table("compared", "", columns, rows))


def changed(names: Mapping[str, Mapping[str, str]]) -> str:
    """Variants of popgym-ablation with `shm` down, tasks to the right. names: by protocol and variant, in the words of the page."""
    columns, rows = [popgym_table.title(task) for task in ablation.TASKS], []
    for protocol, variants in names.items():
        table = scores(ablation.make(protocol, seeds=SEEDS, variants=tuple(variants)))
        found = {str(row[0]): row for row in table.rows}
        rows += [[words, *(found[task][table.columns.index(name)] for task in columns)] for name, words in variants.items()]
    return markdown(Table("changed", "", ["", *columns], rows), verbatim=(0,))


def players() -> str:
    """Tasks down; to the right players that learn nothing, and the best agent of popgym-best, of popgym-gae or with a short horizon."""
    returns = json.loads(popgym_players.OUT.read_text(encoding="utf-8"))["returns"]
    cells = {}
    for preset in popgym_table.TUNED:
        study = popgym_table.make(preset, seeds=SEEDS, memories=popgym_table.BEST)
        found = results_of(study).cells("task", "memory")
        cells |= {(task, f"{memory}, popgym-{preset}"): records for (task, memory), records in found.items()}
    study = ablation.make("gae", seeds=SEEDS, memories=popgym_table.BEST, tasks=popgym_table.TASKS, variants=tuple(HORIZONS))
    for (task, label), records in results_of(study).cells("task", "memory").items():
        variant, memory = label.split(", ")
        cells[task, f"{memory}, {HORIZONS[variant]}"] = records
    means = {key: float(np.mean([100 * record["final"]["return"] for record in records])) for key, records in cells.items() if records}
    rows: list[list[Any]] = []
    for name, scores in returns.items():
        task = popgym_table.title(name)
        here = {label: mean for (where, label), mean in means.items() if where == task}
        best = max(here, key=here.__getitem__)
        rows.append([task, *(f"{100 * scores[player]['mean']:.1f}" for player in popgym_players.PLAYERS), f"{here[best]:.1f} ({best})"])
    average = [np.mean([float(str(row[i]).split()[0]) for row in rows]) for i in range(1, 5)]
    rows.append(["average", *(f"{mean:.1f}" for mean in average)])
    return markdown(Table("players", "", ["task", *popgym_players.PLAYERS, "best agent here"], rows))


def minutes() -> str:
    rows = [[title, runs, f"{total / 60:.0f}", f"{total / runs:.0f}"] for title, runs, total in gpu_minutes.totals(RECORDS)]
    return markdown(Table("gpu-minutes", "", ["", "runs", "GPU minutes", "seconds per run"], rows))


def scores(study: Study) -> Table:
    """The table of scores of a study's report."""
    items = (item for section in run_sections(results_of(study)) for item in section.items)
    return next(item for item in items if isinstance(item, Table) and item.name == "scores")


def results_of(study: Study) -> Results:
    """The finished runs of a study among the records kept in the repository."""
    found = {task.name: read_record(RECORDS / f"{task.name}.json") for task in study.runs}
    return Results(study, {name: record for name, record in found.items() if record is not None and record["finished"]}, {})


def without_gaps(table: Table) -> Table:
    """Without the tasks and memories that have no results yet."""
    def found(cell: Any) -> bool:
        return isinstance(cell, str) or cell.value is not None

    kept = [i for i in range(len(table.columns)) if any(found(row[i]) for row in table.rows)]
    rows = [[row[i] for i in kept] for row in table.rows if any(found(cell) for cell in row[1:])]
    return replace(table, columns=[table.columns[i] for i in kept], rows=rows)


def markdown(table: Table, best: bool = False, verbatim: Sequence[int] = ()) -> str:
    return to_markdown(item_data(table), best=best, verbatim=verbatim).replace(MINUS, "-")


def fill(page: str, names: Sequence[str], tables: Mapping[str, str]) -> str:
    """The page with its tables replaced."""
    found = [match["name"] for match in BLOCK.finditer(page)]
    if sorted(found) != sorted(names):
        raise ValueError(f"the page must have one block for each of {', '.join(names)}, got {', '.join(found) or 'none'}")
    return BLOCK.sub(lambda match: f"{match['name']}{match['about']}\n{tables[match['name']]}\n", page)


def draw(path: Path = FIGURE) -> None:
    """Learning curves under popgym-best, a panel for every task: games to the right, levels down. The paper's SHM is a dashed line."""
    results = results_of(popgym_table.make("best", seeds=SEEDS, memories=SHOWN))
    cells, styles = results.cells("task", "memory"), make_styles(SHOWN)
    games, levels = popgym_table.GAMES, popgym_table.LEVELS
    canvas = new_canvas(11, 7)
    axes = dict(zip([popgym_table.title(game + level) for level in levels for game in games],
                    canvas.subplots(len(levels), len(games), sharex=True).flat, strict=True))
    for task, ax in axes.items():
        style_axes(ax, labelsize=9)
        ax.set_title(task, fontsize=10, loc="left")
        for memory in SHOWN:
            if not cells[task, memory]:
                continue
            found = band(results.curves(cells[task, memory]), 150, smooth=5)
            line, = ax.plot(found.steps / 1e6, found.middle, color=styles[memory].colour, linewidth=1.6, label=memory)
            if styles[memory].hollow:      # linear attention and FFM are both green
                line.set_dashes((5, 1.2))
        value = paper.find(task, "shm")
        if value is not None:
            ax.axhline(value, color=REFERENCES[0], linewidth=1, dashes=(4, 3), label="the paper's SHM")
    for ax in list(axes.values())[-len(games):]:
        ax.set_xlabel("million env steps", fontsize=9)
    for ax in list(axes.values())[::len(games)]:
        ax.set_ylabel("return x 100", fontsize=9)
    handles, labels = axes["Autoencode-Easy"].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=10)
    save_canvas(canvas, path)


def main() -> None:
    draw()
    tables = make_tables()
    for page, names in PAGES.items():
        page.write_text(fill(page.read_text(encoding="utf-8"), names, tables), encoding="utf-8")
    print(f"wrote {FIGURE.relative_to(ROOT)} and the tables of {' and '.join(str(page.relative_to(ROOT)) for page in PAGES)}")


if __name__ == "__main__":
    main()
