"""Several runs side by side: each in a process of its own with its own folder. Finished ones are never redone, others go on.

One run does not fill a large GPU, so a few together take less time than one after the other; on a CPU they share the cores.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import TrainConfig
from .folder import METRICS, is_run, read_info, save_config
from .metrics import read_rows

EVERY = 5.0       # seconds between lines about the runs


@dataclass
class Job:
    """One run on its way."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    code: int | None = None          # of its exit; None: not started, or still on

    @property
    def log(self) -> Path:
        """What the process prints; beside the run's folder, which it makes itself."""
        return self.folder.with_name(self.folder.name + ".log")


def train_many(configs: Mapping[str, TrainConfig], out: Path, jobs: int, say: Callable[[str], None] = print) -> dict[str, int]:
    """Train every configuration in the folder out/<name>, at most `jobs` at once. Returns the exit code of each: 0 it is finished.

    Ctrl-C reaches the runs, which save and end; calling this again goes on with them.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    out.mkdir(parents=True, exist_ok=True)
    waiting = [Job(name, out / name) for name in configs]
    done, running = [job for job in waiting if _finished(job.folder)], list[Job]()
    for job in done:
        job.code = 0
        say(f"{job.name}: finished already")
    waiting = [job for job in waiting if job.code is None]
    with tempfile.TemporaryDirectory() as drafts:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_start(waiting.pop(0), configs, Path(drafts)))
                _wait(running, EVERY)
                say("  ".join(_line(job) for job in running) or "...")
                done += [job for job in running if job.code is not None]
                running = [job for job in running if job.code is None]
        except KeyboardInterrupt:
            say("stopping: the runs save what they have")
            for job in running:
                _stop(job)
            done += running
    for job in done:
        if job.code:
            say(f"{job.name}: ended with code {job.code}; see {job.log}")
    return {job.name: 130 if job.code is None else job.code for job in [*done, *waiting]}


def _finished(folder: Path) -> bool:
    return is_run(folder) and read_info(folder).get("status") == "finished"


def _start(job: Job, configs: Mapping[str, TrainConfig], drafts: Path) -> Job:
    command = [sys.executable, "-m", "hadamem", "train", "--plain", "--out", str(job.folder)]
    if is_run(job.folder):
        command.append("--resume")
    else:
        draft = drafts / f"{job.name}.yaml"
        save_config(configs[job.name], draft)
        command += ["--config", str(draft)]
    with open(job.log, "ab") as log:
        # A session of its own: Ctrl-C must come from here, once, and not from the terminal and from here.
        job.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return job


def _wait(running: list[Job], seconds: float) -> None:
    """Until a run ends, at most so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for job in running:
            job.code = None if job.process is None else job.process.poll()
        if any(job.code is not None for job in running):
            return
        time.sleep(0.1)


def _stop(job: Job) -> None:
    if job.process is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(job.process.pid, signal.SIGINT)
    try:
        job.code = job.process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        job.process.kill()
        job.code = job.process.wait()


def _line(job: Job) -> str:
    """E.g. seed-1: 120,000 steps, return 0.31."""
    row: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        row = read_rows(job.folder / METRICS)[-1]
    if not row:
        return f"{job.name}: starting"
    shown = f", return {row['return']:.3f}" if "return" in row else ""
    return f"{job.name}: {row['steps']:,} steps{shown}"
