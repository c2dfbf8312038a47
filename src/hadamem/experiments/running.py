"""Run a study: check it, launch what is not finished, and say how far it is."""

from __future__ import annotations

import contextlib
import fnmatch
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ..devices import find_device, runs_at_once
from ..envs import make
from ..memory import make_memory
from . import cluster, local
from .folder import StudyFolder
from .status import TaskStatus, status_of
from .study import MeasureTask, Study, Task, TrainTask

LAUNCHERS = ("local", "ray")
Watch = Callable[[Sequence[TaskStatus], int], None]      # called with the state of all tasks, and how many run at a time


def run_study(study: Study, out: Path | str, *, launcher: str = "local", jobs: int | None = None, retries: int = 1,
              only: Sequence[str] = (), records: Path | str | None = None, ray_address: str | None = None, gpus_per_task: float = 0.0,
              watch: Watch | None = None, stopping: Callable[[], None] = lambda: None) -> bool:
    """Do what is not finished of a study, in the folder `out`. Returns whether all of it is finished then.

    launcher: "local" (processes) or "ray" (a cluster; see `cluster.launch` for ray_address and gpus_per_task). jobs: tasks at the same
    time; None: three per GPU, or one per core. retries: how often a failed task is started again. only: patterns such as "*-shm-*"; other
    tasks are left alone. records: a folder with records of runs that need not be repeated; new ones are added to it.
    """
    check_launch(launcher, jobs, retries)
    if launcher == "ray":
        check_cluster(study, jobs, ray_address, gpus_per_task)
    folder = StudyFolder(out, records)
    chosen = choose(study.tasks, only)
    for task in study.runs:
        folder.kept_record(task)      # an error if one is of other settings
    check([task for task in chosen if not (folder.exists() and folder.finished(task))])
    with folder.lock() if folder.exists() else contextlib.nullcontext():      # of a study that runs, nothing is changed
        folder.begin(study)
    with folder.lock():
        return _run(study, folder, chosen, launcher, jobs, retries, ray_address, gpus_per_task, watch, stopping)


def _run(study: Study, folder: StudyFolder, chosen: Sequence[Task], launcher: str, jobs: int | None, retries: int, ray_address: str | None,
         gpus_per_task: float, watch: Watch | None, stopping: Callable[[], None]) -> bool:
    folder.adopt_records(study.tasks)
    todo = [task for task in chosen if not folder.finished(task)]
    for task in todo:
        folder.note_failure(task.name, None)
    totals = {task.name: task.config().total_steps for task in chosen if isinstance(task, TrainTask)}
    at_once = 1 if study.alone else min(jobs or runs_at_once(find_device("auto")), max(1, len(todo)))

    def tick() -> None:
        if watch is not None:
            watch([status_of(folder, task, totals.get(task.name, 0)) for task in chosen], at_once)

    if todo and launcher == "ray":
        cluster.connect(ray_address, jobs)      # or an error, before anything is shown
    tick()
    if todo and launcher == "local":
        local.launch(folder, todo, at_once=at_once, retries=retries, apart=study.apart, tick=tick, stopping=stopping)
    elif todo:
        cluster.launch(folder, todo, address=ray_address, jobs=jobs, retries=retries, num_gpus=gpus_per_task, tick=tick, stopping=stopping)
    return all(folder.finished(task) for task in chosen)


def check_launch(launcher: str, jobs: int | None, retries: int) -> None:
    if launcher not in LAUNCHERS:
        raise ValueError(f"launcher must be one of {', '.join(LAUNCHERS)}, got {launcher!r}")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, got {retries}")


def check_cluster(study: Study, jobs: int | None, ray_address: str | None, gpus_per_task: float) -> None:
    if study.alone:
        raise ValueError(f"study {study.name!r} measures times, one task at a time; use --launcher local")
    if jobs is not None and ray_address is not None:
        raise ValueError("--jobs is the size of a cluster that is started here; leave it out with --ray-address")
    if not 0 <= gpus_per_task < float("inf"):
        raise ValueError(f"--gpus-per-run must be 0 or more, got {gpus_per_task}")


def choose(tasks: Sequence[Task], only: Sequence[str]) -> list[Task]:
    """The tasks whose names match one of the patterns, all if there are none."""
    chosen = [task for task in tasks if not only or any(fnmatch.fnmatch(task.name, pattern) for pattern in only)]
    if not chosen:
        raise ValueError(f"no task matches {' '.join(only)}; the tasks are {', '.join(task.name for task in tasks[:20])}"
                         f"{' ...' if len(tasks) > 20 else ''}")
    return chosen


def check(tasks: Sequence[Task]) -> None:
    """Make every env and every memory once, so that what cannot be built is found before anything is trained."""
    seen = set[str]()
    for task in tasks:
        if isinstance(task, MeasureTask):
            continue
        config = task.config()
        network = config.network
        size = {} if network.memory_size is None else {"memory_size": network.memory_size}
        options = {**size, **network.memory_options}
        env, memory = json.dumps((config.env, config.env_options)), json.dumps((network.memory, network.memory_output_size, options))
        try:
            if env not in seen:
                make(config.env, num_envs=1, **config.env_options).close()
            if memory not in seen:
                make_memory(network.memory, 8, network.memory_output_size, **options)
        except Exception as error:      # whatever an env or a memory of the user raises
            raise ValueError(f"{task.name} cannot be built: {' '.join(str(error).split())}") from error
        seen |= {env, memory}
