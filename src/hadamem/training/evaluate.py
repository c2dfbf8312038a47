"""How good a policy is: episodes played to their end, each counted once, with confidence intervals."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from .. import envs
from ..envs.base import positive
from ..statistics import mean_interval, rate_interval

FIRST_ENV = 1 << 40       # envs of evaluations are numbered from here: no run has so many, so none of their episodes was trained on
FIRST_SEED = 1 << 30      # foreign envs have no numbers: their seeds start here
MOST_ENVS = 64
PATIENCE = 60.0           # seconds without the end of an episode until max_steps is named


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of episodes, and what they say about the policy. `successes` is None where the env does not know success.

    `cut` of the episodes reached `max_steps` and were counted as they stood.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    successes: tuple[bool, ...] | None = None
    max_steps: int | None = None
    cut: int = 0

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float | None:
        """Deviation of the episodes' returns (of a sample: divided by n - 1); None for a single episode."""
        return float(np.std(self.returns, ddof=1)) if self.episodes > 1 else None

    @property
    def ci(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean by Student's t; None for a single episode."""
        return mean_interval(self.returns)

    @property
    def success(self) -> float | None:
        return None if self.successes is None else float(np.mean(self.successes))

    @property
    def success_ci(self) -> tuple[float, float] | None:
        """95 % confidence interval of the success rate by Wilson."""
        return None if self.successes is None else rate_interval(sum(self.successes), self.episodes)

    def summary(self) -> dict[str, Any]:
        """Plain values, for JSON: the numbers first, then every episode."""
        return {
            "episodes": self.episodes, "mean": self.mean, "std": self.std, "ci": self.ci, "min": min(self.returns),
            "median": float(np.median(self.returns)), "max": max(self.returns), "length": float(np.mean(self.lengths)),
            "success": self.success, "success_ci": self.success_ci, "max_steps": self.max_steps, "cut": self.cut,
            "returns": self.returns, "lengths": self.lengths, "successes": self.successes,
        }


def evaluate(policy: Any, env: Any, episodes: int = 100, seed: int = 0, deterministic: bool = False, *,
             env_options: Mapping[str, Any] | None = None, max_steps: int | None = None,
             report: Callable[[int], None] | None = None) -> Evaluation:
    """Play `episodes` episodes with a policy.

    env: a name of `hm.envs`, a Gymnasium id, a callable that makes a Gymnasium env (env_options are for these), a Gymnasium env or vector
    env, or a batched env (bare: the policy itself adds what it was trained with). Only envs that are made here are closed.
    deterministic: the most likely actions instead of drawn ones.
    Every copy of the env plays a number of episodes that is fixed beforehand, so short episodes do not count more often than long ones.
    The same seed gives the same episodes, and none of our own envs that training has seen. What a task draws once for a run, such as Visual
    Match's colours or the winds to train on, is as it was in the run that trained the policy.
    max_steps: episodes are cut there (truncated, as by the env's own limit, which still holds where it is lower) and count as they stand;
    without it, an episode that never ends is waited for, with a warning after a minute.
    report: called with the number of episodes that are over, whenever it changes.
    """
    episodes = positive("episodes", episodes)
    if max_steps is not None:
        max_steps = positive("max_steps", max_steps)
    check_seed(seed)
    made = isinstance(env, str) or (callable(env) and not isinstance(env, gymnasium.Env))
    if env_options and not made:
        raise TypeError("env_options are for an env that is made here; set them where the env is made")
    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        env = envs.adapt(env, device=policy.device)
    elif made:
        make: Any = envs.make if isinstance(env, str) else envs.adapt
        env = make(env, num_envs=min(episodes, MOST_ENVS), device=policy.device, **(env_options or {}))
    try:
        with _limited(env, max_steps):
            return _play(policy, env, episodes, seed, deterministic, max_steps, report)
    finally:
        if made:
            env.close()


def check_seed(seed: int) -> None:
    if not 0 <= seed < FIRST_SEED:
        raise ValueError(f"seed must be in 0 .. 2**30 - 1, got {seed}")


def check_fit(policy: Any, env: Any) -> None:
    """Refuse an env that does not show what the policy can read, or does not take what it does."""
    for kind, mine, theirs in (("observations", policy.observation_space, env.single_observation_space),
                               ("actions", policy.action_space, env.single_action_space)):
        if not _alike(mine, theirs):
            raise ValueError(f"the env's {kind} do not fit those that the policy was trained with: {theirs} instead of {mine}; "
                             "take an env with the same spaces")


def _alike(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Whether values of two spaces are made the same way. The bounds of a box may differ: a variant of a task may go further."""
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return one.shape == other.shape and (one.dtype == np.uint8) == (other.dtype == np.uint8)      # bytes are images, and scaled
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(_alike(one[name], other[name]) for name in one.spaces)
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one) == len(other) and all(_alike(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def begin(env: Any, policy: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Reset an env for the evaluation number `seed` of a policy."""
    inner = env.unwrapped
    if not inner.restorable:      # not one of ours
        return env.reset(seed=FIRST_SEED + seed)
    before, inner.first_env = inner.first_env, FIRST_ENV + (seed << 20)
    try:
        return env.reset(seed=policy.seed)
    finally:
        inner.first_env = before


@contextmanager
def _limited(env: Any, max_steps: int | None) -> Iterator[None]:
    """An env whose episodes end after `max_steps`, for a while: one that was given stays as it was."""
    inner = env.unwrapped
    before = inner.max_episode_steps
    if max_steps is None or (before is not None and before <= max_steps):
        yield
        return
    inner.max_episode_steps = max_steps
    try:
        yield
    finally:
        inner.max_episode_steps = before


def _play(policy: Any, env: Any, episodes: int, seed: int, deterministic: bool, max_steps: int | None,
          report: Callable[[int], None] | None) -> Evaluation:
    n = env.num_envs
    check_fit(policy, env)
    if env.unwrapped.autoreset_mode is AutoresetMode.DISABLED:
        raise ValueError("env must start anew by itself: make it with autoreset_mode='same_step'")
    quota = np.array([episodes // n + (i < episodes % n) for i in range(n)])
    played: list[list[tuple[float, int, bool]]] = [[] for _ in range(n)]
    total, length = np.zeros(n), np.zeros(n, dtype=np.int64)
    knows_success = False
    generator = torch.Generator(policy.device).manual_seed(seed)
    obs, info = begin(env, policy, seed)
    state, reset = policy.initial_state(n, generator), torch.ones(n, dtype=torch.bool, device=env.device)
    left, over, cut = episodes, 0, 0
    patient_until = math.inf if max_steps is not None else time.monotonic() + PATIENCE
    while left:
        action, state = policy.act(obs, state, reset, deterministic, mask=info.get("action_mask"), generator=generator)
        obs, reward, terminated, truncated, info = env.step(action)
        done = (terminated | truncated).cpu().numpy()
        reset = env.unwrapped.started.clone()
        counts = done | ~reset.cpu().numpy()             # a step that only starts an episode (next-step mode) is none
        total += np.where(counts, reward.cpu().numpy(), 0.0)
        length += counts
        if not done.any():
            if time.monotonic() >= patient_until:
                patient_until = math.inf
                warnings.warn(f"hadamem: no episode has ended for {PATIENCE:.0f} s (the longest has {length.max():,} steps); if they need "
                              "not end, max_steps (hadamem eval --max-steps N) cuts them", RuntimeWarning, stacklevel=3)
            continue
        patient_until = max(patient_until, time.monotonic() + PATIENCE)
        success = info.get("success")
        knows_success |= success is not None
        won = np.zeros(n, dtype=bool) if success is None else success.cpu().numpy()
        ended = terminated.cpu().numpy()
        for i in np.flatnonzero(done):
            if len(played[i]) < quota[i]:
                cut += max_steps is not None and not ended[i] and length[i] >= max_steps
                played[i].append((float(total[i]), int(length[i]), bool(won[i])))
                left -= 1
        total[done], length[done] = 0.0, 0
        if report is not None and episodes - left > over:
            over = episodes - left
            report(over)
    returns, lengths, wins = zip(*(episode for row in played for episode in row), strict=True)
    return Evaluation(returns, lengths, wins if knows_success else None, max_steps, int(cut))
