"""Every task as a Gymnasium env and vector env: `gymnasium.make("hadamem/AutoencodeEasy-v0")` after `import hadamem.envs`.

`gymnasium.make("hadamem.envs:hadamem/AutoencodeEasy-v0")` works without that import. Observations and rewards are numpy here.

A tuple of Discrete spaces becomes one MultiDiscrete space, as TorchRL and Stable-Baselines3 do not support such tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from . import registry, trees
from .base import BatchedEnv
from .registry import gymnasium_id

METADATA: dict[str, Any] = {**BatchedEnv.metadata, "render_modes": list(BatchedEnv.metadata["render_modes"])}
OURS = ("final_obs", "_final_obs", "success")      # entries of a batched env's info that Gymnasium stores in another form


class TaskEnv(gymnasium.Env[Any, Any]):
    """A task as a Gymnasium env. Options are passed to the task, e.g. `k=3` or `max_episode_steps=100`.

    If no seed is given, the first `reset` draws one from the operating system; later resets start the next episodes of that seed.
    `step` after the end of an episode raises.
    """

    metadata = METADATA

    def __init__(self, task: str, render_mode: str | None = None, **options: Any):
        for name in ("num_envs", "autoreset_mode"):
            if name in options:
                raise TypeError(f"{name} is for many envs: use gymnasium.make_vec({gymnasium_id(task)!r}, num_envs=...) instead")
        self.batch = registry.make(task, 1, autoreset_mode=AutoresetMode.DISABLED, render_mode=render_mode, **options)
        self.task = task
        self.render_mode = render_mode
        self.observation_space = _packed_space(self.batch.single_observation_space)
        self.action_space = self.batch.single_action_space
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, info = self.batch.reset(seed=_first_seed(self, seed), options=options)
        self._over = False
        return self._first_row(obs), _row_of_info(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("step() after the end of the episode: call reset() first")
        action = _checked_action(self.action_space, action)
        obs, reward, terminated, truncated, info = self.batch.step(torch.as_tensor(action)[None])
        ends = bool(terminated[0]), bool(truncated[0])
        extra = _row_of_info(info)
        self._over = any(ends)
        if self._over and "success" in info:
            extra["success"] = bool(info["success"][0])
        return self._first_row(obs), float(reward[0]), *ends, extra

    def render(self) -> Any:
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render_mode shows nothing: make the env with render_mode='ansi' or 'rgb_array'")
            return None
        return self.batch.render()

    def close(self) -> None:
        self.batch.close()

    def _first_row(self, obs: Any) -> Any:
        return _row(self.observation_space, _arrays(self.observation_space, obs), 0)


class TaskVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """`num_envs` copies of a task, stepped together, as a Gymnasium vector env.

    autoreset_mode: "next_step" (Gymnasium's default), "same_step" or "disabled" (reset(options={"reset_mask": ...})).
    seed of `reset`: an int as in `BatchedEnv` (runs with different seeds share no episode), or one for each env, which then equals a
    single env with that seed. device: where the task runs; observations are numpy arrays in any case.
    """

    metadata = METADATA

    def __init__(self, task: str, num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
                 render_mode: str | None = None, **options: Any):
        options = {"validate": True, **options}
        self.batch = registry.make(task, num_envs, autoreset_mode=autoreset_mode, render_mode=render_mode, **options)
        self.task = task
        self.num_envs = self.batch.num_envs
        self.render_mode = render_mode
        self.autoreset_mode = self.batch.autoreset_mode      # TorchRL reads the attribute, Gymnasium the metadata
        self.metadata = {**METADATA, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = _packed_space(self.batch.single_observation_space)
        self.single_action_space = self.batch.single_action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = self.batch.action_space

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=int(np.asarray(seed).flat[0]) if seed is not None else None)
        obs, info = self.batch.reset(seed=_first_seed(self, seed), options=options)
        return self._arrays(obs), self._extra(info, np.ones(self.num_envs, dtype=bool))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.batch.step(actions)
        over = (terminated | truncated).cpu().numpy()
        infos = self._extra(info, ~self.batch.started.cpu().numpy())      # the info of a reset is empty
        if over.any():
            known = {"success": info["success"].cpu().numpy(), "_success": over.copy()} if "success" in info else {}
            if "final_obs" in info:
                final, last = np.full(self.num_envs, None, dtype=object), self._arrays(info["final_obs"])
                for i in np.flatnonzero(over):
                    final[i] = _row(self.single_observation_space, last, i)
                infos |= {"final_obs": final, "_final_obs": over, "final_info": known | self._extra(info, over), "_final_info": over.copy()}
            else:
                infos |= known
        return self._arrays(obs), reward.cpu().numpy(), terminated.cpu().numpy(), truncated.cpu().numpy(), infos

    def render(self) -> tuple[Any, ...] | None:
        """An image or a text for each env."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render_mode shows nothing: make the env with render_mode='ansi' or 'rgb_array'")
            return None
        from . import render

        draw = render.text if self.render_mode == "ansi" else render.picture
        return tuple(draw(self.batch, i) for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        self.batch.close()

    def _arrays(self, obs: Any) -> Any:
        return _arrays(self.single_observation_space, obs)

    def _extra(self, info: dict[str, Any], which: np.ndarray) -> dict[str, Any]:
        """The task's own entries of `info`, marked as valid for the envs in `which` [N]."""
        extra: dict[str, Any] = {}
        for name, value in info.items():
            if name not in OURS:
                extra |= {name: value.cpu().numpy(), f"_{name}": _given(value) & which}
        return extra


def _first_seed(env: TaskEnv | TaskVectorEnv, seed: Any) -> Any:
    """The seed, or one from the operating system for a fresh env: torch's generator, BatchedEnv's choice, is the same in all forks."""
    if seed is None and env.batch._seed is None:
        return int(env.np_random.integers(1 << 31))
    return seed


def _packed_space(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """A tuple of Discrete spaces as one MultiDiscrete; other spaces unchanged."""
    if isinstance(space, spaces.Tuple):
        parts = [inner for inner in space.spaces if isinstance(inner, spaces.Discrete)]
        if len(parts) == len(space.spaces):
            return spaces.MultiDiscrete([part.n for part in parts], start=[part.start for part in parts])
    return space


def _arrays(space: gymnasium.Space[Any], obs: Any) -> Any:
    """Batched observations of a task as numpy arrays. space: its packed space."""
    arrays = trees.apply(lambda x: x.cpu().numpy(), obs)
    return np.stack(arrays, -1) if isinstance(arrays, tuple) and isinstance(space, spaces.MultiDiscrete) else arrays


def _row(space: gymnasium.Space[Any], obs: Any, i: int) -> Any:
    """The observation of env i, from batched arrays: numpy scalars and arrays."""
    if isinstance(space, spaces.Dict):
        return {name: _row(inner, obs[name], i) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(inner, part, i) for inner, part in zip(space.spaces, obs, strict=True))
    return np.int64(obs[i]) if isinstance(space, spaces.Discrete) else obs[i]


def _row_of_info(info: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value[0].cpu().numpy() if value.ndim > 1 else value[0].item()
            for name, value in info.items() if name not in OURS and _given(value)[0]}


def _given(value: Tensor) -> np.ndarray:
    """Which envs have an entry in `value` [N, ...], where nan means none. [N] bool"""
    return ~value.reshape(len(value), -1).isnan().all(1).cpu().numpy()


def _checked_action(space: gymnasium.Space[Any], action: Any) -> np.ndarray:
    """The action as an array. For a Box any finite numbers are allowed, as tasks clip them."""
    if isinstance(space, spaces.Box):
        try:
            array = np.asarray(action, dtype=space.dtype)
            fine = array.shape == space.shape and bool(np.isfinite(array).all())
        except (TypeError, ValueError):
            fine = False
    else:
        array = np.asarray(action)
        fine = array.dtype.kind in "iu" and array.shape == space.shape and space.contains(array.astype(space.dtype))
    if not fine:
        raise ValueError(f"action must be in {space}, got {action!r}")
    return array.astype(space.dtype, copy=False)
