"""A Gymnasium vector env as a backend of `AdaptedEnv`."""

from __future__ import annotations

import functools
import operator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from .. import trees
from .backends import Backend
from .group import failures
from .spaces import STORED, check_spaces, choices, env_action, flat_mask, leaves

SAME_STEP, NEXT_STEP, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED


class Vector(Backend):
    """A vector env in its own autoreset mode, or in same-step mode where it can be reset by mask after the steps that end episodes.

    That is so in disabled mode, and for Gymnasium's SyncVectorEnv and AsyncVectorEnv. Not below a wrapper: it may count episodes, and
    would miss such resets. In next-step mode there are no final observations.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any], mode: AutoresetMode | None):
        super().__init__()
        self.env, self.num_envs = env, env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        check_spaces(self.observation_space, self.action_space)
        self.leaves, self.sizes = leaves(self.observation_space, self.observation_space), choices(self.action_space)
        self.render_mode, self.name = env.render_mode, str(env)
        self.episode_steps = None if env.spec is None else env.spec.max_episode_steps
        self.own = AutoresetMode(env.metadata.get("autoreset_mode", NEXT_STEP))
        by_mask = self.own is DISABLED or isinstance(env, (SyncVectorEnv, AsyncVectorEnv))
        other = SAME_STEP if by_mask and not isinstance(env, gymnasium.vector.VectorWrapper) else self.own
        self.mode = mode or other
        if self.mode not in (self.own, other):
            raise ValueError(f"autoreset_mode must be {self.own.name.lower()} for this vector env, got {self.mode.name.lower()}; pass its "
                             "id, or a callable that makes one env with its wrappers, or for same_step gymnasium.make_vec(id, "
                             "vectorization_mode='sync', vector_kwargs={'autoreset_mode': AutoresetMode.SAME_STEP})")
        self.resets, n = self.mode is not self.own, self.num_envs      # resets: by mask
        self.elapsed, self.ended, self.steps = np.zeros(n, int), np.zeros(n, bool), 0
        self.started, self.has_mask, self.action_mask = np.ones(n, bool), np.zeros(n, bool), np.zeros((n, sum(self.sizes)), bool)

    def limit(self, steps: int | None) -> None:
        if steps is not None and not self.resets and self.own is not DISABLED:
            raise ValueError("max_episode_steps: this vector env resets itself; set the limit where its envs are made, or make it with "
                             "autoreset_mode='Disabled'")
        self.steps = steps or 0

    def reset(self, seed: int | list[int] | None, options: dict[str, Any] | None, mask: np.ndarray | None) -> None:
        which = np.ones(self.num_envs, bool) if mask is None else mask
        if which.any():      # Gymnasium's vector envs refuse a mask without a True
            more = {} if mask is None else {"reset_mask": mask.copy()}
            obs, info = self.env.reset(seed=seed, options={**(options or {}), **more} or None)  # type: ignore[arg-type]  # most take lists
            self.obs = self._checked(obs, "reset()")
            self.elapsed, self.started, self.ended = np.where(which, 0, self.elapsed), self.started | which, self.ended & ~which
            self._store_masks(info, which)

    def step(self, action: np.ndarray) -> dict[int, dict[str, Any]]:
        self.started = self.ended if self.mode is NEXT_STEP else np.zeros(self.num_envs, bool)
        obs, reward, terminated, truncated, info = self.env.step(env_action(self.action_space, action))
        self.elapsed = np.where(self.started, 0, self.elapsed + 1)
        self.obs = self._checked(obs, "step()")
        self.reward, self.terminated, self.truncated = (_array(x).copy() for x in (reward, terminated, truncated))  # a reset may clear them
        self._check_step()
        if self.steps:
            self.truncated = self.truncated | (self.elapsed >= self.steps)
        self.ended = over = self.terminated | self.truncated
        self._store_masks(info, np.ones_like(over), over if self.own is not SAME_STEP else None)
        last = info
        if "final_info" in info:      # the rest of `info` is of the reset, except for what RecordEpisodeStatistics adds
            last = {**info["final_info"], **{name: info[name] for name in ("episode", "_episode") if name in info}}
        ends = {int(i): _info_of(last, int(i), self.num_envs) for i in np.flatnonzero(over)}
        if ends and self.resets:
            self.final = trees.apply(lambda x: _array(x).copy(), self.obs)
            self.reset(None, None, over)
        elif ends and self.mode is SAME_STEP:
            self.final, self.started, self.elapsed = self._final(info, over), over, np.where(over, 0, self.elapsed)
        return ends

    def _check_step(self) -> None:
        """Rewards are numbers, and flags are booleans."""
        if self.reward.dtype.kind not in "fiub":
            with failures(0, "step()"):
                raise TypeError(f"reward must be an array of numbers, got {self.reward.dtype}")
        for name in ("terminated", "truncated"):
            if getattr(self, name).dtype != bool:
                with failures(0, "step()"):
                    raise TypeError(f"{name} must be an array of booleans, got {getattr(self, name).dtype}")

    def render(self, i: int) -> Any:
        frames = self.env.render()
        return frames[i] if isinstance(frames, (tuple, list)) else frames

    def close(self) -> None:
        self.closed = True
        self.env.close()

    def _checked(self, obs: Any, what: str) -> Any:
        """Observations with dtypes that torch supports. Integers on a GPU are not checked, as this would wait for it."""
        for path, name, _, integers in self.leaves:
            batch = functools.reduce(operator.getitem, path, obs)
            if integers is not None and not getattr(batch, "is_cuda", False):
                try:
                    integers.check(_array(batch), name)
                except ValueError:
                    for i, row in enumerate(_array(batch)):      # find the env
                        with failures(i, what):
                            integers.check(np.asarray(row), name)
        return trees.apply(_stored, obs)

    def _final(self, info: dict[str, Any], over: np.ndarray) -> Any:
        """The final observations, in the rows `over`. Gymnasium gives an array of objects; a vector env of your own may give a batch."""
        if "final_obs" not in info:
            raise ValueError("a vector env in same-step mode must give info['final_obs'] when an episode ends; add it, or use another mode")
        if not (isinstance(info["final_obs"], np.ndarray) and info["final_obs"].dtype.hasobject):
            return trees.apply(lambda x: _array(_stored(x)), info["final_obs"])
        final = trees.apply(lambda x: _array(x).copy(), self.obs)
        for path, *_ in self.leaves:
            for i in np.flatnonzero(over):
                functools.reduce(operator.getitem, path, final)[i] = functools.reduce(operator.getitem, path, info["final_obs"][i])
        return final

    def _store_masks(self, info: Any, which: np.ndarray, over: np.ndarray | None = None) -> None:
        """Store the action masks of the envs `which` [N]. Where the episode is `over` [N], a mask need not allow an action."""
        if not isinstance(info, dict):
            raise TypeError(f"the vector env must give its info as a dict of arrays, got {type(info).__name__}; remove the wrapper that "
                            "changes it (DictInfoToList?)")
        masks: Any
        masks, given = info.get("action_mask"), info.get("_action_mask", "action_mask" in info)
        if isinstance(self.observation_space, gymnasium.spaces.Dict) and "action_mask" in self.observation_space.spaces:
            masks, given = trees.apply(_array, self.obs["action_mask"]), True
        self.has_mask = np.where(which, _array(given) & bool(self.sizes), self.has_mask)
        for i in np.flatnonzero(self.has_mask & which):
            with failures(int(i), "its action_mask"):
                mask = [part[i] for part in masks] if isinstance(masks, tuple) else masks[i]
                self.action_mask[i] = flat_mask(mask, self.sizes, over is not None and bool(over[i]))


def _array(x: Any) -> np.ndarray:
    return np.asarray(x.cpu() if hasattr(x, "cpu") else x)


def _stored(x: Any) -> Any:
    dtype = STORED.get(str(getattr(x, "dtype", "")).removeprefix("torch."))
    return x if dtype is None else _array(x).astype(dtype)


def _info_of(info: dict[str, Any], i: int, num_envs: int) -> dict[str, Any]:
    """Env i's part of a vector env's info. Values without one entry for each env belong to all envs; `_name` masks those of `name`."""
    def part(value: Any) -> Any:
        if isinstance(value, dict):
            return _info_of(value, i, num_envs)
        batched = isinstance(value, (list, tuple)) or bool(getattr(value, "shape", False))
        return value[i] if batched and len(value) == num_envs else value

    return {name: part(value) for name, value in info.items() if not name.startswith("_") and np.all(part(info.get(f"_{name}", True)))}
