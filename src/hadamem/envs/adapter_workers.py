"""Gymnasium envs of one process, stepped one after the other into arrays that other processes may share.

Worker processes load this file by its path: it needs numpy and Gymnasium only, so a worker starts fast and stays small.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env, Space, spaces

SAME_STEP, NEXT_STEP, DISABLED = "same_step", "next_step", "disabled"
UNKNOWN = -1      # of success
# torch knows no whole numbers without sign beyond bytes, and no floats longer than 64 bits
STORED = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "float128": "float64", "longdouble": "float64"}


class EnvError(RuntimeError):
    """An env failed; the message says which, in what, and in a worker process also where."""


class Group:
    """Envs number `first`, `first + 1`, ... of a batch. `describe`, then `attach` arrays, then `reset` and `step`.

    mode: how envs start anew after an episode: "same_step", "next_step" or "disabled".
    """

    def __init__(self, makers: Sequence[Callable[[], Env[Any, Any]]], first: int, mode: str):
        self.first, self.mode = first, mode
        self.envs: list[Env[Any, Any]] = []
        for i, make in enumerate(makers, first):
            with failures(i, "being made"):
                env = make()
                if not isinstance(env, Env):
                    raise TypeError(f"the callable must make a gymnasium.Env, got {type(env).__name__}")
                self.envs.append(env)
        self.elapsed = [0] * len(self.envs)
        self.ended = [False] * len(self.envs)

    def describe(self) -> dict[str, Any]:
        """Spaces and the like of the envs, which must all have the same."""
        env = self.envs[0]
        spec = env.spec
        for i, other in enumerate(self.envs, self.first):
            check_same_spaces(i, other.observation_space, other.action_space, self.first, env.observation_space, env.action_space)
        return {"observation_space": env.observation_space, "action_space": env.action_space, "render_mode": env.render_mode,
                "episode_steps": None if spec is None else spec.max_episode_steps, "name": str(env.unwrapped)}

    def attach(self, arrays: dict[str, Any]) -> None:
        """Write into these arrays from now on; see `create`."""
        self.arrays = arrays
        space = self.envs[0].observation_space
        self.obs_leaves, self.final_leaves = leaves(space, arrays["obs"]), leaves(space, arrays["final"])
        self.sizes = choices(self.envs[0].action_space)
        self.mask_in_obs = isinstance(space, spaces.Dict) and "action_mask" in space.spaces

    def reset(self, seeds: Sequence[int | None], options: dict[str, Any] | None, mask: Sequence[bool] | None) -> None:
        """seeds, mask: of all envs of the batch."""
        for j in range(len(self.envs)):
            i = self.first + j
            if mask is None or mask[i]:
                self._reset(j, seeds[i], options)

    def step(self) -> dict[int, dict[str, Any]]:
        """Take the actions in the arrays. The last info of each episode that ended: {number of env: info}."""
        ends: dict[int, dict[str, Any]] = {}
        arrays, limit = self.arrays, int(self.arrays["limit"][0])
        for j, env in enumerate(self.envs):
            i = self.first + j
            arrays["started"][i] = False
            arrays["success"][i] = UNKNOWN
            if self.mode == NEXT_STEP and self.ended[j]:
                arrays["reward"][i], arrays["terminated"][i], arrays["truncated"][i] = 0.0, False, False
                self._reset(j, None, None)
                continue
            action = taken(env.action_space, arrays["action"][i])
            with failures(i, f"step({action!r})"):
                obs, reward, terminated, truncated, info = env.step(action)
                self._store(self.obs_leaves, i, obs)
                self._store_mask(i, obs, info, bool(terminated or truncated))
                arrays["reward"][i] = reward
            self.elapsed[j] += 1
            truncated = bool(truncated) or 0 < limit <= self.elapsed[j]
            arrays["terminated"][i], arrays["truncated"][i] = bool(terminated), truncated
            self.ended[j] = bool(terminated) or truncated
            if self.ended[j]:
                success = info.get("success", info.get("is_success"))
                arrays["success"][i] = UNKNOWN if success is None else bool(success)
                ends[i] = info
                if self.mode == SAME_STEP:
                    self._store(self.final_leaves, i, obs)
                    self._reset(j, None, None)
        return ends

    def render(self, i: int) -> Any:
        with failures(i, "render()"):
            return self.envs[i - self.first].render()

    def close(self) -> None:
        for env in self.envs:
            with contextlib.suppress(Exception, SystemExit):
                env.close()
        self.envs = []

    def _reset(self, j: int, seed: int | None, options: dict[str, Any] | None) -> None:
        i = self.first + j
        with failures(i, f"reset(seed={seed}, options={options})"):
            obs, info = self.envs[j].reset(seed=seed, options=options)
            self._store(self.obs_leaves, i, obs)
            self._store_mask(i, obs, info)
        self.arrays["started"][i] = True
        self.elapsed[j], self.ended[j] = 0, False

    def _store(self, targets: list[Leaf], i: int, obs: Any) -> None:
        for path, name, array, numbers in targets:
            value = obs
            for key in path:
                value = value[key]
            value = np.asarray(value)
            if value.shape != array.shape[1:]:
                raise ValueError(f"{name} must have the shape {list(array.shape[1:])} of its space, got {list(value.shape)}")
            if numbers is not None:
                numbers.check(value, name)
            array[i] = value

    def _store_mask(self, i: int, obs: Any, info: dict[str, Any], over: bool = False) -> None:
        mask: Any = obs["action_mask"] if self.mask_in_obs else info.get("action_mask")
        self.arrays["has_mask"][i] = mask is not None and self.arrays["action_mask"].shape[1] > 0
        if self.arrays["has_mask"][i]:
            self.arrays["action_mask"][i] = flat_mask(mask, self.sizes, over)


# --- arrays --------------------------------------------------------------------------------------------------------


def create(observations: Space[Any], actions: Space[Any], num_envs: int, buffer: Any = None) -> tuple[dict[str, Any], int]:
    """The arrays of a batch, one after the other in `buffer` (None: in memory of their own), and how many bytes they take."""
    size = 0

    def array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        nonlocal size
        start, size = size, size + -(-max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize) // 64) * 64      # lines of the cache
        return np.zeros(shape, dtype) if buffer is None else np.ndarray(shape, dtype, buffer, offset=start)

    def tree(space: Space[Any]) -> Any:
        if isinstance(space, spaces.Dict):
            return {name: tree(inner) for name, inner in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(tree(inner) for inner in space.spaces)
        dtype = np.dtype(space.dtype)
        return array((num_envs, *(space.shape or ())), STORED.get(dtype.name, dtype))

    n = (num_envs,)
    arrays = {
        "obs": tree(observations), "final": tree(observations), "reward": array(n, np.float32),
        "action": array((num_envs, *(actions.shape or ())), actions.dtype if isinstance(actions, spaces.Box) else np.int64),
        "terminated": array(n, bool), "truncated": array(n, bool), "started": array(n, bool), "success": array(n, np.int8),
        "has_mask": array(n, bool), "action_mask": array((num_envs, sum(choices(actions))), bool), "limit": array((1,), np.int64),
    }
    return arrays, size


class Numbers:
    """The whole numbers that a leaf of observations may hold: its own, or for a Box those of its type. Others would be stored as something
    else without a word. `of` gives None for floats: that envs overstep the low and high of a Box is common.
    """

    def __init__(self, space: Space[Any], low: Any, high: Any):
        self.space, self.low, self.high = space, low, high
        self.dtype = np.dtype(space.dtype) if isinstance(space, spaces.Box) else None      # a type whose numbers are all allowed
        self.shape = space.shape or ()
        self.few: list[list[int]] | None = None
        if self.dtype is None and np.prod(self.shape) <= 64:      # limits of each number: plain Python takes a tenth of numpy's time
            self.few = [np.broadcast_to(limit, self.shape).ravel().tolist() for limit in (low, high)]

    @classmethod
    def of(cls, space: Space[Any]) -> Numbers | None:
        if isinstance(space, spaces.Discrete):
            return cls(space, int(space.start), int(space.start + space.n) - 1)
        if isinstance(space, spaces.MultiDiscrete):
            return cls(space, space.start, space.start + space.nvec - 1)
        dtype = np.dtype(space.dtype)
        if isinstance(space, spaces.MultiBinary) or dtype.kind == "b":
            return cls(space, 0, 1)
        return cls(space, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) if dtype.kind in "iu" else None

    def check(self, value: np.ndarray, name: str) -> None:
        """value: one env's, or a batch [N, ...]."""
        dtype = value.dtype
        if self.dtype is not None and (dtype == self.dtype or np.can_cast(dtype, self.dtype)):
            return
        if dtype.kind not in "biuf":
            raise ValueError(f"{name} must be of {self}, got {str(value)[:40]!r} of type {dtype}")
        if not self._all_fit(value):
            at = tuple(np.argwhere(~self._fit(value))[0])
            low, high = (np.broadcast_to(limit, value.shape)[at] for limit in (self.low, self.high))
            raise ValueError(f"{name} must be of {self}, here a whole number from {low} to {high}, got {value[at]} ({dtype}); "
                             f"{self._cure(value)}")

    def _all_fit(self, value: np.ndarray) -> bool:
        if self.few is None or value.shape != self.shape or value.dtype.kind == "f":
            return bool(self._fit(value).all())
        if not self.shape:
            return bool(self.low <= value.item() <= self.high)
        for x, low, high in zip(value.ravel().tolist(), *self.few, strict=True):  # noqa: SIM110  # `all` is half as fast
            if not low <= x <= high:
                return False
        return True

    def _fit(self, value: np.ndarray) -> np.ndarray:
        fits = (value >= self.low) & (value <= self.high)      # false for nan
        return np.asarray(fits & (value == np.floor(value)) if value.dtype.kind == "f" else fits)

    def _cure(self, value: np.ndarray) -> str:
        if self.dtype == np.uint8 and value.dtype.kind == "f" and bool(((value >= 0) & (value <= 1)).all()):
            return "for a picture from 0 to 1 give (255 * x).astype(np.uint8), or have an observation_space of float32"
        return "correct the observation, or the observation_space"

    def __str__(self) -> str:
        if isinstance(self.space, spaces.MultiDiscrete):      # with all its numbers it would be long
            return f"a MultiDiscrete of shape {list(self.shape)}"
        return str(self.space) if self.dtype is None else f"a Box of {self.dtype}"


