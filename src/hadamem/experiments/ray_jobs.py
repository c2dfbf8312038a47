"""Jobs of `training.processes` on a Ray cluster: each is a Ray task, with the methods of a process that `run_jobs` uses."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..training.processes import INTERRUPTED, Job
from . import cluster


@contextlib.contextmanager
def ray_jobs(address: str | None, jobs: int | None, num_gpus: float) -> Iterator[tuple[Callable[..., Job], int]]:
    """What makes a job on the cluster, and how many of them run at a time. address, jobs: as in `cluster.launch`."""
    ray = cluster.connect(address, jobs)
    remote = ray.remote(num_cpus=1, num_gpus=num_gpus, max_retries=0, max_calls=1)(_work)      # a fresh process for every run
    at_once = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
    try:
        yield lambda name, command, log: RayJob(name, command, log, ray=ray, remote=remote), at_once
    finally:
        if address is None:
            ray.shutdown()


class RayJob(Job):
    def __init__(self, name: str, command: Any, log: Path, *, ray: Any, remote: Any):
        super().__init__(name, command, log)
        self.ray, self.remote = ray, remote

    def start(self, slot: Mapping[str, str]) -> None:
        """Ray decides where it runs, so there are no slots."""
        self.logged = self.log.stat().st_size if self.log.exists() else 0
        module = list(self.command())
        arguments = module[module.index("-m") + 2:]
        reference = self.remote.remote(arguments, str(self.log.resolve()), str(Path.cwd()))
        self.process = RayProcess(self.ray, reference)
        self.code, self.starts = None, self.starts + 1


class RayProcess:
    """A Ray task as `subprocess.Popen` has a process."""

    def __init__(self, ray: Any, reference: Any):
        self.ray, self.reference = ray, reference
        self.code: int | None = None

    def poll(self, seconds: float = 0.0) -> int | None:
        if self.code is None and self.ray.wait([self.reference], timeout=seconds)[0]:
            try:
                self.code = self.ray.get(self.reference)
            except self.ray.exceptions.TaskCancelledError:
                self.code = INTERRUPTED
            except self.ray.exceptions.RayError:      # its process or machine is gone
                self.code = 1
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        code = self.poll(3600.0 * 24 * 365 if timeout is None else timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a Ray task", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Interrupt the task. Ray knows no other signals."""
        self.ray.cancel(self.reference)

    def kill(self) -> None:
        self.ray.cancel(self.reference, force=True)


def _work(arguments: list[str], log: str, cwd: str) -> int:
    from .trial import main

    return cluster.run_logged(main, arguments, log, cwd)
