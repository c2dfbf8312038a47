"""Records what the memory of an agent sees while the agent plays: the input of every step, and the steps that open an episode."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..memory import Memory
from ..runs.config import TrainConfig
from ..training.evaluate import play
from ..training.loop import train
from ..training.policy import Policy
from ..training.trainer import Trainer


@dataclass(frozen=True)
class Recording:
    """N envs over T steps."""

    memory: Any           # hm.SHM or another hm.Memory
    state: Any            # of the memory before the first step
    x: Tensor             # [N, T, D]: its inputs
    reset: Tensor         # [N, T] bool
    reward: Tensor        # [N, T]


def untrained_policy(config: TrainConfig) -> Policy:
    """The policy that a run with these settings starts from."""
    trainer = Trainer(config)
    try:
        return Policy.of(trainer)
    finally:
        trainer.close()


def trained_policy(config: TrainConfig) -> Policy:
    """Train with these settings. A run that was stopped raises KeyboardInterrupt: its agent must not pass for a trained one."""
    run = train(config)
    if run.status != "finished":
        raise KeyboardInterrupt
    return run.policy


@torch.no_grad()
def record(policy: Policy, env: Any, steps: int | None = None, seed: int = 0, deterministic: bool = False) -> Recording:
    """Play `steps` steps in a batched env (default: one episode) and record the inputs of the memory that the policy acts with."""
    if steps is None and not env.unwrapped.fixed_length:
        raise ValueError("steps must be given where the length of episodes varies, got None")
    steps = env.unwrapped.episode_steps if steps is None else steps
    memory = _acting_memory(policy)
    with _steps_of(memory) as seen:
        rewards = [step.reward for step in itertools.islice(play(policy, env, seed, deterministic), steps)]
    x, states, resets = zip(*seen, strict=True)
    return Recording(memory, states[0], torch.stack(x, 1), torch.stack(resets, 1), torch.stack(rewards, 1))


def _acting_memory(policy: Policy) -> Memory:
    """The actor's memory: networks build it first."""
    found = next((module for module in policy.network.modules() if isinstance(module, Memory)), None)
    if found is None:
        raise ValueError("policy has no memory to record; train it with another memory than 'none'")
    return found


@contextmanager
def _steps_of(memory: Memory) -> Iterator[list[tuple[Tensor, Any, Tensor]]]:
    """Collect input, state before and reset of every call of memory.step within a `with` block."""
    seen: list[tuple[Tensor, Any, Tensor]] = []
    original = memory.step

    def step(x: Tensor, state: Any, reset: Tensor | None = None) -> Any:
        flags = torch.zeros(len(x), dtype=torch.bool, device=x.device) if reset is None else reset
        seen.append((x.clone(), state, flags.clone()))
        return original(x, state, reset)

    memory.step = step   # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del memory.step
