"""Run commands in child processes, several at a time, until all have ended. Ctrl-C lets them write a checkpoint first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..files import is_alive
from ..runs.files import inside
from .signals import HANGUP

PATIENCE = 120.0      # seconds that an interrupted process has to write its checkpoint
INTERRUPTED = 130     # exit code of a job that Ctrl-C stopped, or that was not started
PARENT = "HADAMEM_PARENT"      # environment variable of a child: the process that started it


def python_module(name: str) -> list[str]:
    """The command that runs a module in a new Python, which does not look for modules in the current folder first."""
    return [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m", name]


class Process(Protocol):
    """What a job needs of its process, as `subprocess.Popen` has it."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


@dataclass
class Job:
    """A command and its process. The command is asked for at each start, as a second start may have to resume."""

    name: str
    command: Callable[[], Sequence[str]]
    log: Path                                                    # output of the process
    environment: Mapping[str, str] = field(default_factory=dict)      # additions to this process's
    process: Process | None = None
    code: int | None = None                                      # exit code; None: not started, or still running
    starts: int = 0
    logged: int = 0                                              # size of the log at the last start, in bytes

    def start(self, slot: Mapping[str, str]) -> None:
        """slot: environment variables of the place where it runs, such as a GPU's number."""
        with open(inside(self.log, self.log.parent), "ab") as log:
            self.logged = log.tell()
            # A new session: Ctrl-C must reach the child once, from this process, and not from the terminal as well.
            self.process = subprocess.Popen(list(self.command()), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                            env={**os.environ, **self.environment, **slot, PARENT: str(os.getpid())})
        self.code, self.starts = None, self.starts + 1

    def interrupt(self) -> None:
        """Ask its process to write a checkpoint and end, as Ctrl-C does."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, ValueError):      # ValueError: Windows has no such signal for others
                self.process.send_signal(signal.SIGINT)

    def last_error(self) -> str:
        """The error message at the end of its log; "" if there is none."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(self.logged)
            lines = log.read().decode(errors="replace").strip().splitlines()
            if lines and lines[-1].startswith("hadamem: "):
                return lines[-1].removeprefix("hadamem: ")
        return ""


def run_jobs(jobs: Iterable[Job], at_once: int, *, slots: Sequence[Mapping[str, str]] = ({},),
             again: Callable[[Job], bool] = lambda job: False,
             tick: Callable[[list[Job]], None] = lambda running: None, stopping: Callable[[], None] = lambda: None,
             every: float = 5.0) -> bool:
    """Run all jobs, at most `at_once` at a time; their exit codes are in `job.code`. Returns whether it was interrupted.

    jobs: may be a generator, which is asked for the next job when there is a place for it. slots: environment variables, taken in turn by
    the running jobs: one entry per GPU, for example. again: asked after a failure whether to start the job once more: at the end of a
    sequence, or before a generator is asked for the next. tick: called with the running jobs every `every` seconds, and when a job ends.
    stopping: called when it is interrupted, before it waits for the running jobs.

    Ctrl-C, SIGTERM and a closed terminal (SIGHUP, unless it is ignored as under nohup) interrupt the running jobs, and wait for them.
    """
    queue, repeated, running = iter(jobs), list[Job](), dict[int, Job]()      # the key: which of the places is taken
    at_the_end, interrupted = isinstance(jobs, Sequence), False

    def take() -> Job | None:
        job = next(queue, None) if at_the_end or not repeated else None
        return repeated.pop(0) if job is None and repeated else job

    with terminated_is_interrupted():
        try:
            while True:
                for place in range(at_once):
                    if place not in running and (job := take()) is not None:
                        running[place] = job      # first: Ctrl-C while it starts has to stop it, too
                        job.start(slots[place % len(slots)])
                if not running:
                    break
                _wait(list(running.values()), every)
                tick(list(running.values()))
                for place, job in list(running.items()):
                    if job.code is not None:
                        del running[place]
                        if job.code and again(job):
                            repeated.append(job)
        except KeyboardInterrupt:
            interrupted = True
            with contextlib.suppress(OSError):      # the terminal may be gone
                stopping()
        finally:
            _stop(list(running.values()))
    for job in [*repeated, *queue] if at_the_end else repeated:
        job.code = INTERRUPTED
    return interrupted


def end_with_parent(every: float = 0.5) -> None:
    """In a child: end as after Ctrl-C, with a checkpoint, when the process that started it is gone, however it ended.

    A child that has not ended after PATIENCE seconds more is ended at once.
    """
    parent = os.environ.get(PARENT)
    if parent is None or not hasattr(os, "getppid"):
        return
    if str(os.getppid()) != parent:
        if not is_alive(int(parent)):      # it ended while this process started
            raise SystemExit(INTERRUPTED)
        return      # it was not started by that process itself

    def watch() -> None:
        while str(os.getppid()) == parent:
            time.sleep(every)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(PATIENCE)
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that no child is left running."""
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
    """Raise KeyboardInterrupt once: shell and system may both send SIGHUP, and a second interrupt would kill the children."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _wait(running: list[Job], seconds: float) -> None:
    """Wait until a job ends, for at most `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for job in running:
            job.code = None if job.process is None else job.process.poll()
        if any(job.code is not None for job in running):
            return
        time.sleep(0.1)


def _stop(jobs: list[Job]) -> None:
    """Interrupt all jobs, wait until they have ended, and kill those that do not."""
    for job in jobs:
        if job.process is not None and job.process.poll() is None:
            job.interrupt()
    end = time.monotonic() + PATIENCE
    for job in jobs:
        if job.process is not None:
            try:
                job.process.wait(timeout=max(0.0, end - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                end = 0.0                    # a second Ctrl-C: kill all at once
                job.process.kill()
    for job in jobs:
        job.code = INTERRUPTED if job.process is None else job.process.wait()
