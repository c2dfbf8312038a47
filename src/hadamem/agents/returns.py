"""Advantages from rewards and values."""

from __future__ import annotations

import torch
from torch import Tensor


def compute_gae(rewards: Tensor, values: Tensor, done: Tensor, bootstrap: Tensor | None, last_value: Tensor,
                discount: float, trace: float) -> Tensor:
    """Generalised advantage estimates [N, T].

    rewards, values, done [N, T]: done where the episode ended with that step. bootstrap [N, T]: the value of the final observation where
    an episode was cut short, 0 where it ended (None: none was cut short). last_value [N]: of the observation after the last step.
    trace: lambda.
    """
    T = rewards.shape[1]
    after = torch.cat([values[:, 1:], last_value[:, None]], 1)               # the value that follows each step
    after = torch.where(done, torch.zeros_like(after) if bootstrap is None else bootstrap, after)
    delta = rewards + discount * after - values
    advantages = torch.empty_like(delta)
    running = torch.zeros_like(last_value)
    for t in range(T - 1, -1, -1):
        running = delta[:, t] + (discount * trace) * torch.where(done[:, t], 0.0, running)
        advantages[:, t] = running
    return advantages
