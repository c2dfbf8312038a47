"""How far a study is: the state of every task, and the time left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..lookup import UntrustedName
from ..runs.folder import is_run
from ..training.launch import last_row
from .folder import StudyFolder
from .study import Task, TrainTask


@dataclass(frozen=True)
class TaskStatus:
    name: str
    state: str                       # finished, failed, running, interrupted or waiting; pruned: stopped early by a sweep
    steps: int = 0                   # of a training run
    total: int = 0
    seconds: float = 0.0             # spent so far
    value: float | None = None       # newest mean return
    error: str = ""

    @property
    def share(self) -> float:
        return 1.0 if self.state in ("finished", "pruned") else min(1.0, self.steps / self.total) if self.total else 0.0


def status_of(folder: StudyFolder, task: Task, total: int = 0) -> TaskStatus:
    """total: env steps of a training run, if they are known; otherwise they are looked up, which takes a millisecond or more."""
    state, failure = folder.state(task), folder.failure(task)
    error = "" if failure is None or state != "failed" else failure.get("error", "")
    if not isinstance(task, TrainTask):
        found = folder.result(task)
        return TaskStatus(task.name, state, seconds=0.0 if found is None else found["seconds"], error=error)
    try:
        total = total or task.config().total_steps
    except UntrustedName:      # how far it is can be said without importing its classes
        total = int(task.settings.get("total_steps", 0))
    if state == "finished":
        record = folder.result(task) or {}
        return TaskStatus(task.name, state, record["steps"], total, record["seconds"], record["final"].get("return"))
    row = last_row(folder.run_folder(task)) if is_run(folder.run_folder(task)) else {}
    return TaskStatus(task.name, state, int(row.get("steps", 0)), total, row.get("elapsed", 0.0), row.get("return"), error)


def seconds_left(found: Sequence[TaskStatus], at_once: int) -> float | None:
    """An estimate from the speed of the tasks so far; None: nothing is known yet. Failed tasks do not count."""
    known = [task for task in found if task.seconds > 0 and task.share > 0]
    if not known:
        return None
    per_task = sum(task.seconds / task.share for task in known) / len(known)
    left = [(1 - task.share) * (task.seconds / task.share if task in known else per_task) for task in found if task.state != "failed"]
    return max(sum(left) / max(1, at_once), max(left, default=0.0))
