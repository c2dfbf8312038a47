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

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], num_envs: int, mode: AutoresetMode, workers: int):
        import cloudpickle

        self.num_envs, self.mode = num_envs, mode
        try:
            payload = cloudpickle.dumps(make)
        except Exception as error:
            raise TypeError(f"env cannot be sent to worker processes ({error}); pass workers=0, or what cloudpickle can pickle") from error
        self.parts = [(int(part[0]), len(part)) for part in np.array_split(np.arange(num_envs), workers)]      # first env, number of envs
        self.pending: set[int] = set()         # workers that have not answered yet
        self.processes, self.connections = _start(workers)
        self._end = weakref.finalize(self, _stop, self.processes, self.connections, os.getpid())
        try:
            for connection, (first, count) in zip(self.connections, self.parts, strict=True):
                connection.send((sys.path, sys.argv))
                connection.send(("make", payload, count, first, mode.name.lower()))
            self.pending = set(range(workers))
            described = self._answers()
            self._check_same(described)
            self.configure(described[0])
            size = create(self.observation_space, self.action_space, num_envs)[1]
            with _memory(size) as memory:      # the file is deleted once all have mapped it
                self.attach(create(self.observation_space, self.action_space, num_envs, mmap.mmap(memory.fileno(), size))[0])
                self._ask("attach", num_envs, size, memory.name)
        except BaseException:
            self.close()
            raise

    def reset(self, seed: int | list[int] | None, options: dict[str, Any] | None, mask: np.ndarray | None) -> None:
        self._answers()      # drop those of an interrupted step
        self._ask("reset", seeds_of(seed, self.num_envs), options, None if mask is None else mask.tolist())

    def step(self, action: np.ndarray) -> dict[int, dict[str, Any]]:
        self.arrays["action"][:] = action
        ends: dict[int, dict[str, Any]] = {}
        for part in self._ask("step"):
            ends.update(part)
        return ends

    def render(self, i: int) -> Any:
        self._answers()
        worker = next(w for w, (first, count) in enumerate(self.parts) if first <= i < first + count)
        self._send(worker, ("render", i))
        return self._answers()[0]

    def close(self) -> None:
        self.closed = True
        self._end()

    def _ask(self, *command: Any) -> list[Any]:
        for worker in range(len(self.connections)):
            self._send(worker, command)
        return self._answers()

    def _send(self, worker: int, command: Any) -> None:
        self.pending.add(worker)
        with contextlib.suppress(OSError):      # it died: `_answers` raises the error
            self.connections[worker].send(command)

    def _answers(self) -> list[Any]:
        """Wait for the pending answers and return them in order of the workers. A worker is pending until its answer has arrived."""
        answers, failed = [], ""
        for worker in sorted(self.pending):
            try:
                if not self.connections[worker].poll(QUIET):
                    warnings.warn(f"hadamem: {self._envs_of(worker)} have not answered for {QUIET:.0f} s; still waiting "
                                  "(Ctrl-C twice ends a run)", RuntimeWarning, stacklevel=2)
                self.connections[worker].poll(None)      # wait here: Ctrl-C inside recv could leave half a message in the pipe
                kind, answer = self.connections[worker].recv()
            except (EOFError, OSError):
                kind, answer = "failed", self._death(worker)
            self.pending.discard(worker)
            if kind == "failed":
                failed = failed or answer
            answers.append(answer)
        if failed:
            self.close()
            raise EnvError(failed)
        return answers

    def _death(self, worker: int) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes[worker].wait(PATIENCE)
        code = self.processes[worker].returncode
        how = "closed its connection" if code is None else f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the worker process of {self._envs_of(worker)} {how}; its error message, if any, is on stderr"

    def _envs_of(self, worker: int) -> str:
        first, count = self.parts[worker]
        return f"envs {first} to {first + count - 1}"

    def _check_same(self, described: list[dict[str, Any]]) -> None:
        one = described[0]
        for (first, _), other in zip(self.parts, described, strict=True):
            check_same_spaces(first, other["observation_space"], other["action_space"], 0, one["observation_space"], one["action_space"])


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


def _start(workers: int) -> tuple[list[subprocess.Popen[bytes]], list[Connection]]:
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ}
    processes: list[subprocess.Popen[bytes]] = []
    connections: list[Connection] = []
    try:
        for _ in range(workers):
            ours, theirs = Pipe()
            connections.append(ours)
            with theirs:
                processes.append(subprocess.Popen(
                    [sys.executable, "-c", BOOT, str(Path(__file__).parent), str(theirs.fileno()), str(os.getpid()), str(PATIENCE)],
                    stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=environment))
    except BaseException:
        _stop(processes, connections, os.getpid())
        raise
    return processes, connections


def _stop(processes: list[subprocess.Popen[bytes]], connections: list[Connection], parent: int) -> None:
    if os.getpid() != parent:      # a fork of the parent: the workers are not its children
        return
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.send(("close",))
        connection.close()
    end = time.monotonic() + PATIENCE
    for process in processes:
        for hurry in (process.terminate, process.kill):
            try:
                process.wait(max(0.01, end - time.monotonic()))
                break
            except subprocess.TimeoutExpired:
                hurry()
                end = max(end, time.monotonic() + 1.0)
        process.wait()
