"""Evaluate a policy: the returns of complete episodes, with confidence intervals."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

from .. import envs, lookup
from ..envs.checks import positive
from ..statistics import mean_interval, rate_interval
from .policy import PolicyState
from .seeding import SEEDS, env_seed

FIRST_ENV = 1 << 40       # index of the first env of an evaluation; no training run has this many, so the episodes are new
MAX_ENVS = 64
WARN_AFTER = 60.0         # seconds without a finished episode before a warning that mentions max_steps


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes, and statistics of them.

    successes: None if the env does not report success. truncated: number of episodes that were truncated at `max_steps`.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    successes: tuple[bool, ...] | None = None
    max_steps: int | None = None
    truncated: int = 0

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float | None:
        """Sample standard deviation of the returns; None for a single episode."""
        return float(np.std(self.returns, ddof=1)) if self.episodes > 1 else None

    @property
    def ci(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean return (Student's t); None for a single episode."""
        return mean_interval(self.returns)

    @property
    def success(self) -> float | None:
        """Success rate; None if the env does not report success."""
        return None if self.successes is None else float(np.mean(self.successes))

    @property
    def success_ci(self) -> tuple[float, float] | None:
        """95 % confidence interval of the success rate (Wilson)."""
        return None if self.successes is None else rate_interval(sum(self.successes), self.episodes)

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON: statistics first, then every episode."""
        return {
            "episodes": self.episodes, "mean": self.mean, "std": self.std, "ci": self.ci, "min": min(self.returns),
            "median": float(np.median(self.returns)), "max": max(self.returns), "length": float(np.mean(self.lengths)),
            "success": self.success, "success_ci": self.success_ci, "max_steps": self.max_steps, "truncated": self.truncated,
            "returns": self.returns, "lengths": self.lengths, "successes": self.successes,
        }


def evaluate(policy: Any, env: Any, episodes: int = 100, seed: int = 0, deterministic: bool = False, *,
             env_options: Mapping[str, Any] | None = None, max_steps: int | None = None,
             report: Callable[[int], None] | None = None, trust: bool = False) -> Evaluation:
    """Play `episodes` episodes with a policy.

    env: a name of `hm.envs`, a Gymnasium id or a callable that makes a Gymnasium env (all three take env_options, and are closed at the
    end); or a Gymnasium env or vector env, or a batched env without wrappers (the policy adds previous action and first-step flag itself).
    seed: the same seed gives the same episodes. Those of hadamem's envs are not among the episodes of any training run. Values that a task
    draws once per run, such as Visual Match's colours or the training winds, are those of the run that trained the policy.
    deterministic: take the most likely actions instead of sampling.
    max_steps: truncate episodes after this many steps (a lower limit of the env still applies). Without it, an episode that never ends
    blocks; a warning appears after a minute.
    report: called with the number of finished episodes whenever it changes.
    trust: import an env class that a file names (`open_run(folder).config.env`); a name that you write yourself needs no trust.

    Each copy of the env plays a fixed number of episodes, so that short episodes are not over-represented.
    """
    episodes = positive("episodes", episodes)
    if max_steps is not None:
        max_steps = positive("max_steps", max_steps)
    check_seed(seed)
    made = isinstance(env, str) or (callable(env) and not isinstance(env, gymnasium.Env))
    if env_options and not made:
        raise TypeError("env_options need env to be a name or a callable, got an env that exists already; set the options when you make it")
    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        env = envs.adapt(env, device=policy.device)
    elif made:
        make: Any = envs.make if isinstance(env, str) else envs.adapt
        with lookup.trusting(trust):
            env = make(env, num_envs=min(episodes, MAX_ENVS), device=policy.device, **(env_options or {}))
    try:
        check_env(policy, env)
        with _max_episode_steps(env, max_steps):
            return count_episodes(play(policy, env, seed, deterministic), env, episodes, max_steps, report)
    finally:
        if made:
            env.close()


def check_seed(seed: int) -> None:
    if not 0 <= seed < SEEDS:
        raise ValueError(f"seed must be in 0 .. 2**30 - 1, got {seed}")


def check_env(policy: Any, env: Any) -> None:
    """Raise a ValueError if a policy cannot be evaluated on a batched env."""
    check_fit(policy, env)
    if env.unwrapped.autoreset_mode is AutoresetMode.DISABLED:
        raise ValueError("env must reset itself, got autoreset_mode='disabled'; make it with autoreset_mode='same_step'")


def check_fit(policy: Any, env: Any) -> None:
    """Raise a ValueError if the spaces of an env do not match those of a policy; bounds of a Box may differ."""
    for kind, mine, theirs in (("observations", policy.observation_space, env.single_observation_space),
                               ("actions", policy.action_space, env.single_action_space)):
        if not _same_structure(mine, theirs):
            raise ValueError(f"the env's {kind} do not fit those that the policy was trained with: {theirs} instead of {mine}; "
                             "use an env with the same spaces")


def _same_structure(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Whether two spaces are equal, apart from the bounds of boxes: variants of a task may have other bounds."""
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return one.shape == other.shape and (one.dtype == np.uint8) == (other.dtype == np.uint8)      # uint8: images
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(_same_structure(one[name], other[name]) for name in one.spaces)
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one) == len(other) and all(_same_structure(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def reset_for_evaluation(env: Any, policy: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Reset an env to the episodes of evaluation `seed`; see `evaluate`."""
    inner = env.unwrapped
    if not inner.restorable:      # a Gymnasium env
        return env.reset(seed=SEEDS + env_seed(seed))      # no training run has one of these
    before, inner.first_env = inner.first_env, FIRST_ENV + (seed << 20)
    try:
        return env.reset(seed=policy.seed)
    finally:
        inner.first_env = before


@contextmanager
def _max_episode_steps(env: Any, max_steps: int | None) -> Iterator[None]:
    """Lower the env's max_episode_steps to `max_steps` within a `with` block."""
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


class Step(NamedTuple):
    """What one step of all envs gave. Tensors [N] on the env's device."""

    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    first: Tensor              # the next observation opens an episode
    info: dict[str, Any]


class Now(NamedTuple):
    """What a step starts from: the observation, the reward that came with it, whether it opens an episode, and the policy's state."""

    obs: Any
    reward: Tensor
    first: Tensor
    state: PolicyState
    mask: Tensor | None


def play(policy: Any, env: Any, seed: int, deterministic: bool) -> Iterator[Step]:
    """Play the episodes of evaluation `seed`, without end."""
    generator = torch.Generator(policy.device).manual_seed(seed)
    now = begin(policy, env, seed, generator)
    while True:
        now, step = advance(policy, env, now, deterministic, generator)
        yield step


def begin(policy: Any, env: Any, seed: int, generator: torch.Generator) -> Now:
    """Start the episodes of evaluation `seed`."""
    obs, info = reset_for_evaluation(env, policy, seed)
    n = env.num_envs
    return Now(obs, torch.zeros(n, device=env.device), torch.ones(n, dtype=torch.bool, device=env.device),
               policy.initial_state(n, generator), info.get("action_mask"))


def advance(policy: Any, env: Any, now: Now, deterministic: bool, generator: torch.Generator) -> tuple[Now, Step]:
    """One step of all envs."""
    more = {"reward": now.reward} if getattr(policy, "sees_reward", False) else {}
    action, state = policy.act(now.obs, now.state, now.first, deterministic, mask=now.mask, generator=generator, **more)
    obs, reward, terminated, truncated, info = env.step(action)
    first = env.unwrapped.started.clone()
    return Now(obs, reward, first, state, info.get("action_mask")), Step(reward, terminated, truncated, first, info)


def count_episodes(steps: Iterator[Step], env: Any, episodes: int, max_steps: int | None = None,
                   report: Callable[[int], None] | None = None) -> Evaluation:
    """The result of `episodes` episodes of an env. report: see `evaluate`."""
    if _fixed_length(env):
        return _count_fixed(steps, env, episodes, report)
    return _count(steps, env.num_envs, episodes, max_steps, report)


def _quota(episodes: int, n: int) -> np.ndarray:
    """How many episodes each of n envs plays."""
    return np.array([episodes // n + (i < episodes % n) for i in range(n)])


def _fixed_length(env: Any) -> bool:
    """Whether all episodes are known to have `episode_steps` steps, one directly after the other."""
    inner = env.unwrapped
    return inner.fixed_length and inner.episode_steps is not None and inner.max_episode_steps is None \
        and inner.autoreset_mode is AutoresetMode.SAME_STEP


def _count_fixed(steps: Iterator[Step], env: Any, episodes: int, report: Callable[[int], None] | None) -> Evaluation:
    """The result of `episodes` episodes that all have the same length. Nothing waits for a GPU before the end."""
    n, length = env.num_envs, env.unwrapped.episode_steps
    quota = _quota(episodes, n)
    returns, successes = list[Tensor](), list[Tensor]()          # [N], of each round of episodes
    for played in range(1, int(quota.max()) + 1):
        total, won = torch.zeros(n, dtype=torch.float64, device=env.device), None
        for step in itertools.islice(steps, length):
            total = total + step.reward
            won = step.info.get("success")
        returns.append(total)
        if won is not None:
            successes.append(won.clone())      # a CUDA graph writes every step to the same place
        if report is not None:
            report(min(episodes, played * n))

    def counted(rounds: list[Tensor]) -> tuple[Any, ...]:
        values = torch.stack(rounds, 1).tolist()                 # [N][rounds]
        return tuple(value for row, count in zip(values, quota, strict=True) for value in row[:count])

    return Evaluation(counted(returns), (length,) * episodes, counted(successes) if successes else None)


def _count(steps: Iterator[Step], n: int, episodes: int, max_steps: int | None, report: Callable[[int], None] | None) -> Evaluation:
    """The result of `episodes` episodes of any lengths."""
    quota = _quota(episodes, n)
    results: list[list[tuple[float, int, bool]]] = [[] for _ in range(n)]
    total, length = np.zeros(n), np.zeros(n, dtype=np.int64)
    has_success = False
    finished = num_truncated = 0
    warn_at = math.inf if max_steps is not None else time.monotonic() + WARN_AFTER
    while finished < episodes:
        step = next(steps)
        done = (step.terminated | step.truncated).cpu().numpy()
        counts = done | ~step.first.cpu().numpy()        # in next-step mode, the step that only resets belongs to no episode
        total += np.where(counts, step.reward.cpu().numpy(), 0.0)
        length += counts
        if not done.any():
            if time.monotonic() >= warn_at:
                warn_at = math.inf
                warnings.warn(f"hadamem: no episode has ended for {WARN_AFTER:.0f} s (the longest has {length.max():,} steps); if episodes "
                              "may never end, set max_steps (hadamem eval --max-steps N), or while training the env's max_episode_steps "
                              "(--eval-env-option max_episode_steps=N)", RuntimeWarning, stacklevel=3)
            continue
        warn_at = max(warn_at, time.monotonic() + WARN_AFTER)
        success = step.info.get("success")
        has_success |= success is not None
        won = np.zeros(n, dtype=bool) if success is None else success.cpu().numpy()
        natural_end = step.terminated.cpu().numpy()
        before, ends = finished, step.info.get("final_info") or [None] * n
        for i in np.flatnonzero(done):
            if len(results[i]) < quota[i] and not (ends[i] or {}).get("env_restarted"):      # its worker took the episode with it
                num_truncated += max_steps is not None and not natural_end[i] and length[i] >= max_steps
                results[i].append((float(total[i]), int(length[i]), bool(won[i])))
                finished += 1
        total[done], length[done] = 0.0, 0
        if report is not None and finished > before:
            report(finished)
    returns, lengths, successes = zip(*(episode for row in results for episode in row), strict=True)
    return Evaluation(returns, lengths, successes if has_success else None, max_steps, int(num_truncated))
