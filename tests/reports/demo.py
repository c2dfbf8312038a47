"""A made-up report of realistic size: 12 tasks, 10 memories, curves of 200 points with bands. No number in it was measured."""

from __future__ import annotations

from functools import cache

import numpy as np

from hadamem.reports import curves as build
from hadamem.reports.content import Cell, Figure, HeatMap, Report, Section, Series, Table

MEMORIES = ["shm", "gru", "lstm", "ffm", "gpt2", "fwp", "s6", "mlstm", "dnc", "none"]
GAMES = ("Autoencode", "RepeatPrevious", "Battleship", "Concentration")
TASKS = [f"{name}-{level}" for name in GAMES for level in ("Easy", "Medium", "Hard")]
EVIL = "<script>window.hacked = true</script><img src=x onerror='window.hacked=true'> & \"quoted\""
EMPTY = [   # reports of studies that have just begun
    Report("empty", "", []),
    Report("sections", "", [Section("nothing"), Section("", "", [])]),
    Report("begun", "", [Section("s", "", [
        Table("t", "no rows", ["a", "b"], []), Table("u", "no columns", [], []),
        Table("v", "none", ["a", "b"], [["x", None], ["y", Cell(None)]]),
        Figure("f", "no series", "x", "y", []), Figure("g", "no points", "x", "y", [Series("shm", [], [])], group="G"),
        Figure("h", "nan", "x", "y", [Series("shm", [1, 2], [np.nan, np.inf])], group="G"),
        HeatMap("m", "nan", "x", "y", np.full((1, 1), np.nan)), HeatMap("n", "empty", "x", "y", np.zeros((2, 0)))])]),
]


def make_cells(rng: np.random.Generator) -> dict[tuple[str, str], Cell]:
    cells = {}
    for i, task in enumerate(TASKS):
        for j, memory in enumerate(MEMORIES):
            mean = float(60 - 6 * (i % 3) * (1 + j / 4) - 3 * j + rng.normal(0, 4))
            std = float(abs(rng.normal(2.0, 1.0)) + 0.3)
            paper = mean + float(rng.normal(0, 2.0)) if memory in ("shm", "gru", "ffm", "gpt2") else None
            cells[task, memory] = Cell(mean, std, mean - 1.6 * std, mean + 1.6 * std, 3, paper, None if paper is None else 1.2)
    cells[TASKS[4], "mlstm"] = Cell(None, note="2 of 3 seeds are not finished")
    cells[TASKS[7], "shm"] = Cell(None, paper=41.5, paper_std=0.4, note="failed: CUDA out of memory")
    cells[TASKS[8], "none"] = Cell(float("nan"))
    return cells


def make_curves(rng: np.random.Generator, count: int = 200) -> list[Figure]:
    steps = np.linspace(75_000, 15_000_000, count).astype(int)
    figures = []
    for i, task in enumerate(TASKS):
        series = []
        for j, memory in enumerate(MEMORIES):
            y = (0.9 - 0.07 * j - 0.1 * (i % 3)) * (1 - np.exp(-steps / (1.5e6 * (1 + 0.3 * j)))) - 0.4 + rng.normal(0, 0.01, count)
            width = 0.02 + 0.05 * np.exp(-steps / 5e6)
            series.append(Series(memory, steps.tolist(), y.tolist(), (y - width).tolist(), (y + width).tolist()))
        series.append(Series("paper, SHM", [0], [0.4 - 0.1 * (i % 3)], dashed=True))
        figures.append(Figure(f"curves-{i}", task, "env steps", "return", series, group="Learning curves",
                              note="Mean over 3 seeds; bands are 95 % intervals."))
    return figures


def make_runs(rng: np.random.Generator, memories=("shm", "gru", "ffm", "own <b>memory</b>")) -> tuple[dict, dict]:
    """Scores and curves of 5 seeds on 12 tasks, in the form that `reports.curves` takes."""
    scores, curves = {}, {}
    for i, task in enumerate(TASKS):
        for j, memory in enumerate(memories):
            top = 0.8 - 0.1 * j - 0.1 * (i % 3) + rng.normal(0, 0.08, 5)
            steps = np.arange(1, 61) * 50_000
            curves[task, memory] = [(steps, t * (1 - np.exp(-steps / 8e5)) + rng.normal(0, 0.03, 60)) for t in top]
            scores[task, memory] = top.tolist()
    return scores, curves


