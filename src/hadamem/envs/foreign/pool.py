"""Gymnasium envs in worker processes: the side of the parent. `worker` is the program that the processes run."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from .. import trees
from .backends import GroupBackend, seeds_of
from .group import EnvError, create
from .spaces import check_same_spaces

# A worker imports this folder's `worker` below an empty package: importing hadamem.envs.foreign would import torch, which takes seconds.
# "" on the path of `python -c` is the working directory: a random.py there must not replace the standard library's.
BOOT = """
import sys
sys.path[:] = filter(None, sys.path)
from multiprocessing.connection import Connection
from types import ModuleType
_, folder, connection, parent, grace = sys.argv
connection = Connection(int(connection))
sys.path[:], sys.argv[:] = connection.recv()
package = sys.modules["hadamem_env_worker"] = ModuleType("hadamem_env_worker")
package.__path__ = [folder]
from hadamem_env_worker.worker import main
main(connection, int(parent), float(grace))
"""
PATIENCE = 5.0      # seconds that workers have to close their envs
QUIET = 60.0        # seconds without an answer after which a warning names the envs


class Workers(GroupBackend):
    """Envs in `workers` processes that step at the same time. Actions and results are in shared memory; pipes carry only commands.

    The processes are new ones, not forks, which torch's threads would not survive. They end with `close`, when this object is garbage
    collected, or when this process dies, also if an env hangs (see `worker.exit_with_parent` for the one exception).
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], num_envs: int, mode: AutoresetMode, workers: int, restarts: int = 0,
                 timeout: float | None = None):
        """restarts: how many workers may be started again after they died or hung. timeout: seconds for a step or reset; None: no limit."""
        import cloudpickle

        super().__init__()
        self.num_envs, self.mode, self.restarts, self.timeout = num_envs, mode, restarts, timeout
        _check_limits(restarts, timeout, mode)
        try:
            self.payload = cloudpickle.dumps(make)
        except Exception as error:
            raise TypeError(f"env cannot be sent to worker processes ({error}); pass workers=0, or what cloudpickle can pickle") from error
        self.parts = [(int(part[0]), len(part)) for part in np.array_split(np.arange(num_envs), workers)]      # first env, number of envs
        self.pending: set[int] = set()         # workers that have not answered yet
        self.seeds: list[int | None] = [None] * num_envs      # of the last reset
        self.options: dict[str, Any] | None = None
        self.processes, self.connections = list[subprocess.Popen[bytes]](), list[Connection]()
        self._end = weakref.finalize(self, _stop, self.processes, self.connections, os.getpid())
        try:
            for _ in range(workers):
                process, connection = _start()
                self.processes.append(process)
                self.connections.append(connection)
            for worker in range(workers):
                self._send(worker, self._make(worker))
            described = self._all(*self._answers())
            for (first, _), other in zip(self.parts, described, strict=True):
                self._check_same(first, other, described[0])
            self.configure(described[0])
            self.size = create(self.observation_space, self.action_space, num_envs)[1]
            with _memory(self.size) as memory:      # the file is deleted once all have mapped it
                self.attach(create(self.observation_space, self.action_space, num_envs, mmap.mmap(memory.fileno(), self.size))[0])
                self._all(*self._ask("attach", num_envs, self.size, memory.name))
                self.memory = os.dup(memory.fileno())      # for workers that are started again
            self._forget = weakref.finalize(self, os.close, self.memory)
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int | list[int] | None, options: dict[str, Any] | None, mask: np.ndarray | None) -> None:
        self._replace(self._answers(self.timeout)[1])      # drop answers of an interrupted step
        seeds = seeds_of(seed, self.num_envs)
        self.seeds = [old if new is None else new for old, new in zip(self.seeds, seeds, strict=True)]
        self.options = options
        self._replace(self._ask("reset", seeds, options, None if mask is None else mask.tolist(), limit=self.timeout)[1])

    def step(self, action: np.ndarray) -> dict[int, dict[str, Any]]:
        self.arrays["action"][:] = action
        before = trees.apply(np.copy, self.obs) if self.restarts else None      # a worker that dies may have overwritten some of them
        parts, lost = self._ask("step", limit=self.timeout)
        ends: dict[int, dict[str, Any]] = {}
        for part in parts:
            ends.update(part)
        self._replace(lost)
        for worker in lost:
            ends.update(self._truncate(worker, before))
        return ends

    def render(self, i: int) -> Any:
        self._all(*self._answers())
        worker = next(w for w, (first, count) in enumerate(self.parts) if first <= i < first + count)
        self._send(worker, ("render", i))
        return self._all(*self._answers())[0]

    def waiting_for(self) -> str:
        silent = [worker for worker in sorted(self.pending) if not self.connections[worker].poll(0)]
        return ", ".join(self._envs_of(worker) for worker in silent) or self.name

    def close(self) -> None:
        self.closed = True
        self._end()
        if hasattr(self, "_forget"):
            self._forget()

    # --- commands and answers --------------------------------------------------------------------------------------

    def _ask(self, *command: Any, limit: float | None = None) -> tuple[list[Any], dict[int, str]]:
        """Send a command to all workers and wait for them: see `_answers`."""
        for worker in range(len(self.connections)):
            self._send(worker, command)
        return self._answers(limit)

    def _send(self, worker: int, command: Any) -> None:
        self.pending.add(worker)
        with contextlib.suppress(OSError):      # it died: `_answers` finds out
            self.connections[worker].send(command)

    def _answers(self, limit: float | None = None) -> tuple[list[Any], dict[int, str]]:
        """Wait for the pending answers. Returns them in order of the workers, and {worker: why} of those that died or took too long.

        A worker is pending until its answer has arrived. limit: seconds. An env that raised an error is an EnvError here.
        """
        answers, lost, failed = list[Any](), dict[int, str](), ""
        end = float("inf") if limit is None else time.monotonic() + limit
        for worker in sorted(self.pending):
            kind, answer = "", None
            try:
                if self._wait(worker, end):
                    kind, answer = self.connections[worker].recv()
                else:
                    lost[worker] = f"did not answer within {limit:g} s (env_timeout)"
            except (EOFError, OSError):
                lost[worker] = self._death(worker)
            self.pending.discard(worker)
            if kind == "failed":
                failed = failed or str(answer)
            elif kind:
                answers.append(answer)
        if failed:
            self.close()
            raise EnvError(failed)
        return answers, lost

    def _wait(self, worker: int, end: float) -> bool:
        """Wait for an answer until the time `end`. Not in recv: Ctrl-C there could leave half a message in the pipe."""
        connection, left = self.connections[worker], max(0.0, end - time.monotonic())
        if connection.poll(min(QUIET, left)):
            return True
        if left > QUIET:
            warnings.warn(f"hadamem: {self._envs_of(worker)} have not answered for {QUIET:.0f} s; still waiting "
                          "(Ctrl-C twice ends a run)", RuntimeWarning, stacklevel=3)
        return connection.poll(None if end == float("inf") else max(0.0, end - time.monotonic()))

    def _all(self, answers: list[Any], lost: dict[int, str]) -> list[Any]:
        """The answers, if no worker was lost."""
        for worker, why in lost.items():
            self._give_up(worker, why)
        return answers

    def _give_up(self, worker: int, why: str, more: str = "") -> None:
        self.close()
        raise EnvError(f"the worker process of {self._envs_of(worker)} {why}{more}; its error message, if any, is on stderr")

    def _death(self, worker: int) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes[worker].wait(PATIENCE)
        code = self.processes[worker].returncode
        return "closed its connection" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"

    # --- restarts --------------------------------------------------------------------------------------------------

    def _replace(self, lost: dict[int, str]) -> None:
        """Start lost workers again, with new envs that are reset; an EnvError if no restarts are left."""
        for worker, reason in lost.items():
            why: str | None = reason
            while why is not None:
                if self.restarted == self.restarts:
                    self._give_up(worker, why, f", and all {self.restarts} restarts (env_restarts) are used up" if self.restarts else "")
                self.restarted += 1
                told = f"the worker process of {self._envs_of(worker)} {why}: restarted with new episodes, {self.restarted} of " \
                       f"{self.restarts} restarts used"
                try:
                    why = self._start_again(worker)
                except BaseException:
                    self.close()
                    raise
                self.notify(told)

    def _start_again(self, worker: int) -> str | None:
        """Replace the process of a worker. Returns None, or why the new one was lost as well."""
        _end_process(self.processes[worker], time.monotonic())
        self.connections[worker].close()
        self.processes[worker], self.connections[worker] = _start(self.memory)
        first = self.parts[worker][0]
        # The seeds differ from those before, since these may lead to the same failure again.
        seeds = [None if seed is None else int(np.random.SeedSequence([seed, self.restarted]).generate_state(1)[0] >> 1)
                 for seed in self.seeds]
        for command, limit in ((self._make(worker), None), (("attach", self.num_envs, self.size, self.memory), None),
                               (("reset", seeds, self.options, None), self.timeout)):
            self._send(worker, command)
            answers, lost = self._answers(limit)
            if lost:
                return lost[worker]
            if command[0] == "make":
                self._check_same(first, answers[0], {"observation_space": self.observation_space, "action_space": self.action_space})
        return None

    def _truncate(self, worker: int, before: Any) -> dict[int, dict[str, Any]]:
        """End the episodes that a worker took with it. before: the observations before the step. Returns the last infos."""
        first, count = self.parts[worker]
        rows = slice(first, first + count)

        def put(final: np.ndarray, old: np.ndarray) -> np.ndarray:
            final[rows] = old[rows]
            return final

        trees.apply(put, self.final, before)
        self.reward[rows], self.terminated[rows], self.truncated[rows] = 0.0, False, True
        return {i: {"env_restarted": True} for i in range(first, first + count)}

    def _make(self, worker: int) -> tuple[Any, ...]:
        """The command that makes the envs of a worker."""
        first, count = self.parts[worker]
        return "make", self.payload, count, first, self.mode.name.lower()

    def _envs_of(self, worker: int) -> str:
        first, count = self.parts[worker]
        return f"envs {first} to {first + count - 1}"

    def _check_same(self, first: int, one: dict[str, Any], other: dict[str, Any]) -> None:
        """Raise a ValueError if env `first`, described by `one`, has other spaces than env 0."""
        check_same_spaces(first, one["observation_space"], one["action_space"], 0, other["observation_space"], other["action_space"])