Leaf = tuple[tuple[Any, ...], str, np.ndarray, "Numbers | None"]


def leaves(space: Space[Any], tree: Any, path: tuple[Any, ...] = ()) -> list[Leaf]:
    """(path, its name in errors, array, what numbers are allowed) of each leaf."""
    if isinstance(space, spaces.Dict):
        return [leaf for name, inner in space.spaces.items() for leaf in leaves(inner, tree[name], (*path, name))]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, inner in enumerate(space.spaces) for leaf in leaves(inner, tree[i], (*path, i))]
    return [(path, "observation" + "".join(f"[{key!r}]" for key in path), tree, Numbers.of(space))]


def choices(space: Space[Any]) -> list[int]:
    """How many entries an action mask has for each part of an action: those of MultiDiscrete lie side by side; none if there is no mask."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return [int(n) for n in space.nvec.flat] if isinstance(space, spaces.MultiDiscrete) else []


def flat_mask(mask: Any, sizes: list[int], over: bool = False) -> np.ndarray:
    """One env's action mask as [sum of sizes] bool; tuples and lists hold the parts of a MultiDiscrete action.

    It must leave a choice, but where the episode is over: no action follows, and all are allowed there.
    """
    flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, (tuple, list)) else np.ravel(mask)
    if len(flat) != sum(sizes):
        raise ValueError(f"action_mask must have {sum(sizes)} entries, got {len(flat)}")
    flat = flat != 0
    if not (flat.any() if len(sizes) == 1 else np.logical_or.reduceat(flat, np.cumsum([0, *sizes[:-1]])).all()):
        if not over:
            raise ValueError(f"action_mask must allow an action{' in each part' if len(sizes) > 1 else ''}, got {flat.astype(int)}; "
                             "allow one that does nothing, or end the episode")
        flat = np.ones_like(flat)
    return flat


def taken(space: Space[Any], action: np.ndarray) -> Any:
    """The action as the env wants it: counted from its start, or cut to its box."""
    if isinstance(space, spaces.Discrete):
        return np.int64(action + space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return (action + space.start).astype(space.dtype)
    if isinstance(space, spaces.Box):
        return np.clip(action, space.low, space.high).astype(space.dtype, copy=False)
    return action.astype(space.dtype)


def check_same_spaces(i: int, obs: Space[Any], act: Space[Any], j: int, other_obs: Space[Any], other_act: Space[Any]) -> None:
    for what, a, b in (("observation", obs, other_obs), ("action", act, other_act)):
        if a != b:
            raise ValueError(f"all envs must have the same {what} space, but env {i} has {a} and env {j} has {b}")


@contextlib.contextmanager
def failures(i: int, what: str) -> Any:
    """Errors of env i come out as EnvErrors that say what it was at."""
    try:
        yield
    except SystemExit as error:      # else the command would end, as if all were well or with another's words
        raise EnvError(f"env {i} failed in {what}: it called sys.exit({error.code!r})") from error
    except Exception as error:
        raise EnvError(f"env {i} failed in {what}: {type(error).__name__}: {error}") from error


# --- the worker process --------------------------------------------------------------------------------------------


def main(connection: Any, parent: int, last: int) -> None:
    """Serve commands until the connection ends, which it does at the latest with the parent. parent, last: see `_follow`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)      # Ctrl-C is the parent's to handle
    if parent:
        _follow(parent, last)
    group: Group | None = None
    try:
        while True:
            command, *args = connection.recv()
            if command == "close":
                break
            try:
                reply: Any = None
                if command == "make":
                    payload, count, first, mode = args
                    with failures(first, "being unpickled in the worker"):
                        make = pickle.loads(payload)
                    group = Group([make] * count, first, mode)
                    reply = group.describe()
                elif command == "attach" and group is not None:
                    (num_envs, size, path), inner = args, group.envs[0]
                    with open(path, "r+b") as file:
                        group.attach(create(inner.observation_space, inner.action_space, num_envs, mmap.mmap(file.fileno(), size))[0])
                elif group is not None:
                    reply = getattr(group, command)(*args)
                _send(connection, reply)
            except (Exception, SystemExit) as error:
                connection.send(("failed", _told(error)))
    except (EOFError, OSError):
        pass
    finally:
        if group is not None:
            group.close()


