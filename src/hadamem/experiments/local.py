"""Launch the tasks of a study on this machine: one process each, several at a time, spread over the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..devices import gpu_slots
from ..lookup import trusted_names
from ..training.processes import Job, python_module, run_jobs
from .folder import StudyFolder
from .study import MeasureTask, Task
from .worker import FINAL, INTERRUPTED


def launch(folder: StudyFolder, tasks: Sequence[Task], *, at_once: int, retries: int = 1, apart: bool = False,
           tick: Callable[[], None] = lambda: None, stopping: Callable[[], None] = lambda: None) -> bool:
    """Do the tasks. Failures are retried and noted in the folder. Returns False if it was interrupted. apart: see `Study`."""
    (folder.path / "runs").mkdir(parents=True, exist_ok=True)
    groups = group(tasks, len(tasks) if apart else at_once)

    def again(job: Job) -> bool:
        return job.code not in FINAL and job.starts <= retries

    def watch(running: Sequence[Job]) -> None:
        for job in running:
            if job.code is not None:
                for task in groups[job.name]:
                    note(folder, task, job, final=not again(job))
        tick()

    start = python_module("hadamem.experiments.worker")
    commands = {name: [*start, *worker_arguments(folder, *part)] for name, part in groups.items()}
    jobs = [Job(name, partial(list, commands[name]), folder.log(part[0])) for name, part in groups.items()]
    slots = gpu_slots(str(task.settings.get("device", "")) for task in tasks)
    return not run_jobs(jobs, at_once, slots=slots, again=again, tick=watch, stopping=stopping, every=2.0)


def group(tasks: Sequence[Task], at_most: int) -> dict[str, list[Task]]:
    """Tasks that share a process: each run has its own; measurements, which may take less than its start, are dealt out to `at_most`."""
    measures = [task for task in tasks if isinstance(task, MeasureTask)]
    parts: list[list[Task]] = [[task] for task in tasks if not isinstance(task, MeasureTask)]
    parts += [[*measures[i::at_most]] for i in range(min(at_most, len(measures)))]
    return {part[0].name: part for part in parts}


def note(folder: StudyFolder, task: Task, job: Job, final: bool) -> None:
    """Note in the folder why a task failed, if its job ended for good; the worker has noted the error, unless it was killed."""
    if job.code == 0 or job.code == INTERRUPTED or folder.finished(task) or not final:
        folder.note_failure(task.name, None)
        return
    error = (folder.failure(task) or {}).get("error") or why_ended(job)
    folder.note_failure(task.name, {"error": error, "code": job.code, "starts": job.starts, "log": str(job.log)})


def why_ended(job: Job) -> str:
    """The error of a job that failed."""
    reason = f"killed by signal {-job.code}" if job.code is not None and job.code < 0 else f"exit code {job.code}"
    return job.last_error() or reason


def worker_arguments(folder: StudyFolder, *tasks: Task) -> list[str]:
    """The arguments of a worker for these tasks, see `worker.main`."""
    names = trusted_names([task.settings for task in tasks])
    return [str(folder.path), *(task.name for task in tasks),
            *([] if folder.extra_records is None else ["--records", str(folder.extra_records)]),
            *(["--trust-names", *names] if names else [])]