def _check_limits(restarts: int, timeout: float | None, mode: AutoresetMode) -> None:
    if isinstance(restarts, bool) or not isinstance(restarts, (int, np.integer)) or restarts < 0:
        raise ValueError(f"env_restarts must be a whole number of at least 0, got {restarts!r}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"env_timeout must be None or seconds above 0, got {timeout!r}")
    if restarts and mode is not AutoresetMode.SAME_STEP:
        raise ValueError(f"env_restarts needs autoreset_mode='same_step', got {mode.name.lower()}; leave one of them out")


def _memory(size: int) -> Any:
    """A temporary file of `size` bytes to share, in memory if there is room.

    The space is reserved now: if /dev/shm ran full during a step, the processes would be killed.
    """
    for folder in ("/dev/shm", tempfile.gettempdir()):
        try:
            memory = tempfile.NamedTemporaryFile(dir=folder)  # noqa: SIM115  # the caller closes it
        except OSError:      # no such folder, or not writable
            continue
        try:
            memory.truncate(size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(memory.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):      # the file system cannot reserve space
                memory.close()
                continue
        return memory
    raise OSError(errno.ENOSPC, f"worker processes share arrays of {size} bytes, which fit neither into /dev/shm nor into "
                                f"{tempfile.gettempdir()}: enlarge one (docker run --shm-size=...), use workers=0 or a smaller num_envs")


def _start(*files: int) -> tuple[subprocess.Popen[bytes], Connection]:
    """A new worker, to which sys.path is sent already, and our end of its pipe. files: descriptors that it inherits."""
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ}
    ours, theirs = Pipe()
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(Path(__file__).parent), str(theirs.fileno()), str(os.getpid()), str(PATIENCE)],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), *files), env=environment)
    except BaseException:
        ours.close()
        raise
    with contextlib.suppress(OSError):      # it died: the first answer says so
        ours.send((sys.path, sys.argv))
    return process, ours


def _stop(processes: list[subprocess.Popen[bytes]], connections: list[Connection], parent: int) -> None:
    if os.getpid() != parent:      # a fork of the parent: the workers are not its children
        return
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.send(("close",))
        connection.close()
    end = time.monotonic() + PATIENCE
    for process in processes:
        end = _end_process(process, end)


def _end_process(process: subprocess.Popen[bytes], end: float) -> float:
    """Wait for a process until the time `end`, and then end it, by force if need be. Returns until when others may be waited for."""
    for hurry in (process.terminate, process.kill):
        try:
            process.wait(max(0.01, end - time.monotonic()))
            break
        except subprocess.TimeoutExpired:
            hurry()
            end = max(end, time.monotonic() + 1.0)
    process.wait()
    return end
