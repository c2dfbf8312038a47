"""`BatchedEnv`: N copies of one task, stepped together on one device, with the surface of Gymnasium's VectorEnv on torch tensors.

A task is a subclass that says how episodes start, go on and look; everything around it (seeding, autoreset, time limits, saving) is here.
All state lives in registered tensors that are only ever written in place, and nothing in `step` waits for a GPU, so `step` can be
captured in a CUDA graph. On a CPU it may look at the numbers and skip work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from .. import random
from . import trees

EPISODE = 1 << 24     # counters that each episode of an env may use
SLOTS = 64            # and each step of it
LONGEST = EPISODE // SLOTS - 1     # so many steps may an episode have


class BatchedEnv:
    """`num_envs` copies of a task. `reset` first, then `step`; envs that finish start anew by themselves.

    num_envs: copies. device: where they live. seed: of the first `reset` that brings none; None draws one from torch's generator.
    first_env: index of the first copy: env i of a batch with `first_env=f` equals env 0 of a batch with `first_env=f + i`.
    autoreset_mode: "same_step" (the default: the step that ends an episode returns the first observation of the next one, and the last
    one in `info["final_obs"]`), "next_step" (the step after it resets, whatever the action) or "disabled" (the caller resets).
    max_episode_steps: truncate longer episodes. validate: check every action's range; waits for the GPU, so off by default.

    `info` of a step: `final_obs` [N, ...] with `_final_obs` [N] bool (where it counts, that is, where the episode ended; same-step mode
    only), and `success` [N] bool where the task knows success, to be read where the episode ended.
    """

    metadata: Mapping[str, Any] = MappingProxyType({"render_modes": ("ansi", "rgb_array"), "render_fps": 4})
    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]
    episode_steps: int | None = None       # the longest an episode can be by the task's own rules; None: no limit
    restorable: bool = True                # set_state can bring back what get_state gave
    reward_dtype: torch.dtype = torch.float32
    fixed_length: bool = False             # every episode has exactly `episode_steps` steps
    truncates: bool = True                 # the task's own rules may cut an episode short (a time limit always can)
    layout: tuple[str, ...] = ()           # names that reset(options={"layout": {...}}) takes

    def __init__(self, num_envs: int = 1, *, device: torch.device | str = "cpu", seed: int | None = None, first_env: int = 0,
                 autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP, max_episode_steps: int | None = None,
                 validate: bool = False, render_mode: str | None = None):
        self.num_envs = positive("num_envs", num_envs)
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None and torch.cuda.is_available():
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.first_env = first_env
        self.autoreset_mode = _mode(autoreset_mode)
        self.max_episode_steps = None if max_episode_steps is None else positive("max_episode_steps", max_episode_steps)
        self.validate = validate
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"unknown render_mode {render_mode!r}; choose from {', '.join(self.metadata['render_modes'])}, or None")
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.closed = False
        self.spec: Any = None
        self._seed = None if seed is None else _checked_seed(seed)
        self._fresh = True                      # no reset yet
        self.resetting = False                  # inside reset(), where waiting for a GPU is fine
        self._names: list[str] = []
        self._counts: dict[int, Tensor] = {}
        n = self.num_envs
        self.key = self.register("key", torch.zeros(n, dtype=torch.int64))           # counter at which the episode's stream starts
        self.elapsed = self.register("elapsed", torch.zeros(n, dtype=torch.int64))   # actions taken in the episode
        self.started = self.register("started", torch.ones(n, dtype=torch.bool))     # the observation is the first of its episode
        self.ended = self.register("ended", torch.zeros(n, dtype=torch.bool))        # the last step ended the episode

    # --- what a task fills in --------------------------------------------------------------------------------------

    def start(self, mask: Tensor | None) -> None:
        """Start new episodes where `mask` [N] is true (None: everywhere), in place. `elapsed` is 0 and `key` new already."""
        raise NotImplementedError

    def advance(self, action: Any) -> tuple[Tensor, Tensor, Tensor]:
        """One step, in place: reward [N] float32, terminated [N], truncated [N]. `elapsed` counts this action already.

        Where an episode has ended and the caller steps on, anything may come out, but no error.
        """
        raise NotImplementedError

    def observe(self) -> Any:
        """The observation of the present state: new tensors."""
        raise NotImplementedError

    def success(self) -> Tensor | None:
        """Whether the episode, if it ended now, was a success [N]; None: the task does not know success."""
        return None

    def extra_info(self) -> dict[str, Any]:
        """What else `info` of a step should hold, read before finished episodes start anew: new tensors [N, ...]."""
        return {}

    def inject(self, layout: dict[str, Any]) -> None:
        """Replace what chance decided about the episodes that just started, e.g. by recorded decks; see `layout` for the names."""
        raise NotImplementedError

    def prepare(self, seed: int) -> None:
        """Draw what a run seed decides once for all episodes (before the first `start`).

        Where each env was given a seed of its own, `self.seeds` [N] has them (`seed` is the first), and `self.indices` [N] are the
        envs' numbers under it; both are on the CPU.
        """

    # --- the surface -----------------------------------------------------------------------------------------------

    @property
    def unwrapped(self) -> BatchedEnv:
        return self

    @cached_property
    def observation_space(self) -> gymnasium.Space[Any]:
        return gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)

    @cached_property
    def action_space(self) -> gymnasium.Space[Any]:
        return gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes. seed: an int for the batch, or one for each env (then env i equals a single env with that seed).

        Without a seed the streams go on: the next episodes are new ones. options: `reset_mask` [N] bool restarts only those envs;
        `layout` {name: values} replaces what chance would decide, for replays (names: `env.layout`).
        """
        options = dict(options or {})
        mask, layout = options.pop("reset_mask", None), options.pop("layout", None)
        if options:
            raise ValueError(f"unknown reset options {sorted(options)}; known are reset_mask and layout")
        if mask is not None and seed is not None:
            raise ValueError("a seed decides about all envs, so it does not go with reset_mask; reset all of them, or leave out the seed")
        if mask is not None:
            mask = torch.as_tensor(mask, device=self.device)
            if mask.dtype != torch.bool or mask.shape != (self.num_envs,):
                raise ValueError(f"reset_mask must be [{self.num_envs}] bool, got {list(mask.shape)} {mask.dtype}")
            if self._fresh:
                raise ValueError("reset_mask needs envs that were reset before; call reset() once without it")
        if layout is not None and (not layout or set(layout) - set(self.layout)):
            raise ValueError(f"layout must hold some of {list(self.layout)} for {type(self).__name__}, got {sorted(layout)}")
        before = None if layout is None else (self.get_state(), self._fresh)
        if seed is not None or self._fresh:
            self._reseed(seed)
        else:
            self.key.add_(EPISODE if mask is None else mask * EPISODE)
        self._fresh = False
        self.resetting = True
        assign(self.started, mask, True)
        assign(self.ended, mask, False)
        self._begin(mask)
        self.resetting = False
        if before is not None:
            self._inject(layout or {}, mask, *before)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step every env: obs, reward [N], terminated [N], truncated [N], info. Tensors are new ones, none is written to later."""
        if self._fresh:
            raise RuntimeError("step() before reset(): call reset(seed=...) first")
        action = self._checked_action(action)
        resets = self.ended.clone() if self.autoreset_mode is AutoresetMode.NEXT_STEP else None
        self.elapsed.add_(1)
        reward, terminated, truncated = self.advance(action)
        reward = reward.to(self.reward_dtype)
        if self.max_episode_steps is not None:
            truncated = truncated | (self.elapsed >= self.max_episode_steps)
        info: dict[str, Any] = {}
        if resets is not None:
            reward = reward.masked_fill(resets, 0.0)
            terminated, truncated = terminated & ~resets, truncated & ~resets
            if self._worth_it(resets):
                self._restart(resets)
            self.started.copy_(resets)
        done = terminated | truncated
        if resets is not None:
            self.ended.copy_(done)
        success = self.success()
        if success is not None:
            info["success"] = success & done
        info.update(self.extra_info())
        obs = self.observe()
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            info["final_obs"], info["_final_obs"] = obs, done
            self.started.copy_(done)
            if self._worth_it(done):
                self._restart(done)
                obs = trees.where(done, self.observe(), obs)
        elif resets is None:
            self.started.zero_()
        return obs, reward, terminated, truncated, info

    def get_state(self) -> dict[str, Tensor]:
        """Everything that decides the future, as a copy: {name: tensor}. With `set_state` it is a checkpoint."""
        return {name: getattr(self, name).clone() for name in self._names}

    def set_state(self, state: dict[str, Tensor]) -> Any:
        """Go back to a state of `get_state`, of this env or one built the same way, on any device. Returns the observation."""
        if set(state) != set(self._names):
            raise ValueError(f"state must hold {self._names}, got {sorted(state)}; use what get_state() of such an env gave")
        for name in self._names:
            mine = getattr(self, name)
            if state[name].shape != mine.shape or state[name].dtype != mine.dtype:
                raise ValueError(f"state[{name!r}] must be {list(mine.shape)} {mine.dtype}, got {list(state[name].shape)} "
                                 f"{state[name].dtype}; was it saved by an env with other options?")
        for name in self._names:
            getattr(self, name).copy_(state[name])
        self._fresh = False
        return self.observe()

    def render(self) -> Any:
        """Env 0 as `render_mode` says: a text or an RGB array."""
        if self.render_mode is None:
            raise ValueError("render() needs a render_mode; pass render_mode='ansi' or 'rgb_array' when making the env")
        from . import render

        return render.text(self) if self.render_mode == "ansi" else render.picture(self)

    def close(self) -> None:
        self.closed = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} x {self.num_envs} on {self.device}>"

    # --- for tasks -------------------------------------------------------------------------------------------------

    def register(self, name: str, value: Tensor) -> Tensor:
        """Make `value` part of the state. Write to it in place only: CUDA graphs remember where it lies."""
        value = value.to(self.device).contiguous()
        self._names.append(name)
        setattr(self, name, value)
        return value

    def zeros(self, name: str, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Register zeros [N, *shape]."""
        return self.register(name, torch.zeros(self.num_envs, *shape, dtype=dtype))

    def counter(self, slot: int | Tensor = 0) -> Tensor:
        """Counters [N] for random numbers, one for each env, episode, step and slot < SLOTS."""
        counter = torch.add(self.key, self.elapsed, alpha=SLOTS)
        return counter if isinstance(slot, int) and slot == 0 else counter + slot

    def counters(self, n: int) -> Tensor:
        """[N, n] of them, slots 0 to n - 1."""
        return self.counter()[:, None] + self.count(n)

    def count(self, n: int) -> Tensor:
        """0 .. n - 1 [n], made once."""
        if n not in self._counts:
            self._counts[n] = torch.arange(n, device=self.device)
        return self._counts[n]

    # --- inner works -----------------------------------------------------------------------------------------------

    def _worth_it(self, mask: Tensor) -> bool:
        """Whether to spend work on the envs in `mask`: asking costs a GPU more than doing it."""
        return self.device.type != "cpu" or bool(mask.any())

    def _restart(self, mask: Tensor) -> None:
        self.key.add_(mask, alpha=EPISODE)
        self._begin(mask)

    def _inject(self, layout: dict[str, Any], mask: Tensor | None, before: dict[str, Tensor], fresh: bool) -> None:
        """`inject` for the envs in `mask` alone; if it refuses, everything is as it was `before` the reset."""
        drawn = self.get_state()
        try:
            self.inject(layout)
        except Exception:
            self.set_state(before)
            self._fresh = fresh
            raise
        if mask is not None:
            for name, value in drawn.items():
                if value.ndim and value.shape[0] == self.num_envs:
                    assign(getattr(self, name), ~mask, value)

    def _begin(self, mask: Tensor | None) -> None:
        assign(self.elapsed, mask, 0)
        self.start(mask)

    def _reseed(self, seed: int | Sequence[int] | None) -> None:
        if seed is None:
            seed = self._seed if self._seed is not None else int(torch.randint(1 << 31, ()))
        if isinstance(seed, (int, np.integer)):
            self._seed = _checked_seed(seed)
            seeds, envs = torch.tensor(self._seed), torch.arange(self.first_env, self.first_env + self.num_envs)
        else:
            if len(seed) != self.num_envs:
                raise ValueError(f"seed must be an int or one for each of {self.num_envs} envs, got {len(seed)} of them")
            seeds = torch.tensor([_checked_seed(s) for s in seed], dtype=torch.int64)
            envs = torch.zeros(self.num_envs, dtype=torch.int64)
            self._seed = int(seeds[0])
        self.key.copy_(random.stream(seeds, envs))
        self.seeds, self.indices = seeds.expand(self.num_envs), envs
        self.prepare(self._seed)

    def _checked_action(self, action: Any) -> Any:
        space = self.single_action_space
        if not isinstance(action, Tensor):
            action = torch.as_tensor(np.asarray(action))
        action = action.detach()             # the state must not carry a graph
        shape = (self.num_envs, *(space.shape or ()))
        if action.shape != shape:
            raise ValueError(f"action must have the shape {list(shape)}, got {list(action.shape)}")
        whole = not isinstance(space, gymnasium.spaces.Box)
        if whole and (action.is_floating_point() or action.dtype == torch.bool):
            raise TypeError(f"action must be of whole numbers for {space}, got {action.dtype}")
        action = action.to(self.device, torch.int64 if whole else None)      # gather and scatter take no other index
        if self.validate:
            self._check_range(action, space)
        return action

    def _check_range(self, action: Tensor, space: gymnasium.Space[Any]) -> None:
        if isinstance(space, gymnasium.spaces.Box):
            bad = ~torch.isfinite(action)
        else:
            sizes = space.nvec if isinstance(space, gymnasium.spaces.MultiDiscrete) else getattr(space, "n", 2)
            n = 2 if isinstance(space, gymnasium.spaces.MultiBinary) else sizes
            bad = (action < 0) | (action >= torch.as_tensor(n, device=action.device))
        if bool(bad.any()):
            where = int(bad.reshape(self.num_envs, -1).any(1).nonzero()[0])
            raise ValueError(f"action of env {where} is {action[where].tolist()}, outside {space}")


def positive(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def check_length(name: str, steps: int) -> int:
    """A number of steps that an episode can have."""
    if positive(name, steps) > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST}, got {steps}")
    return int(steps)


def assign(target: Tensor, mask: Tensor | None, value: Any) -> None:
    """target[mask] = value in place, without waiting for a GPU; mask [N] or None for all; value a number or a tensor like target."""
    if isinstance(value, Tensor):
        target.copy_(value if mask is None else torch.where(_like(mask, target), value, target))
    elif mask is None:
        target.fill_(value)
    else:
        target.masked_fill_(_like(mask, target), value)


def _like(mask: Tensor, target: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (target.ndim - 1))


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed must be a whole number, got {type(seed).__name__}")
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed must be in 0 .. 2**63 - 1, got {seed}")
    return int(seed)


def _mode(mode: str | AutoresetMode) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    known = {m.name.lower(): m for m in AutoresetMode}
    key = str(mode).lower().replace("-", "_")
    key = {"nextstep": "next_step", "samestep": "same_step"}.get(key, key)
    if key not in known:
        raise ValueError(f"unknown autoreset_mode {mode!r}; choose from {', '.join(known)}")
    return known[key]
