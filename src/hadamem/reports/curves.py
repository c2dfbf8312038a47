"""Tables and figures from the scores and learning curves of runs. `hadamem.statistics` computes; this file lays out.

Runs come as {(task, memory): one entry per seed}: a score, or a curve (env steps, values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..statistics import (
    band,
    bootstrap_interval,
    iqm,
    mean_interval,
    mean_std,
    performance_profile,
    probability_of_improvement,
    task_mean,
)
from .content import Cell, Figure, HeatMap, Item, Series, Table, make_name

Key = tuple[str, str]                                    # task, memory
Scores = Mapping[Key, Sequence[float]]
Curves = Mapping[Key, Sequence[tuple[Sequence[float], Sequence[float]]]]


def score_cell(values: Sequence[float], *, paper: float | None = None, paper_std: float | None = None, expected: int | None = None,
               note: str = "", digits: int = 1) -> Cell:
    """The cell of some seeds: mean, standard deviation and Student's 95 % interval. expected: how many seeds there will be."""
    if expected is not None and len(values) < expected:
        note = "; ".join(part for part in (f"{len(values)} of {expected} seeds", note) if part)
    broken = int(np.sum(~np.isfinite(np.asarray(values, dtype=np.float64))))
    if broken:
        note = "; ".join(part for part in (f"{broken} of {len(values)} seeds not finite", note) if part)
    if broken or not len(values):
        return Cell(None, paper=paper, paper_std=paper_std, note=note or "missing", digits=digits)
    mean, std = mean_std(values)
    low, high = mean_interval(values) or (None, None)
    return Cell(mean, std, low, high, len(values), paper, paper_std, note, digits)


def score_table(name: str, title: str, cells: Mapping[Key, Cell], note: str = "", corner: str = "task") -> Table:
    """Tasks go down and memories to the right, in the order of their first cells. A pair without a cell is missing."""
    tasks, memories = _axes(cells)
    missing = Cell(None, note="missing")
    rows: list[list[str | Cell]] = [[task, *(cells.get((task, memory), missing) for memory in memories)] for task in tasks]
    return Table(name, title, [corner, *memories], rows, note)


def learning_curves(curves: Curves, *, y_label: str = "return", x_label: str = "env steps", name: str = "curves",
                    group: str = "Learning curves", points: int = 200, smooth: int = 1, scale: float = 1.0,
                    references: Mapping[str, Mapping[str, float]] | None = None) -> list[Figure]:
    """One figure per task, with the mean over seeds of each memory and a 95 % band.

    references: by task, horizontal dashed lines by their label, already in the figure's unit. smooth: as in `statistics.band`. scale: what
    values are multiplied by. Runs that have just begun do not count yet; without any, the figure is empty.
    """
    tasks, memories = _axes(curves)
    figures = []
    for number, task in enumerate(tasks):
        series, counts = [], set()
        for memory in memories:
            runs = _usable([(steps, scale * np.asarray(values, dtype=np.float64)) for steps, values in curves.get((task, memory), ())])
            if runs:
                series.append(_curve(memory, runs, points, smooth))
                counts.add(len(runs))
        for label, value in (references or {}).get(task, {}).items():
            series.append(Series(label, [0], [value], dashed=True))
        figures.append(Figure(_numbered(name, task, tasks, number), task, x_label, y_label, series, group=group,
                              note=_curve_note(counts, smooth)))
    return figures


def comparison(scores: Scores, *, score_label: str = "score", name: str = "comparison", digits: int = 2,
               ranges: Mapping[str, tuple[float, float]] | None = None) -> list[Item]:
    """IQM with intervals, performance profiles and probabilities of improvement, over the tasks on which all memories have finite scores.

    ranges: by task, the scores that count as 0 and 1. None: scores are compared as they are, so they must have one scale. Nothing to
    compare gives an empty list; one memory has no probability of improvement.
    """
    scores = {key: list(values) for key, values in scores.items() if len(values) and np.isfinite(values).all()}
    all_tasks, memories = _axes(scores)
    tasks = [task for task in all_tasks if all((task, memory) in scores for memory in memories)]
    if not tasks:
        return []
    runs = {memory: [_normalised(scores[task, memory], task, ranges) for task in tasks] for memory in memories}
    note = _coverage_note(tasks, all_tasks)
    items: list[Item] = [_iqm_figure(runs, score_label, name, note), _aggregate_table(runs, score_label, name, digits, note)]
    items.append(_profiles(runs, score_label, name, note))
    if len(memories) > 1:
        items += _improvements(runs, name, note)
    return items


def _axes(cells: Mapping[Key, Any]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(task for task, _ in cells)), list(dict.fromkeys(memory for _, memory in cells))


def _numbered(name: str, task: str, tasks: Sequence[str], number: int) -> str:
    """The name of a task's figure; with its number where another task has the same one."""
    plain = make_name(name, task)
    same = [other for other in tasks if make_name(name, other).lower() == plain.lower()]
    return plain if len(same) == 1 else f"{plain}-{number + 1}"


