"""Gymnasium envs of one process, stepped one after the other. They write into arrays that other processes may share.

Worker processes load this file without the rest of hadamem: it imports numpy and Gymnasium only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env, Space, spaces

from .spaces import STORED, Leaf, check_same_spaces, choices, env_action, flat_mask, leaves, read_flag, read_reward

SAME_STEP, NEXT_STEP, DISABLED = "same_step", "next_step", "disabled"


class EnvError(RuntimeError):
    """An env failed. The message names the env and the call that failed, and has the traceback if it ran in a worker process."""


class Group:
    """Envs `first`, `first + 1`, ... of a batch. Call `describe`, then `attach`, then `reset` and `step`.

    mode: autoreset mode, "same_step", "next_step" or "disabled".
    """

    def __init__(self, makers: Sequence[Callable[[], Env[Any, Any]]], first: int, mode: str):
        self.first, self.mode = first, mode
        self.current = first                   # the env that is being stepped or reset
        self.envs: list[Env[Any, Any]] = []
        try:
            for i, make in enumerate(makers, first):
                with failures(i, "its construction"):
                    env = make()
                    if not isinstance(env, Env):
                        raise TypeError(f"the callable must make a gymnasium.Env, got {type(env).__name__}")
                    self.envs.append(env)
        except BaseException:
            self.close()
            raise
        self.elapsed = [0] * len(self.envs)
        self.ended = [False] * len(self.envs)

    def describe(self) -> dict[str, Any]:
        """Spaces, render mode, time limit and name. All envs must have the same spaces."""
        env = self.envs[0]
        spec = env.spec
        for i, other in enumerate(self.envs, self.first):
            check_same_spaces(i, other.observation_space, other.action_space, self.first, env.observation_space, env.action_space)
        return {"observation_space": env.observation_space, "action_space": env.action_space, "render_mode": env.render_mode,
                "episode_steps": None if spec is None else spec.max_episode_steps, "name": str(env.unwrapped)}

    def attach(self, arrays: dict[str, Any]) -> None:
        """Use these arrays, made by `create`, from now on."""
        self.arrays = arrays
        space = self.envs[0].observation_space
        self.obs_leaves, self.final_leaves = leaves(space, arrays["obs"]), leaves(space, arrays["final"])
        self.sizes = choices(self.envs[0].action_space)
        self.mask_in_obs = isinstance(space, spaces.Dict) and "action_mask" in space.spaces

    def reset(self, seeds: Sequence[int | None], options: dict[str, Any] | None, mask: Sequence[bool] | None) -> None:
        """Reset the envs, or those in `mask`. seeds, mask: one entry for each env of the whole batch."""
        for j in range(len(self.envs)):
            i = self.first + j
            if mask is None or mask[i]:
                self._reset(j, seeds[i], options)

    def step(self) -> dict[int, dict[str, Any]]:
        """Step with the actions in the arrays. Returns the last info of each episode that ended: {index of env: info}."""
        ends: dict[int, dict[str, Any]] = {}
        arrays, limit = self.arrays, int(self.arrays["limit"][0])
        for j, env in enumerate(self.envs):
            i = self.current = self.first + j
            arrays["started"][i] = False
            if self.mode == NEXT_STEP and self.ended[j]:
                arrays["reward"][i], arrays["terminated"][i], arrays["truncated"][i] = 0.0, False, False
                self._reset(j, None, None)
                continue
            action = env_action(env.action_space, arrays["action"][i])
            with failures(i, f"step({action!r})"):
                obs, reward, terminated, truncated, info = _parts(env.step(action), ("obs", "reward", "terminated", "truncated", "info"))
                terminated, truncated = read_flag(terminated, "terminated"), read_flag(truncated, "truncated")
                self._store(self.obs_leaves, i, obs)
                self._store_mask(i, obs, info, terminated or truncated)
                arrays["reward"][i] = read_reward(reward)
            self.elapsed[j] += 1
            truncated = truncated or 0 < limit <= self.elapsed[j]
            arrays["terminated"][i], arrays["truncated"][i] = terminated, truncated
            self.ended[j] = terminated or truncated
            if self.ended[j]:
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
        i = self.current = self.first + j
        with failures(i, f"reset(seed={seed}, options={options})"):
            obs, info = _parts(self.envs[j].reset(seed=seed, options=options), ("obs", "info"))
            self._store(self.obs_leaves, i, obs)
            self._store_mask(i, obs, info)
        self.arrays["started"][i] = True
        self.elapsed[j], self.ended[j] = 0, False

    def _store(self, targets: list[Leaf], i: int, obs: Any) -> None:
        for path, name, array, integers in targets:
            value = obs
            for key in path:
                value = value[key]
            value = np.asarray(value)
            if value.shape != array.shape[1:]:
                raise ValueError(f"{name} must have the shape {list(array.shape[1:])} of its space, got {list(value.shape)}")
            if integers is not None:
                integers.check(value, name)
            array[i] = value

    def _store_mask(self, i: int, obs: Any, info: dict[str, Any], over: bool = False) -> None:
        mask: Any = obs["action_mask"] if self.mask_in_obs else info.get("action_mask")
        self.arrays["has_mask"][i] = mask is not None and self.arrays["action_mask"].shape[1] > 0
        if self.arrays["has_mask"][i]:
            self.arrays["action_mask"][i] = flat_mask(mask, self.sizes, over)


def create(observations: Space[Any], actions: Space[Any], num_envs: int, buffer: Any = None) -> tuple[dict[str, Any], int]:
    """The arrays of a batch, and their size in bytes. buffer: memory to place them in, one after the other; None allocates it."""
    size = 0

    def array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        nonlocal size
        start, size = size, size + -(-max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize) // 64) * 64      # aligned to cache lines
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
        "terminated": array(n, bool), "truncated": array(n, bool), "started": array(n, bool),
        "has_mask": array(n, bool), "action_mask": array((num_envs, sum(choices(actions))), bool), "limit": array((1,), np.int64),
    }
    return arrays, size


@contextlib.contextmanager
def failures(i: int, what: str) -> Any:
    """Turn errors of env i into EnvErrors. what: the call that failed."""
    try:
        yield
    except SystemExit as error:      # it would end the whole program
        raise EnvError(f"env {i} failed in {what}: it called sys.exit({error.code!r})") from error
    except Exception as error:
        raise EnvError(f"env {i} failed in {what}: {type(error).__name__}: {error}") from error


def _parts(found: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """What reset() or step() returned, if it is what Gymnasium's API says."""
    if not isinstance(found, (tuple, list)) or len(found) != len(names):
        got = f"{len(found)} values" if isinstance(found, (tuple, list)) else type(found).__name__
        raise TypeError(f"it must return {', '.join(names)}, as in Gymnasium's API, but returned {got}")
    if not isinstance(found[-1], dict):
        raise TypeError(f"info must be a dict, got {type(found[-1]).__name__}")
    return tuple(found)
