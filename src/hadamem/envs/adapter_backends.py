"""Where adapted Gymnasium envs run: in this process or in workers (`adapter_vector`: in a vector env). `adapter.AdaptedEnv` asks these."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from . import adapter_workers
from .adapter_workers import EnvError, Group, check_same_spaces, create

# Loads adapter_workers.py by its path: a worker imports nothing else of ours, nor the parent's main module.
# "" on the path of `python -c` is the working directory: a random.py there must not pass for the standard library's.
BOOT = """
import sys
sys.path[:] = filter(None, sys.path)
from importlib import util
from multiprocessing.connection import Connection
_, path, connection, parent, last = sys.argv
connection = Connection(int(connection))
sys.path[:], sys.argv[:] = connection.recv()
spec = util.spec_from_file_location("hadamem_env_worker", path)
module = sys.modules[spec.name] = util.module_from_spec(spec)
spec.loader.exec_module(module)
module.main(connection, int(parent), int(last))
"""
FLAT = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
PATIENCE = 5.0      # seconds that workers have to close their envs
QUIET = 60.0        # seconds that envs may take for an answer until it is told that they are waited for
LAST = 16           # the same once this process was killed, and the number of a signal that Linux leaves unused (SIGSTKFLT)


class Backend:
    """N envs of one kind. `reset` and `step` fill the attributes, which hold numpy arrays [N, ...] or trees of them.

    obs: the present observations. final: the last ones of episodes, where an env that ended has started anew already.
    started [N] bool: obs is the first of its episode. success [N]: 1, 0, or UNKNOWN. action_mask [N, A] bool where has_mask [N].
    """

    num_envs: int
    mode: AutoresetMode
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    episode_steps: int | None = None
    render_mode: str | None = None
    closed = False
    name = ""

    obs: Any
    final: Any
    reward: Any
    terminated: Any
    truncated: Any
    started: Any
    success: Any
    has_mask: Any
    action_mask: Any

    def reset(self, seed: int | list[int] | None, options: dict[str, Any] | None, mask: np.ndarray | None) -> None:
        """Start new episodes, where mask [N] says so. seed: a number for the batch, or one for each env."""
        raise NotImplementedError

    def step(self, action: np.ndarray) -> dict[int, dict[str, Any]]:
        """The last info of each episode that ended: {number of env: info}."""
        raise NotImplementedError

    def limit(self, steps: int | None) -> None:
        """Truncate episodes after so many steps."""
        raise NotImplementedError

    def render(self, i: int) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{self.name} x {self.num_envs}"

    def _described(self, described: dict[str, Any]) -> None:
        for name, value in described.items():
            setattr(self, name, value)
        check_spaces(self.observation_space, self.action_space)

    def _attach(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays
        for name, value in arrays.items():
            if name not in ("action", "limit"):
                setattr(self, name, value)

    def _set_limit(self, steps: int | None) -> None:
        self.arrays["limit"][0] = steps or 0


class InProcess(Backend):
    """Envs in this process, one after the other."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], num_envs: int, mode: AutoresetMode):
        self.num_envs, self.mode = num_envs, mode
        self.group = Group([make] * num_envs, 0, mode.name.lower())
        self._described(self.group.describe())
        self._attach(create(self.observation_space, self.action_space, num_envs)[0])
        self.group.attach(self.arrays)

    limit = Backend._set_limit

    def reset(self, seed: int | list[int] | None, options: dict[str, Any] | None, mask: np.ndarray | None) -> None:
        self.group.reset(_seeds(seed, self.num_envs), options, None if mask is None else mask.tolist())

    def step(self, action: np.ndarray) -> dict[int, dict[str, Any]]:
        self.arrays["action"][:] = action
        return self.group.step()

    def render(self, i: int) -> Any:
        return self.group.render(i)

    def close(self) -> None:
        self.closed = True
        self.group.close()


def _seeds(seed: int | list[int] | None, num_envs: int) -> list[int | None]:
    """One for each env: seed, seed + 1, ... for a number, as Gymnasium has it."""
    if seed is None or isinstance(seed, int):
        return [None if seed is None else seed + i for i in range(num_envs)]
    return list(seed)


