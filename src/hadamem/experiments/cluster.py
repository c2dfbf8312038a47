"""Launch the tasks of a study on a Ray cluster. Scheduling, placement and retries are Ray's own.

The study's folder must be on a file system that all nodes share. A worker that dies leaves its run's folder behind, and the retry resumes
from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..training.processes import PATIENCE, terminated_is_interrupted
from .folder import StudyFolder
from .local import worker_arguments
from .study import Task
from .worker import BAD_INPUT, DIVERGED

CONNECT_SECONDS = 20.0


def launch(folder: StudyFolder, tasks: Sequence[Task], *, address: str | None = None, jobs: int | None = None, retries: int = 1,
           num_cpus: float = 1.0, num_gpus: float = 0.0, tick: Callable[[], None] = lambda: None,
           stopping: Callable[[], None] = lambda: None, every: float = 2.0) -> bool:
    """Do the tasks. address: of a running cluster ("auto": the one of this machine); None: start one here for the time being,
    with `jobs` workers.

    num_cpus, num_gpus: what Ray reserves for a task; 0.33 GPUs means that three tasks share one. Failures are noted in the folder.
    Returns False if it was interrupted.
    """
    ray = connect(address, jobs)
    try:
        (folder.path / "runs").mkdir(parents=True, exist_ok=True)
        remote = ray.remote(num_cpus=num_cpus, num_gpus=num_gpus, max_retries=retries, retry_exceptions=[TaskFailed],
                            max_calls=1)(run_worker)      # a fresh process for every task
        place = StudyFolder(folder.path.resolve(), None if folder.extra_records is None else folder.extra_records.resolve())
        waiting = {remote.remote(worker_arguments(place, task), str(place.log(task)), str(Path.cwd())): task for task in tasks}
        with terminated_is_interrupted():
            return _collect(ray, folder, waiting, tick, stopping, every)
    finally:
        if address is None:
            ray.shutdown()


def connect(address: str | None, jobs: int | None = None) -> Any:
    """The ray module, connected. An address that does not answer is an error after 20 seconds."""
    try:
        import ray
    except ImportError as error:
        raise ValueError("--launcher ray needs Ray: pip install 'hadamem[cluster]'") from error
    if ray.is_initialized():
        return ray
    if address is not None and address != "auto":
        _check_answers(address)
    try:
        here: dict[str, Any] = {"num_cpus": jobs, "include_dashboard": False} if address is None else {}
        ray.init(address="local" if address is None else address, log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"no Ray cluster answers at {address or 'this machine'}: {' '.join(str(error).split())[:200]}") from error
    return ray


def _check_answers(address: str) -> None:
    """Ray itself waits for a minute and prints many lines."""
    import socket

    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"the address of a Ray cluster is host:port, ray://host:port or auto, got {address!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS):
            pass
    except OSError as error:
        raise ValueError(f"no Ray cluster answers at {address} ({error.strerror or error}); start one with `ray start --head`, or leave "
                         "out --ray-address to start one here") from error


class TaskFailed(Exception):
    """A worker ended with an error that may not happen again."""


def run_worker(arguments: list[str], log: str, cwd: str) -> int:
    """On a node of the cluster: do a task in this process, so that both end together, with its output in a log. Returns an exit code."""
    from . import worker

    code = run_logged(worker.main, arguments, log, cwd)
    if code not in (0, BAD_INPUT, DIVERGED):
        raise TaskFailed(f"exit code {code}; see {log}")
    return code


def run_logged(main: Callable[[list[str]], int], arguments: list[str], log: str, cwd: str) -> int:
    """Call the main function of a worker in the folder `cwd`, with its output in a log."""
    before = os.getcwd()
    if Path(cwd).is_dir():      # for modules of the user
        os.chdir(cwd)
    try:
        with open(log, "a", encoding="utf-8") as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            return main(arguments)
    finally:
        os.chdir(before)


def _collect(ray: Any, folder: StudyFolder, waiting: dict[Any, Task], tick: Callable[[], None], stopping: Callable[[], None],
             every: float) -> bool:
    """Wait for all tasks, noting failures."""
    try:
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=every)
            for reference in done:
                task = waiting.pop(reference)
                error = ""
                try:
                    ray.get(reference)
                except (TaskFailed, ray.exceptions.RayError) as problem:      # after the last retry, or of Ray itself
                    error = " ".join(str(problem).split())[-300:]
                if folder.finished(task):
                    folder.note_failure(task.name, None)      # an earlier attempt may have failed
                else:
                    error = (folder.failure(task) or {}).get("error") or error or "it has no result"
                    folder.note_failure(task.name, {"error": error, "log": str(folder.log(task))})
            tick()
    except KeyboardInterrupt:
        stopping()
        for reference in waiting:
            ray.cancel(reference)
        ray.wait(list(waiting), num_returns=len(waiting), timeout=PATIENCE)      # they write their checkpoints
        return False
    return True
