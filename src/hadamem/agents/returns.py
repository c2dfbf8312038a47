"""Advantages from rewards and values."""

from __future__ import annotations

import torch
from torch import Tensor


def compute_gae(rewards: Tensor, values: Tensor, done: Tensor, final_values: Tensor | None, last_value: Tensor,
                gamma: float | Tensor, gae_lambda: float | Tensor) -> Tensor:
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


def rewards_are_answers(rewards: Tensor, done: Tensor) -> Tensor:
    """Whether rewards [N, T] look like answers to single actions, as in a quiz: they have a few values, none of which is nearly always
    there, and successive rewards of an episode are unrelated. done [N, T]: the episode ended with that step.
    """
    flat = rewards.flatten().sort().values
    values = (flat[1:] != flat[:-1]).sum() + 1
    pairs = (~done[:, :-1]).to(rewards.dtype)                                # successive rewards of one episode
    x, y = rewards[:, :-1], rewards[:, 1:]
    count = pairs.sum()
    x, y = x - (pairs * x).sum() / count, y - (pairs * y).sum() / count
    relation = (pairs * x * y).sum().abs() / ((pairs * x * x).sum() * (pairs * y * y).sum()).sqrt()      # nan if either never changes
    return (values <= MOST_ANSWERS) & (reward_density(rewards) >= LEAST_ANSWERS) & (relation <= RELATED)


def rising_gamma(last: float, fraction: float, first: float = 10.0) -> float:
    """A discount factor whose horizon 1 / (1 - gamma) grows by equal factors, from `first` steps to that of `last`."""
    if last >= 1:
        return last
    horizon = 1 / (1 - last)
    first = min(first, horizon)
    return 1 - 1 / (first * (horizon / first) ** fraction)


USUAL_LAMBDA = 0.95
ANSWER_HORIZON = 2.5      # steps, of the first lambda where rewards are answers: 0.6
MOST_ANSWERS = 8          # different rewards
LEAST_ANSWERS = 0.2       # share of rewards that are not the usual one
RELATED = 0.2             # correlation of successive rewards from which on they tell where the agent is
