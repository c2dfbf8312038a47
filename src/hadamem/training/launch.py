"""Train several runs in parallel, each in its own process and folder. Finished runs are skipped, unfinished ones are resumed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runs.config import TrainConfig
from ..runs.folder import FREE, METRICS, check_same, is_run, load_config, read_info, save_config
from ..runs.metrics import read_rows
from .loop import HANGUP

EVERY = 5.0       # seconds between status lines


@dataclass
class Job:
    """One run."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    code: int | None = None          # exit code; None: not started, or still running
    logged: int = 0                  # size of its log at the start, in bytes

    @property
    def log(self) -> Path:
        """The output of the process. It is next to the run's folder, which the process creates."""
        return self.folder.with_name(self.folder.name + ".log")


def train_many(configs: Mapping[str, TrainConfig], out: Path, jobs: int, say: Callable[[str], None] = print) -> dict[str, int]:
    """Train every configuration in the folder out/<name>, at most `jobs` at a time. Returns the exit code of each; 0: finished.

    Ctrl-C, SIGTERM and a closed terminal (SIGHUP, unless it is ignored as under nohup) stop the runs after a checkpoint. Call this again to
    resume them.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    for name, config in configs.items():
        if is_run(out / name):
            check_same(load_config(out / name), config, out / name)
    out.mkdir(parents=True, exist_ok=True)
    waiting = [Job(name, out / name) for name in configs]
    done, running = [job for job in waiting if _finished(job.folder, configs[job.name].total_steps)], list[Job]()
    for job in done:
        job.code = 0
        say(f"{job.name}: already finished")
    waiting = [job for job in waiting if job.code is None]
    with tempfile.TemporaryDirectory() as config_folder, _terminated_is_interrupted():
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_start(waiting.pop(0), configs, Path(config_folder)))
                _wait(running, EVERY)
                say("  ".join(_line(job) for job in running) or "...")
                done += [job for job in running if job.code is not None]
                running = [job for job in running if job.code is None]
        except KeyboardInterrupt:
            with contextlib.suppress(OSError):      # the terminal may be gone
                say("stopping: waiting for the runs to write a checkpoint")
        finally:
            _stop(running)
        done += running
    for job in done:
        if job.code:
            say(f"{job.name}: ended with exit code {job.code}{_last_error(job)}; see {job.log}")
    return {job.name: 130 if job.code is None else job.code for job in [*done, *waiting]}


@contextlib.contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that no run is left running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler)}
    if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
        before[HANGUP] = signal.signal(HANGUP, _hang_up)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _hang_up(number: int, frame: Any) -> None:
    """Raise KeyboardInterrupt once: shell and system may both send SIGHUP, and a second interrupt would kill the runs."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _finished(folder: Path, steps: int) -> bool:
    """Whether a run has done `steps` steps. total_steps may have been raised since it finished."""
    return is_run(folder) and read_info(folder).get("status") == "finished" and load_config(folder).total_steps >= steps


def _start(job: Job, configs: Mapping[str, TrainConfig], config_folder: Path) -> Job:
    command = [sys.executable, "-m", "hadamem", "train", "--plain", "--out", str(job.folder)]
    if is_run(job.folder):
        command += ["--resume", "--set", *_assignments(configs[job.name])]
    else:
        file = config_folder / f"{job.name}.yaml"
        save_config(configs[job.name], file)
        command += ["--config", str(file)]
    with open(job.log, "ab") as log:
        job.logged = log.tell()
        # A new session: Ctrl-C must reach the run once, from this process, and not from the terminal as well.
        job.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    return job


def _assignments(config: TrainConfig) -> list[str]:
    """The settings that may change on resume, as arguments of `--set`. The preset only names where the others come from."""
    values = {name: getattr(config, name) for name in FREE if name != "preset"}
    return [f"{name}={','.join(x) if isinstance(x, tuple) else json.dumps(x) if isinstance(x, dict) else x}" for name, x in values.items()]


def _last_error(job: Job) -> str:
    """The error message at the end of a run's log, in brackets; "" if there is none."""
    with contextlib.suppress(OSError), open(job.log, "rb") as log:
        log.seek(job.logged)
        lines = log.read().decode(errors="replace").strip().splitlines()
        if lines and lines[-1].startswith("hadamem: "):
            return f" ({lines[-1].removeprefix('hadamem: ')})"
    return ""


def _wait(running: list[Job], seconds: float) -> None:
    """Wait until a run ends, for at most `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for job in running:
            job.code = None if job.process is None else job.process.poll()
        if any(job.code is not None for job in running):
            return
        time.sleep(0.1)


def _stop(jobs: list[Job]) -> None:
    """Interrupt all runs, wait until they have written a checkpoint, and kill those that do not end."""
    alive = [job for job in jobs if job.process is not None and job.process.poll() is None]
    for job in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.process.pid, signal.SIGINT)   # type: ignore[union-attr]
    end = time.monotonic() + 120
    for job in alive:
        try:
            job.process.wait(timeout=max(0.0, end - time.monotonic()))   # type: ignore[union-attr]
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            end = 0.0                                                     # a second Ctrl-C: kill all at once
            job.process.kill()   # type: ignore[union-attr]
    for job in jobs:
        job.code = None if job.process is None else job.process.wait()


def _line(job: Job) -> str:
    """Status of a run: "seed-1: 120,000 steps, return 0.310"."""
    row: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        row = read_rows(job.folder / METRICS)[-1]
    if not row:
        return f"{job.name}: starting"
    shown = f", return {row['return']:.3f}" if "return" in row else ""
    return f"{job.name}: {row['steps']:,} steps{shown}"
