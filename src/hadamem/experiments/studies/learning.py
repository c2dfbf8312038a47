"""Everyday tasks: hadamem's default settings beside sb3-contrib's RecurrentPPO, per env step and per CPU second."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ...names import did_you_mean
from ...reports.content import Cell, Item, Section
from ...reports.curves import learning_curves, score_cell, score_table
from ..everyday import RECURRENT_PPO, TASKS
from ..everyday import learn as learn_task
from ..measure import missing, sized
from ..study import MeasureTask, Study

BUDGETS = (100_000, 500_000)      # env steps
LEARNERS = (*RECURRENT_PPO, "shm", "gru", "lstm", "ffm", "none")


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seeds: int | None = None, memories: Sequence[str] | None = None,
         tasks: Sequence[str] | None = None) -> Study:
    """memories: learners; names of RECURRENT_PPO, too. Tasks whose package is not installed are left out unless they are named."""
    for name in tasks or ():
        if name not in TASKS:
            raise ValueError(f"unknown task {name!r};{did_you_mean(name, TASKS)} choose from {', '.join(TASKS)}")
    chosen = list(tasks or [name for name, task in TASKS.items() if not task.needs or importlib.util.find_spec(task.needs)])
    learners = list(memories or (name for name in LEARNERS if name not in RECURRENT_PPO or importlib.util.find_spec("sb3_contrib")))
    if quick:
        chosen, learners = chosen[:2], learners if memories else ["gru", "none"]
    sizes = [sized(size, 2_000, quick, budget) for size in (BUDGETS[:1] if quick else BUDGETS)]
    made = [MeasureTask(f"{task}-{size}-{learner}-{seed}", "learning:learn",
                        {"task": task, "learner": learner, "steps": size, "seed": seed})
            for size in sizes for seed in range(seeds or (1 if quick else 3)) for task in chosen for learner in learners]
    about = ("What does somebody get who tries hadamem on a partially observable task without tuning it? Default settings of "
             "`hadamem train` with some memories, beside sb3-contrib's RecurrentPPO with its defaults (8 envs) and with settings tuned for "
             "each task, those of rl-zoo3 where it has them. One thread each. "
             + " ".join(f"{name}: {TASKS[name].text}." for name in chosen))
    return Study("learning", "Everyday tasks", made, about, sections=sections, apart=True)


def learn(task: str, learner: str, steps: int, seed: int) -> dict[str, Any]:
    return asdict(learn_task(task, learner, steps, seed))


# --- what the report says


def sections(results: Any) -> list[Section]:
    sizes = list(dict.fromkeys(task.settings["steps"] for task in results.study.measures))
    return [_section(results, size) for size in sizes]


def _section(results: Any, size: int) -> Section:
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    expected: dict[tuple[str, str], int] = {}
    names = []
    for task in results.study.measures:
        if task.settings["steps"] == size:
            key = task.settings["task"], task.settings["learner"]
            expected[key] = expected.get(key, 0) + 1
            found = cells.setdefault(key, [])
            names.append(task.name)
            if task.name in results.measures:
                found.append(results.measures[task.name])
    items: list[Item] = [
        score_table(f"scores-{size}", "Return after training", {key: _cell([run["score"] for run in found], expected[key])
                                                                for key, found in cells.items()},
                    "50 episodes with the most likely actions. ± is the standard deviation over seeds; the interval is Student's, 95 %."),
        score_table(f"mean-{size}", "Mean return of training episodes", {
            key: _cell([_mean(run) for run in found if run["curve"]["steps"]], expected[key]) for key, found in cells.items()},
                    "Over the whole training: the area under the learning curve, high where learning is early."),
        score_table(f"cpu-{size}", "CPU seconds", {key: score_cell([run["cpu_seconds"] for run in found], expected=expected[key], digits=0)
                                                   for key, found in cells.items()}, "Of training, with one thread."),
    ]
    for x in ("steps", "cpu_seconds"):
        curves = {key: [(run["curve"][x], run["curve"]["return"]) for run in found if run["curve"][x]] for key, found in cells.items()}
        items += learning_curves(curves, name=f"curves-{size}-{x}", x_label={"steps": "env steps", "cpu_seconds": "CPU seconds"}[x],
                                 group="Learning curves" if x == "steps" else "Learning curves by CPU time")
    waiting = missing(results, *names)
    about = results.study.about if size == results.study.measures[0].settings["steps"] else ""
    return Section(f"{size:,} env steps", " ".join(part for part in (about, waiting) if part), items)


def _cell(values: list[float], expected: int) -> Cell:
    largest = max((abs(value) for value in values), default=0.0)
    return score_cell(values, expected=expected, digits=1 if largest >= 20 else 2)


def _mean(run: dict[str, Any]) -> float:
    """Mean height of a learning curve over env steps."""
    steps, values = np.asarray(run["curve"]["steps"], dtype=float), np.asarray(run["curve"]["return"], dtype=float)
    steps, values = np.insert(steps, 0, 0.0), np.insert(values, 0, values[0])      # the first rollout counts, too
    return float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(steps)) / steps[-1])
