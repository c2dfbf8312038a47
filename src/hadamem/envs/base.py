"""`BatchedEnv`: N copies of one task, stepped together on one device, with the interface of Gymnasium's VectorEnv on torch tensors.

A task is a subclass that defines how episodes start, continue and look; everything else (seeding, autoreset, time limits, saving) is here.
All state lives in registered tensors that are only written in place, and nothing in `step` waits for a GPU, so `step` can be captured in a
CUDA graph. On a CPU `step` may look at the values and skip work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from .. import random
from . import trees
from .checks import checked_action, checked_mode, checked_seed, positive

if TYPE_CHECKING:
    from .render.blocks import Block

EPISODE = 1 << 24                  # random counters per episode of an env
SLOTS = 64                         # random counters per step
LONGEST = EPISODE // SLOTS - 1     # longest episode, in steps


class BatchedEnv:
    """`num_envs` copies of a task. Call `reset` first, then `step`; finished episodes restart automatically.

    num_envs: number of copies. device: where they live. seed: for the first `reset` if that has none; None draws one from torch's
    generator. first_env: index of the first copy: env i of a batch with `first_env=f` equals env 0 of a batch with `first_env=f + i`.
    autoreset_mode: "same_step" (the default: the step that ends an episode returns the first observation of the next one, and the last
    one in `info["final_obs"]`), "next_step" (the following step resets and ignores its action) or "disabled" (the caller resets).
    max_episode_steps: truncate longer episodes. validate: check the range of every action; off by default, as it waits for the GPU.

    `info` of a step: `final_obs` [N, ...] with `_final_obs` [N] bool (true where the episode ended; same-step mode only), and `success` [N]
    bool for tasks that define success, valid where the episode ended.
    """

    metadata: Mapping[str, Any] = MappingProxyType({"render_modes": ("ansi", "rgb_array"), "render_fps": 4})
    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]
    episode_steps: int | None = None       # longest episode under the task's own rules, in steps; None: no limit
    restorable: bool = True                # set_state can restore what get_state returned
    reward_dtype: torch.dtype = torch.float32
    fixed_length: bool = False             # every episode has exactly `episode_steps` steps
    truncates: bool = True                 # the task's own rules may truncate episodes (a time limit always can)
    truncates_early: bool = True           # ... of fewer than `episode_steps` steps
    layout: tuple[str, ...] = ()           # names accepted by reset(options={"layout": {...}})
    keys: ClassVar[Mapping[str, tuple[int, str]]] = MappingProxyType({})      # how a person plays: key -> (action, its name)

    def __init__(self, num_envs: int = 1, *, device: torch.device | str = "cpu", seed: int | None = None, first_env: int = 0,
                 autoreset_mode: str | AutoresetMode = AutoresetMode.SAME_STEP, max_episode_steps: int | None = None,
                 validate: bool = False, render_mode: str | None = None):
        self.num_envs = positive("num_envs", num_envs)
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None and torch.cuda.is_available():
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.first_env = first_env
        self.autoreset_mode = checked_mode(autoreset_mode)
        self.max_episode_steps = None if max_episode_steps is None else positive("max_episode_steps", max_episode_steps)
        self.validate = validate
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"unknown render_mode {render_mode!r}; choose from {', '.join(self.metadata['render_modes'])}, or None")
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.closed = False
        self.spec: Any = None
        self._seed = None if seed is None else checked_seed(seed)
        self._fresh = True                      # no reset yet
        self.resetting = False                  # inside reset(), where waiting for a GPU is allowed
        self._names: list[str] = []
        self._counts: dict[int, Tensor] = {}
        n = self.num_envs
        self.key = self.register("key", torch.zeros(n, dtype=torch.int64))           # counter at which the episode's stream starts
        self.elapsed = self.register("elapsed", torch.zeros(n, dtype=torch.int64))   # actions taken in this episode
        self.started = self.register("started", torch.ones(n, dtype=torch.bool))     # the observation is the first of an episode
        self.ended = self.register("ended", torch.zeros(n, dtype=torch.bool))        # the last step ended the episode

    # --- what a task fills in --------------------------------------------------------------------------------------

    def start(self, mask: Tensor | None) -> None:
        """Start new episodes where `mask` [N] is true (None: everywhere), in place. `elapsed` and `key` are set already."""
        raise NotImplementedError

    def advance(self, action: Any) -> tuple[Tensor, Tensor, Tensor]:
        """One step, in place: reward [N] float32, terminated [N], truncated [N]. `elapsed` includes this action.

        For envs that are stepped after their episode has ended, results do not matter, but there must be no error.
        """
        raise NotImplementedError

    def observe(self) -> Any:
        """The observation of the current state, as new tensors."""
        raise NotImplementedError

    def success(self) -> Tensor | None:
        """Whether the episode would be a success if it ended now [N]; None: the task does not define success."""
        return None

    def extra_info(self) -> dict[str, Any]:
        """More entries for `info` of a step: new tensors [N, ...], read before finished episodes restart."""
        return {}

    def inject(self, layout: dict[str, Any]) -> None:
        """Replace what was drawn at random for the episodes that just started, e.g. by recorded decks; `self.layout` has the names."""
        raise NotImplementedError

    def prepare(self, seed: int) -> None:
        """Draw what a run's seed determines once for all episodes; called before the first `start`.

        `self.seeds` [N] are the seeds of the envs (`seed` is the first), `self.indices` [N] the numbers of the envs under their seed;
        both are on the CPU.
        """

    def scene(self, i: int, hidden: bool) -> list[Block]:
        """What a person sees of env i: blocks of `envs.render.blocks`, shown below each other. Default: the observation.

        hidden: include what the agent cannot see; without it, the scene must depend on the observation only.
        """
        from .render.observation import observation_scene

        return observation_scene(self, i)

    # --- interface -------------------------------------------------------------------------------------------------

    @classmethod
    def action_names(cls) -> dict[int, str]:
        """Names of actions, for those that have one: {0: "left", 1: "right"}."""
        return dict(cls.keys.values())

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

        Without a seed the random streams continue with new episodes. options: `reset_mask` [N] bool restarts only those envs;
        `layout` {name: values} replaces what would be drawn at random, for replays (`env.layout` has the names).
        """
        options = dict(options or {})
        mask, layout = options.pop("reset_mask", None), options.pop("layout", None)
        if options:
            raise ValueError(f"unknown reset options {sorted(options)}; known are reset_mask and layout")
        if mask is not None and seed is not None:
            raise ValueError("seed applies to all envs and cannot be combined with reset_mask; leave out one of them")
        if mask is not None:
            mask = torch.as_tensor(mask, device=self.device)
            if mask.dtype != torch.bool or mask.shape != (self.num_envs,):
                raise ValueError(f"reset_mask must be [{self.num_envs}] bool, got {list(mask.shape)} {mask.dtype}")
            if self._fresh:
                raise ValueError("reset_mask needs envs that were reset before; call reset() without it first")
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
        """Step every env: obs, reward [N], terminated [N], truncated [N], info. All tensors are new; none is written to later."""
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
            if not nobody(resets):
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
            if not nobody(done):
                self._restart(done)
                obs = trees.where(done, self.observe(), obs)
        elif resets is None:
            self.started.zero_()
        return obs, reward, terminated, truncated, info

    @property
    def least_truncated(self) -> int:
        """No episode of fewer steps is truncated. 1 if nothing is known."""
        limits = [] if self.max_episode_steps is None else [self.max_episode_steps]
        if self.truncates:
            early = self.truncates_early and not self.fixed_length
            limits.append(1 if early or self.episode_steps is None else self.episode_steps)
        return min(limits, default=1)

    def get_state(self) -> dict[str, Tensor]:
        """A copy of the complete state, random streams included: {name: tensor}. `set_state` restores it."""
        return {name: getattr(self, name).clone() for name in self._names}

    def set_state(self, state: dict[str, Tensor]) -> Any:
        """Restore a state from `get_state` of this env or one built the same way, on any device. Returns the observation."""
        if set(state) != set(self._names):
            raise ValueError(f"state must hold {self._names}, got {sorted(state)}; pass what get_state() of such an env returned")
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
        """Env 0 as text (render_mode "ansi") or as an RGB array (render_mode "rgb_array")."""
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
        """Make `value` part of the state. Write to it in place only: CUDA graphs keep its address."""
        value = value.to(self.device).contiguous()
        self._names.append(name)
        setattr(self, name, value)
        return value

    def zeros(self, name: str, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Register zeros [N, *shape]."""
        return self.register(name, torch.zeros(self.num_envs, *shape, dtype=dtype))

    def counter(self, slot: int | Tensor = 0) -> Tensor:
        """Counters [N] for random numbers, different for each env, episode, step and slot < SLOTS."""
        counter = torch.add(self.key, self.elapsed, alpha=SLOTS)
        return counter if isinstance(slot, int) and slot == 0 else counter + slot

    def counters(self, n: int) -> Tensor:
        """Counters [N, n] of slots 0 to n - 1."""
        return self.counter()[:, None] + self.count(n)

    def count(self, n: int) -> Tensor:
        """0 .. n - 1 [n], cached."""
        if n not in self._counts:
            self._counts[n] = torch.arange(n, device=self.device)
        return self._counts[n]

    # --- internals -------------------------------------------------------------------------------------------------

    def _restart(self, mask: Tensor) -> None:
        self.key.add_(mask, alpha=EPISODE)
        self._begin(mask)

    def _inject(self, layout: dict[str, Any], mask: Tensor | None, before: dict[str, Tensor], fresh: bool) -> None:
        """`inject` for the envs in `mask` only; if it raises, the state `before` the reset is restored."""
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
            self._seed = checked_seed(seed)
            seeds, envs = torch.tensor(self._seed), torch.arange(self.first_env, self.first_env + self.num_envs)
        else:
            if len(seed) != self.num_envs:
                raise ValueError(f"seed must be an int or one for each of {self.num_envs} envs, got {len(seed)}")
            seeds = torch.tensor([checked_seed(s) for s in seed], dtype=torch.int64)
            envs = torch.zeros(self.num_envs, dtype=torch.int64)
            self._seed = int(seeds[0])
        self.key.copy_(random.stream(seeds, envs))
        self.seeds, self.indices = seeds.expand(self.num_envs), envs
        self.prepare(self._seed)

    def _checked_action(self, action: Any) -> Tensor:
        return checked_action(action, self.single_action_space, self.num_envs, self.device, self.validate)


def check_length(name: str, steps: int) -> int:
    """Check that an episode can have this many steps, and return it."""
    if positive(name, steps) > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST}, got {steps}")
    return int(steps)


def nobody(mask: Tensor) -> bool:
    """Whether no env is in `mask`, so that work can be skipped. False on a GPU and under torch.compile: looking would cost more."""
    return mask.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(mask.any())


def assign(target: Tensor, mask: Tensor | None, value: Any) -> None:
    """target[mask] = value in place, without waiting for a GPU. mask: [N] or None for all. value: a number, or a tensor like target."""
    if isinstance(value, Tensor):
        target.copy_(value if mask is None else torch.where(_like(mask, target), value, target))
    elif mask is None:
        target.fill_(value)
    else:
        target.masked_fill_(_like(mask, target), value)


def _like(mask: Tensor, target: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (target.ndim - 1))