class Workers(Backend):
    """Envs in `workers` processes that all step at once. Actions and results lie in memory they share; pipes carry only commands.

    The processes are started afresh, not forked (torch's threads would not survive that). They end with `close`, when this object is
    collected, or when this process dies. One whose env hangs then is killed after LAST seconds, but only on Linux and if it was started
    from the main thread (the kernel watches the thread that starts a process, and others may end early); else it stays until its env
    comes back.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], num_envs: int, mode: AutoresetMode, workers: int):
        import cloudpickle

        self.num_envs, self.mode = num_envs, mode
        try:
            payload = cloudpickle.dumps(make)
        except Exception as error:
            raise TypeError(f"env cannot be sent to worker processes ({error}); pass workers=0, or what cloudpickle takes") from error
        self.parts = [(int(part[0]), len(part)) for part in np.array_split(np.arange(num_envs), workers)]      # first env, how many
        self.pending: set[int] = set()         # workers that owe an answer
        self.processes, self.connections = _start(workers)
        self._end = weakref.finalize(self, _stop, self.processes, self.connections, os.getpid())
        try:
            for connection, (first, count) in zip(self.connections, self.parts, strict=True):
                connection.send((sys.path, sys.argv))
                connection.send(("make", payload, count, first, mode.name.lower()))
            self.pending = set(range(workers))
            described = self._answers()
            self._check_same(described)
            self._described(described[0])
            size = create(self.observation_space, self.action_space, num_envs)[1]
            with _memory(size) as memory:      # its name is gone once all have it
                self._attach(create(self.observation_space, self.action_space, num_envs, mmap.mmap(memory.fileno(), size))[0])
                self._ask("attach", num_envs, size, memory.name)
        except BaseException:
            self.close()
            raise

    limit = Backend._set_limit

    def reset(self, seed: int | list[int] | None, options: dict[str, Any] | None, mask: np.ndarray | None) -> None:
        self._answers()      # of a step that was interrupted
        self._ask("reset", _seeds(seed, self.num_envs), options, None if mask is None else mask.tolist())

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
        with contextlib.suppress(OSError):      # it died: `_answers` will say so
            self.connections[worker].send(command)

    def _answers(self) -> list[Any]:
        """What the workers that owe an answer say, in order. A worker stays on the list until its answer is here."""
        answers, failed = [], ""
        for worker in sorted(self.pending):
            try:
                if not self.connections[worker].poll(QUIET):
                    warnings.warn(f"hadamem: {self._envs_of(worker)} have not answered for {QUIET:.0f} s, and are waited for; Ctrl-C twice "
                                  "ends a run", RuntimeWarning, stacklevel=2)
                self.connections[worker].poll(None)      # wait here, so that Ctrl-C does not fall between the halves of a message
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
        return f"the worker process of {self._envs_of(worker)} {how}; its last words, if any, are on stderr"

    def _envs_of(self, worker: int) -> str:
        first, count = self.parts[worker]
        return f"envs {first} to {first + count - 1}"

    def _check_same(self, described: list[dict[str, Any]]) -> None:
        one = described[0]
        for (first, _), other in zip(self.parts, described, strict=True):
            check_same_spaces(first, other["observation_space"], other["action_space"], 0, one["observation_space"], one["action_space"])


def _memory(size: int) -> Any:
    """A file of `size` bytes to share, in memory if there is room. Its space is taken at once: /dev/shm can be small, and to find it full
    in the middle of a step would kill the processes.
    """
    for folder in ("/dev/shm", tempfile.gettempdir()):
        try:
            memory = tempfile.NamedTemporaryFile(dir=folder)  # noqa: SIM115  # the caller closes it
        except OSError:      # no such folder, or not for us
            continue
        try:
            memory.truncate(size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(memory.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):      # some file systems reserve nothing
                memory.close()
                continue
        return memory
    raise OSError(errno.ENOSPC, f"worker processes share arrays of {size} bytes, and neither /dev/shm nor {tempfile.gettempdir()} has that "
                                "room: give them more (docker run --shm-size=...), or pass workers=0 or a smaller num_envs")


def _start(workers: int) -> tuple[list[subprocess.Popen[bytes]], list[Connection]]:
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ}
    watched = sys.platform == "linux" and threading.current_thread() is threading.main_thread()
    parent = os.getpid() if watched else 0
    processes: list[subprocess.Popen[bytes]] = []
    connections: list[Connection] = []
    try:
        for _ in range(workers):
            ours, theirs = Pipe()
            connections.append(ours)
            with theirs:
                processes.append(subprocess.Popen(
                    [sys.executable, "-c", BOOT, str(Path(adapter_workers.__file__)), str(theirs.fileno()), str(parent), str(LAST)],
                    stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=environment))
    except BaseException:
        _stop(processes, connections, os.getpid())
        raise
    return processes, connections


def _stop(processes: list[subprocess.Popen[bytes]], connections: list[Connection], parent: int) -> None:
    if os.getpid() != parent:      # a fork of it: the workers are not its own
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


def check_spaces(observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> None:
    def check(space: gymnasium.Space[Any]) -> None:
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            for inner in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
                check(inner)
        elif not isinstance(space, FLAT):
            raise TypeError(f"observations of {space} cannot be tensors; wrap the env so that it has Box, Discrete, MultiDiscrete or "
                            "MultiBinary observations, or tuples and dicts of them")

    check(observations)
    if not isinstance(actions, FLAT):
        raise TypeError(f"actions of {actions} cannot be tensors; wrap the env so that it takes Box, Discrete, MultiDiscrete or "
                        "MultiBinary actions")
