"""Wrappers of batched envs that add what a network needs besides the observation. Plain tensor ops, so that CUDA graphs work.

`wrap(env)` applies the usual ones: previous action, first-step flag, then everything as one float vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from . import trees
from .base import BatchedEnv
from .checks import positive
from .features import FIRST_STEP, PREVIOUS_ACTION, FeatureMap
from .spaces import action_dtype, appended_space
from .spaces import null_action as find_null


def wrap(env: BatchedEnv | Wrapper, *, previous_action: bool = True, first_step: bool = True, features: bool = True,
         scale_images: bool = False) -> BatchedEnv | Wrapper:
    """Add the previous action and a first-step flag to observations and make them one float32 vector [N, F]. Each part is optional."""
    if previous_action:
        env = PreviousAction(env)
    if first_step:
        env = FirstStep(env)
    return Features(env, scale_images=scale_images) if features else env


class Wrapper:
    """Base class: passes everything through to the wrapped env."""

    def __init__(self, env: BatchedEnv | Wrapper):
        if not isinstance(env, (BatchedEnv, Wrapper)):
            raise TypeError(f"env must be a batched env, got {type(env).__name__}; use hm.envs.adapt(env) for a Gymnasium env")
        self.env = env
        self.single_observation_space: gymnasium.Space[Any] = env.single_observation_space
        self.single_action_space: gymnasium.Space[Any] = env.single_action_space

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":      # "env": a copy has no attributes yet, and this would recurse
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> BatchedEnv:
        return self.env.unwrapped

    @property
    def num_envs(self) -> int:
        return self.unwrapped.num_envs

    @property
    def device(self) -> torch.device:
        return self.unwrapped.device

    @cached_property
    def observation_space(self) -> gymnasium.Space[Any]:
        return gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)

    @cached_property
    def action_space(self) -> gymnasium.Space[Any]:
        return gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        return self.env.step(action)

    def get_state(self) -> dict[str, Tensor]:
        return self.env.get_state()

    def set_state(self, state: dict[str, Tensor]) -> Any:
        return self.env.set_state(state)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self.env!r}>"


class ObservationWrapper(Wrapper):
    """A wrapper that changes observations, including `info["final_obs"]`. Subclasses define `now` and `final`."""

    def now(self, obs: Any, action: Any) -> Any:
        """The changed observation. action: the one just taken; None after `reset` or `set_state`."""
        raise NotImplementedError

    def final(self, obs: Any, action: Any) -> Any:
        """The same for the last observation of an episode."""
        raise NotImplementedError

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self.now(obs, None), info

    def step(self, action: Any) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        final = info.get("final_obs")
        shown = self.now(obs, action)
        if final is not None:      # the same object: no episode ended, so the changed observation is the same too
            info = {**info, "final_obs": shown if final is obs else self.final(final, action)}
        return shown, reward, terminated, truncated, info

    def set_state(self, state: dict[str, Tensor]) -> Any:
        return self.now(self.env.set_state(state), None)


class PreviousAction(ObservationWrapper):
    """Adds the action that led to the observation. First observations get the null action: 0, or the lowest if 0 is not allowed.

    Tuples and dicts get one more entry (`prev_action`), anything else becomes a tuple (obs, action).
    """

    def __init__(self, env: BatchedEnv | Wrapper, null_action: Any = None):
        super().__init__(env)
        inner: Any = env
        while isinstance(inner, Wrapper):
            if isinstance(inner, PreviousAction):
                raise ValueError("env has a PreviousAction wrapper already")
            inner = inner.env
        space = self.single_action_space
        null = find_null(space) if null_action is None else np.asarray(null_action)
        if null.shape != (space.shape or ()):
            raise ValueError(f"null_action must have shape {list(space.shape or ())} for {space}, got {list(null.shape)}")
        self.dtype = action_dtype(space)
        self.null = torch.as_tensor(null, dtype=self.dtype, device=self.device).expand(self.num_envs, *null.shape)
        self.previous = self.null.clone()      # for a reset of some envs and for set_state, which return all observations again
        self.single_observation_space = appended_space(env.single_observation_space, space, PREVIOUS_ACTION)

    def now(self, obs: Any, action: Any) -> Any:
        action = self.previous if action is None else self._tensor(action)
        action = trees.where(self.unwrapped.started, self.null, action)
        self.previous.copy_(action)
        return trees.append(obs, action, PREVIOUS_ACTION)

    def final(self, obs: Any, action: Any) -> Any:
        return trees.append(obs, self._tensor(action), PREVIOUS_ACTION)

    def get_state(self) -> dict[str, Tensor]:
        return {**self.env.get_state(), PREVIOUS_ACTION: self.previous.clone()}

    def set_state(self, state: dict[str, Tensor]) -> Any:
        if PREVIOUS_ACTION not in state:
            raise ValueError(f"state lacks {PREVIOUS_ACTION!r}; was it saved without the PreviousAction wrapper?")
        obs = self.env.set_state({name: value for name, value in state.items() if name != PREVIOUS_ACTION})
        self.previous.copy_(state[PREVIOUS_ACTION])
        return self.now(obs, None)

    def _tensor(self, action: Any) -> Tensor:
        """A copy: the caller may overwrite its tensor with the next action."""
        action = action if isinstance(action, Tensor) else torch.as_tensor(np.asarray(action))
        return action.detach().to(self.device, self.dtype, copy=True)


class FirstStep(ObservationWrapper):
    """Adds a flag (Discrete(2)): 1 at the first observation of an episode. POPGym calls this Antialias.

    It distinguishes the null action of a first observation from the action 0. Tuples and dicts get one more entry (`is_t0`).
    """

    def __init__(self, env: BatchedEnv | Wrapper):
        super().__init__(env)
        self.single_observation_space = appended_space(env.single_observation_space, spaces.Discrete(2), FIRST_STEP)

    def now(self, obs: Any, action: Any) -> Any:
        return trees.append(obs, self.unwrapped.started.long(), FIRST_STEP)

    def final(self, obs: Any, action: Any) -> Any:
        return trees.append(obs, torch.zeros(self.num_envs, dtype=torch.int64, device=self.device), FIRST_STEP)


class Features(ObservationWrapper):
    """Makes observations one float32 vector [N, F], with the order and values of `gymnasium.spaces.utils.flatten`.

    Discrete and MultiDiscrete entries become one-hot codes; boxes and bits keep their values. scale_images: divide uint8 boxes by 255.
    """

    def __init__(self, env: BatchedEnv | Wrapper, scale_images: bool = False):
        super().__init__(env)
        self.map = FeatureMap(env.single_observation_space, scale_images, self.device)
        self.single_observation_space = self.map.space

    def now(self, obs: Any, action: Any) -> Tensor:
        return self.map(obs)

    final = now


class DiscreteAction(Wrapper):
    """Takes MultiDiscrete actions as one number, in C order: [a, b] of sizes [A, B] is a * B + b. Discrete actions are unchanged."""

    def __init__(self, env: BatchedEnv | Wrapper):
        super().__init__(env)
        space = env.single_action_space
        if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            raise TypeError(f"DiscreteAction needs Discrete or MultiDiscrete actions, got {space}")
        self.parts: Tensor | None = None
        if isinstance(space, spaces.MultiDiscrete):
            sizes = [int(n) for n in space.nvec.reshape(-1)]
            self.single_action_space = spaces.Discrete(math.prod(sizes))
            steps = [math.prod(sizes[i + 1:]) for i in range(len(sizes))]
            self.parts = torch.tensor(steps, device=self.device)                                    # [K]
            self.sizes = torch.tensor([1 << 62, *sizes[1:]], device=self.device)                    # actions out of range stay out of range
            self.start = torch.as_tensor(space.start.reshape(-1), device=self.device)
            columns = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), 1) + np.cumsum([0, *sizes[:-1]])
            self.columns = torch.as_tensor(columns, device=self.device)                             # [A, K] places in a mask of the parts
            self.shape = space.shape

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, self._info(info)

    def step(self, action: Any) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        if self.parts is None:
            return self.env.step(action)
        action = action if isinstance(action, Tensor) else torch.as_tensor(np.asarray(action))
        if action.shape != (self.num_envs,):
            raise ValueError(f"action must have shape [{self.num_envs}], got {list(action.shape)}")
        if action.is_floating_point() or action.dtype == torch.bool:
            raise TypeError(f"action must hold whole numbers for {self.single_action_space}, got {action.dtype}")
        action = action.to(self.device, torch.int64)[:, None]
        parts = torch.div(action, self.parts, rounding_mode="floor") % self.sizes + self.start
        obs, reward, terminated, truncated, info = self.env.step(parts.reshape(self.num_envs, *self.shape))
        return obs, reward, terminated, truncated, self._info(info)

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        if self.parts is None or "action_mask" not in info:
            return info
        return {**info, "action_mask": info["action_mask"][:, self.columns].all(-1)}


class TimeLimit(Wrapper):
    """Truncates episodes after `max_episode_steps` actions, or earlier if the env already has a shorter limit."""

    def __init__(self, env: BatchedEnv | Wrapper, max_episode_steps: int):
        super().__init__(env)
        limit, inner = positive("max_episode_steps", max_episode_steps), self.unwrapped
        inner.max_episode_steps = limit if inner.max_episode_steps is None else min(limit, inner.max_episode_steps)