def _usable(runs: Sequence[tuple[Sequence[float], np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Finite points of the runs that reach the first step of the others, so that there are steps in common."""
    finite = [(np.asarray(steps)[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in runs]
    begun = [(steps, values) for steps, values in finite if len(steps)]
    start = max((steps[0] for steps, _ in begun), default=0.0)
    return [(steps, values) for steps, values in begun if steps[-1] >= start]


def _curve(label: str, runs: Sequence[tuple[np.ndarray, np.ndarray]], points: int, smooth: int) -> Series:
    found = band(runs, points, smooth=smooth)
    steps = [int(step) if step == round(step) else float(step) for step in found.steps]
    if found.low is None or found.high is None:
        return Series(label, steps, found.middle.tolist())
    return Series(label, steps, found.middle.tolist(), found.low.tolist(), found.high.tolist())


def _curve_note(counts: set[int], smooth: int) -> str:
    if not counts:
        return "No run has measurements yet."
    seeds = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    parts = ["One seed each" if counts == {1} else f"Mean over {seeds} seeds, where all of them have data; bands are 95 % intervals"]
    if smooth > 1:
        parts.append(f"each run is a moving mean over {smooth} measurements, which makes bands narrower")
    return "; ".join(parts) + "."


def _coverage_note(tasks: Sequence[str], all_tasks: Sequence[str]) -> str:
    if len(tasks) == len(all_tasks):
        return f"Over {len(tasks)} task{'s' if len(tasks) > 1 else ''}."
    missing = [task for task in all_tasks if task not in tasks]
    return f"Over {len(tasks)} of {len(all_tasks)} tasks: not every memory has finite results for {', '.join(missing)}."


def _normalised(values: Sequence[float], task: str, ranges: Mapping[str, tuple[float, float]] | None) -> np.ndarray:
    if ranges is None:
        return np.asarray(values, dtype=np.float64)
    if task not in ranges or ranges[task][0] == ranges[task][1]:
        raise ValueError(f"ranges must have two different scores for task {task!r}, those that count as 0 and 1, got {ranges.get(task)!r}")
    low, high = ranges[task]
    return (np.asarray(values, dtype=np.float64) - low) / (high - low)


def _iqm_figure(runs: Mapping[str, list[np.ndarray]], score_label: str, name: str, note: str) -> Figure:
    series = []
    for memory, tasks in runs.items():
        interval = bootstrap_interval(tasks, iqm)
        series.append(Series(memory, [memory], [iqm(tasks)], *([[end] for end in interval] if interval else ())))
    return Figure(f"{name}-iqm", "Interquartile mean", "memory", f"IQM of {score_label}", series, kind="points",
                  note=f"{note} Whiskers are 95 % intervals, a stratified bootstrap over seeds.")


def _aggregate_table(runs: Mapping[str, list[np.ndarray]], score_label: str, name: str, digits: int, note: str) -> Table:
    rows: list[list[Any]] = []
    for memory, tasks in runs.items():
        count = sum(len(task) for task in tasks)
        cells = []
        for statistic in (iqm, task_mean):
            low, high = bootstrap_interval(tasks, statistic) or (None, None)
            cells.append(Cell(statistic(tasks), low=low, high=high, digits=digits))
        rows.append([memory, *cells, count])
    return Table(f"{name}-aggregates", f"Aggregates of {score_label}", ["memory", "IQM", "mean", "runs"], rows,
                 f"{note} 95 % intervals, a stratified bootstrap over seeds.")


def _profiles(runs: Mapping[str, list[np.ndarray]], score_label: str, name: str, note: str) -> Figure:
    everything = np.concatenate([task for tasks in runs.values() for task in tasks])
    low, high = float(everything.min()), float(everything.max())
    room = 0.02 * (high - low) or 0.5
    thresholds = np.linspace(low - room, high + room, 101)
    series = []
    for memory, tasks in runs.items():
        found = performance_profile(tasks, thresholds)
        ends = () if found.low is None or found.high is None else (found.low.tolist(), found.high.tolist())
        series.append(Series(memory, found.thresholds.tolist(), found.share.tolist(), *ends))
    return Figure(f"{name}-profiles", "Performance profiles", score_label, "share of runs above it", series, y_range=(-0.02, 1.02),
                  note=f"{note} Higher is better; bands are pointwise 95 % intervals.")


def _improvements(runs: Mapping[str, list[np.ndarray]], name: str, note: str) -> list[Item]:
    """P(X > Y) of all pairs as a heat map, and of the first memory against each other one with intervals."""
    memories = list(runs)
    values = np.full((len(memories), len(memories)), np.nan)
    against = []
    for i, x in enumerate(memories):
        for j, y in enumerate(memories[:i]):
            found = probability_of_improvement(runs[y], runs[x])
            values[j, i], values[i, j] = found.value, 1 - found.value
            if j == 0:
                against.append(Series(x, [x], [found.value], *([[end] for end in found.interval] if found.interval else ())))
    first = memories[0]
    even = Series("neither is better", memories[1:], [0.5] * (len(memories) - 1), dashed=True)
    return [
        Figure(f"{name}-improvement", f"Probability that {first} scores higher", "than", f"P({first} > other)", [*against, even],
               kind="points", y_range=(-0.03, 1.03),
               note=f"{note} A run of {first} against a run of the other; whiskers are 95 % intervals."),
        HeatMap(f"{name}-pairs", "Probability of improvement", "memory Y", "memory X", values, "P(X > Y)", memories, memories, 0.5,
                f"{note} How likely a run of X scores higher than a run of Y on the same task."),
    ]