def known(values) -> list[float]:
    return [float("nan") if value is None else value for value in values]


@cache
def make_report() -> Report:
    rng = np.random.default_rng(0)
    cells = make_cells(rng)
    scores = Table("scores", "Best return x 100", ["task", *MEMORIES],
                   [[task, *(cells[task, memory] for memory in MEMORIES)] for task in TASKS], "Mean ± standard deviation over seeds.")
    ranks = Table("ranks", "Ranks", ["memory", "mean rank", "runs", "wall time"],
                  [[memory, 1.5 + 0.71 * j, 36, f"{3 + j} h"] for j, memory in enumerate(MEMORIES)])
    bars = Figure("bars", "Best return x 100 of four memories", "task", "return x 100", [
        *(Series(m, TASKS, known(cells[t, m].value for t in TASKS), known(cells[t, m].low for t in TASKS),
                 known(cells[t, m].high for t in TASKS)) for m in ("shm", "gru", "ffm", "gpt2")),
        Series("shm", TASKS, known(cells[t, "shm"].paper for t in TASKS), dashed=True)], kind="bar")
    iqm = Figure("iqm", "Interquartile mean over 12 tasks", "memory", "normalised score",
                 [Series(m, [m], [0.8 - 0.05 * j], [0.75 - 0.05 * j], [0.83 - 0.05 * j]) for j, m in enumerate(MEMORIES)], kind="points")
    lengths = [16, 64, 256, 1024, 4096]
    growth = Figure("growth", "Time per call against length", "sequence length T", "time [ms]", [
        Series("shm", lengths, [0.1 * n ** 0.7 for n in lengths], [0.08 * n ** 0.7 for n in lengths], [0.13 * n ** 0.7 for n in lengths]),
        Series("gru", lengths, [0.02 * n for n in lengths]), Series("shm, \u03b8 fixed", lengths, [0.05 * n ** 0.8 for n in lengths]),
        Series("theory: linear", lengths, [0.01 * n for n in lengths], dashed=True)], x_log=True, y_log=True)
    one = Figure("one", "Norm of M", "step t", "norm", [Series("norm", list(range(50)), [1 + 0.01 * t * t for t in range(50)])])
    matrix = rng.normal(1.0, 0.2, (24, 24))
    matrix[3, 5] = np.nan
    maps = [HeatMap("calibration", "Calibration matrix C at one step", "column", "row", matrix, "C", centre=1.0, note="1 keeps an entry."),
            HeatMap("improvement", "Probability of improvement", "memory Y", "memory X", rng.uniform(0, 1, (10, 10)), "P(X > Y)",
                    MEMORIES, MEMORIES, centre=0.5),
            HeatMap("large", "A state M", "column", "row", np.abs(rng.normal(0, 1, (128, 128))), "|M|")]
    scores_of_seeds, curves_of_seeds = make_runs(rng)
    sections = [
        Section("Scores", "What 15M steps reach, settings of `popgym`.\n\nThe **paper's** numbers stand below ours.", [scores, ranks]),
        Section("Learning curves", "One figure per task.", [*make_curves(rng)]),
        Section("Comparisons", "", [bars, iqm, growth, one]),
        Section("Over all tasks", "Five seeds each.", [
            *build.comparison(scores_of_seeds), *build.learning_curves(curves_of_seeds, name="seeds", group="Curves of five seeds"),
            build.score_table("seeds", "Final scores",
                              {key: build.score_cell(seeds, paper=0.6, digits=2) for key, seeds in scores_of_seeds.items()})]),
        Section("Inside the memory", "", maps),
        Section(f"Names of users {EVIL}", f"`{EVIL}` and **{EVIL}**", [
            Figure("evil", EVIL, EVIL, EVIL, [Series(EVIL, [EVIL, "b"], [1.0, 2.0]), Series("own", ["b"], [3.0])], kind="bar", note=EVIL),
            Table("evil-table", EVIL, [EVIL, "x"], [[EVIL, Cell(None, note=EVIL)]], EVIL)]),
    ]
    return Report("Stable Hadamard Memory: a demonstration", "Made-up numbers.\n\nRun `hadamem reproduce` for **true** ones.", sections,
                  {"command": "hadamem reproduce popgym --seeds 3", "commit": "0123abc", "machine": "1 GPU", EVIL: EVIL})