def _follow(parent: int, last: int) -> None:
    """Linux: end soon after the process `parent`, also while an env hangs, in Python or in C.

    Its death sends the signal number `last`, whose handler is C's `alarm`, called with that number: so many seconds remain to see the
    connection end and to close the envs as ever, then SIGALRM ends this process whatever it is at.
    """
    c = ctypes.CDLL(None)
    c.signal.argtypes = ctypes.c_int, ctypes.c_void_p
    c.signal.restype = ctypes.c_void_p
    c.signal(last, ctypes.cast(c.alarm, ctypes.c_void_p))
    c.prctl(1, last)                    # PR_SET_PDEATHSIG
    if os.getppid() != parent:          # it died before
        sys.exit()


def _send(connection: Any, reply: Any) -> None:
    try:
        message = pickle.dumps(("done", reply))
    except Exception:       # an info that cannot travel: send what can, and the rest as text
        message = pickle.dumps(("done", _harmless(reply)))
    connection.send_bytes(message)


def _harmless(value: Any) -> Any:
    if type(value) is dict:
        return {key: _harmless(inner) for key, inner in value.items()}
    try:
        pickle.dumps(value)
    except Exception:
        return repr(value)
    return value


def _told(error: BaseException) -> str:
    if not isinstance(error, EnvError):
        return f"a worker failed: {''.join(traceback.format_exception(error))}"
    cause = error.__cause__
    assert cause is not None
    inner = cause.__traceback__.tb_next if cause.__traceback__ is not None else None       # without the frame in this file
    lines = traceback.format_exception(type(cause), cause, inner or cause.__traceback__)
    return f"{error}\n\nIn the worker process:\n{''.join(lines)}"
