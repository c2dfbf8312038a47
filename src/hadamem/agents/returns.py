"""Advantages from rewards and values."""

from __future__ import annotations

import torch
from torch import Tensor


def compute_gae(rewards: Tensor, values: Tensor, done: Tensor, final_values: Tensor | None, last_value: Tensor,
                gamma: float | Tensor, gae_lambda: float) -> Tensor:
    """Generalised advantage estimates [N, T].

    rewards, values, done [N, T]: done where the episode ended with that step. final_values [N, T]: the value of the final observation where
    an episode was truncated, 0 where it terminated (None: no episode was truncated). last_value [N]: of the observation after step T - 1.
    """
    T = rewards.shape[1]
    next_values = torch.cat([values[:, 1:], last_value[:, None]], 1)
    next_values = torch.where(done, torch.zeros_like(next_values) if final_values is None else final_values, next_values)
    delta = rewards + gamma * next_values - values
    advantages = torch.empty_like(delta)
    running, decay = torch.zeros_like(last_value), gamma * gae_lambda
    for t in range(T - 1, -1, -1):
        running = delta[:, t] + decay * torch.where(done[:, t], 0.0, running)
        advantages[:, t] = running
    return advantages


def reward_density(rewards: Tensor) -> Tensor:
    """The share of rewards that differ from the usual one, their median."""
    flat = rewards.flatten()
    return (flat != flat.median()).float().mean()


def lengths_differ(first: Tensor, ended: Tensor) -> Tensor:
    """Whether some episodes are longer than others, as a rollout shows it: first, ended [N, T], the first and the last steps of episodes.

    Envs that were started together are then no longer in step; or two episodes that lie within the rollout differ.
    """
    apart = ended.any(0) & ~ended.all(0)
    time = torch.arange(first.shape[1], device=first.device).expand(first.shape)
    start = torch.where(first, time, -1).cummax(1).values
    length, within = time - start, ended & (start >= 0)
    return apart.any() | (torch.where(within, length, -1).max() > torch.where(within, length, first.shape[1]).min())


def rising_gamma(last: float, fraction: float) -> float:
    """A discount factor whose horizon 1 / (1 - gamma) grows by equal factors, from FIRST_HORIZON steps to that of `last`."""
    if last >= 1:
        return last
    horizon = 1 / (1 - last)
    first = min(FIRST_HORIZON, horizon)
    return 1 - 1 / (first * (horizon / first) ** fraction)


FIRST_HORIZON = 10.0
