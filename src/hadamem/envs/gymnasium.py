"""Every task as a Gymnasium env and vector env: `gymnasium.make("hadamem/AutoencodeEasy-v0")` after `import hadamem.envs`.

Where the import is not wanted, `gymnasium.make("hadamem.envs:hadamem/AutoencodeEasy-v0")` does it. Everything here is numpy.
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

METADATA: dict[str, Any] = {**BatchedEnv.metadata, "render_modes": list(BatchedEnv.metadata["render_modes"])}
OURS = ("final_obs", "_final_obs", "success")      # entries of a batched env's info that Gymnasium spells otherwise


def gymnasium_id(task: str) -> str:
    """The id under which a task is registered: "popgym/AutoencodeEasy" -> "hadamem/AutoencodeEasy-v0"."""
    return f"hadamem/{task.rpartition('/')[2]}-v0"


def register() -> None:
    """Tell Gymnasium of every task of the registry; those it knows already stay."""
    for task in registry.TASKS:
        name = gymnasium_id(task)
        known = gymnasium.registry.get(name)
        if known is None:
            gymnasium.register(name, entry_point=f"{__name__}:TaskEnv", vector_entry_point=f"{__name__}:TaskVectorEnv",
                               kwargs={"task": task})
        elif known.kwargs.get("task") != task:
            raise RuntimeError(f"two envs would be called {name}: rename the task {task!r}")


class TaskEnv(gymnasium.Env[Any, Any]):
    """One copy of a task as a Gymnasium env. Options go to the task, e.g. `k=3` or `max_episode_steps=100`.

    Without any seed, the first `reset` takes one from the operating system; later ones go on to the next episodes of that seed.
    Stepping on after the end of an episode is an error.
    """

    metadata = METADATA

    def __init__(self, task: str, render_mode: str | None = None, **options: Any):
        for name in ("num_envs", "autoreset_mode"):
            if name in options:
                raise TypeError(f"{name} is for many envs: use gymnasium.make_vec({gymnasium_id(task)!r}, num_envs=...) instead")
        self.batch = registry.make(task, 1, autoreset_mode=AutoresetMode.DISABLED, render_mode=render_mode, **options)
        self.task = task
        self.render_mode = render_mode
        self.observation_space = self.batch.single_observation_space
        self.action_space = self.batch.single_action_space
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, info = self.batch.reset(seed=_first_seed(self, seed), options=options)
        self._over = False
        return _row(self.observation_space, obs, 0), _row_of_info(info)

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
        return _row(self.observation_space, obs, 0), float(reward[0]), *ends, extra

    def render(self) -> Any:
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render_mode shows nothing: make the env with render_mode='ansi' or 'rgb_array'")
            return None
        return self.batch.render()

    def close(self) -> None:
        self.batch.close()


class TaskVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """`num_envs` copies of a task, stepped together, as a Gymnasium vector env.

    autoreset_mode: "next_step" (Gymnasium's own default), "same_step" or "disabled" (reset(options={"reset_mask": ...})).
    seed of `reset`: an int as in `BatchedEnv` (runs with different seeds share no episode), or one for each env, which then equals a
    single env of that seed. device: where to compute; observations come back as numpy arrays.
    """

    metadata = METADATA

    def __init__(self, task: str, num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
                 render_mode: str | None = None, **options: Any):
        options = {"validate": True, **options}
        self.batch = registry.make(task, num_envs, autoreset_mode=autoreset_mode, render_mode=render_mode, **options)
        self.task = task
        self.num_envs = self.batch.num_envs
        self.render_mode = render_mode
        self.metadata = {**METADATA, "autoreset_mode": self.batch.autoreset_mode}
        self.single_observation_space = self.batch.single_observation_space
        self.single_action_space = self.batch.single_action_space
        self.observation_space = self.batch.observation_space
        self.action_space = self.batch.action_space

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=int(np.asarray(seed).flat[0]) if seed is not None else None)
        obs, info = self.batch.reset(seed=_first_seed(self, seed), options=options)
        return self._arrays(obs), self._extra(info, np.ones(self.num_envs, dtype=bool))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.batch.step(actions)
        over = (terminated | truncated).cpu().numpy()
        infos = self._extra(info, ~self.batch.started.cpu().numpy())      # a first observation comes with the info of a reset: none
        if over.any():
            known = {"success": info["success"].cpu().numpy(), "_success": over.copy()} if "success" in info else {}
            if "final_obs" in info:
                final = np.full(self.num_envs, None, dtype=object)
                for i in np.flatnonzero(over):
                    final[i] = _row(self.single_observation_space, info["final_obs"], i)
                infos |= {"final_obs": final, "_final_obs": over, "final_info": known | self._extra(info, over), "_final_info": over.copy()}
            else:
                infos |= known
        return self._arrays(obs), reward.cpu().numpy(), terminated.cpu().numpy(), truncated.cpu().numpy(), infos

    def render(self) -> tuple[Any, ...] | None:
        """A picture or text of each env."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render_mode shows nothing: make the env with render_mode='ansi' or 'rgb_array'")
            return None
        from . import render

        draw = render.text if self.render_mode == "ansi" else render.picture
        return tuple(draw(self.batch, i) for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        self.batch.close()

    def _arrays(self, obs: Any) -> Any:
        return trees.apply(lambda x: x.cpu().numpy(), obs)

    def _extra(self, info: dict[str, Any], which: np.ndarray) -> dict[str, Any]:
        """What the task itself tells, of the envs in `which` [N]."""
        extra: dict[str, Any] = {}
        for name, value in info.items():
            if name not in OURS:
                extra |= {name: value.cpu().numpy(), f"_{name}": _given(value) & which}
        return extra


def _first_seed(env: TaskEnv | TaskVectorEnv, seed: Any) -> Any:
    """Seed a fresh env from the system: torch's generator, which BatchedEnv would ask, is the same in every forked process."""
    if seed is None and env.batch._seed is None:
        return int(env.np_random.integers(1 << 31))
    return seed


def _row(space: gymnasium.Space[Any], obs: Any, i: int) -> Any:
    """The observation of env i: numpy scalars and arrays."""
    if isinstance(space, spaces.Dict):
        return {name: _row(inner, obs[name], i) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(inner, part, i) for inner, part in zip(space.spaces, obs, strict=True))
    value = obs[i].cpu().numpy()
    return np.int64(value) if isinstance(space, spaces.Discrete) else value


def _row_of_info(info: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value[0].cpu().numpy() if value.ndim > 1 else value[0].item()
            for name, value in info.items() if name not in OURS and _given(value)[0]}


def _given(value: Tensor) -> np.ndarray:
    """Which envs have an entry in `value` [N, ...]: nan stands for none. [N] bool"""
    return ~value.reshape(len(value), -1).isnan().all(1).cpu().numpy()


def _checked_action(space: gymnasium.Space[Any], action: Any) -> np.ndarray:
    """As an array; a box takes any finite numbers, as tasks cut them to their range themselves."""
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
