"""A study as data: training runs and measurements that belong together, and what its report says of their results. Nothing runs here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..reports.content import Section
from ..runs.config import TrainConfig, make_config

SCORES = ("return", "success", "eval_return", "eval_success")

MOST_SEEDS = 1000      # of a cell: a typing error must not make a study that never ends


@dataclass(frozen=True)
class TrainTask:
    """One training run. Runs that differ in the seed alone have the same labels: they are one cell of a table."""

    name: str                                   # of its folder and record
    labels: Mapping[str, str]                   # e.g. {"task": "Autoencode-Easy", "memory": "shm"}
    settings: Mapping[str, Any]                 # of `make_config`: preset, env, memory, seed, ...

    def config(self) -> TrainConfig:
        return make_config(**self.settings)


@dataclass(frozen=True)
class MeasureTask:
    """One measurement: a function that takes the settings as keywords and returns plain values, as JSON has them."""

    name: str                                   # of its result
    function: str                               # "theory:algorithm_1": a function of a module in `experiments.studies`
    settings: Mapping[str, Any] = field(default_factory=dict)


Task = TrainTask | MeasureTask


@dataclass(frozen=True)
class Study:
    """Tasks, and `sections`: what the report says of their results. None: a table of scores, curves and comparisons."""

    name: str
    title: str
    tasks: Sequence[Task]
    about: str = ""                             # the question that the study asks, in a paragraph
    score: str = "return"                       # what is compared, one of SCORES
    scale: float = 1.0                          # scores are multiplied by it: 100 for POPGym returns and for percentages
    source: Mapping[str, Any] = field(default_factory=dict)      # what it was made from: name and options, or the user's file
    sections: Callable[[Any], Sequence[Section]] | None = None
    alone: bool = False                         # its tasks measure times, so only one runs at a time
    apart: bool = False                         # its measurements take minutes, so that each is worth a process of its own

    def __post_init__(self) -> None:
        check_name("study", self.name)
        names = [task.name for task in self.tasks]
        for name in names:
            check_name("task", name)
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise ValueError(f"study {self.name!r} has two tasks named {double!r}; give their settings labels that differ")
        check_score(self.score)

    @property
    def runs(self) -> list[TrainTask]:
        return [task for task in self.tasks if isinstance(task, TrainTask)]

    @property
    def measures(self) -> list[MeasureTask]:
        return [task for task in self.tasks if isinstance(task, MeasureTask)]


def check_score(name: str) -> None:
    if name not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}, got {name!r}")


def check_evaluated(score: str, config: TrainConfig) -> None:
    if score.startswith("eval_") and not config.eval_every:
        raise ValueError(f"score {score} needs evaluations while training, but eval_every is 0; add eval_every to settings")


def check_name(what: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}", name):
        raise ValueError(f"the name of a {what} is a folder's name: letters, digits, . _ + = - and at most 200 of them, got {name!r}")


def to_plain(task: Task) -> dict[str, Any]:
    """A task as JSON has it, for `from_plain`."""
    if isinstance(task, MeasureTask):
        return {"name": task.name, "function": task.function, "settings": dict(task.settings)}
    return json.loads(json.dumps({"name": task.name, "labels": dict(task.labels), "settings": dict(task.settings)}))


def from_plain(values: Mapping[str, Any]) -> Task:
    check_name("task", values["name"])
    if "function" in values:
        return MeasureTask(values["name"], values["function"], values["settings"])
    return TrainTask(values["name"], values["labels"], values["settings"])
