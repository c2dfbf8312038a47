"""Distributions over actions. A policy's head gives `inputs` numbers; `describe` makes of them what a distribution needs to be known.

Sampling takes noise that was drawn before, so that a rollout can be replayed and captured in a CUDA graph. Inside, actions are
[..., factors] whole numbers or [..., size] floats in the units of the policy; `to_env` gives what the environment takes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn


def make_actions(space: spaces.Space[Any]) -> Actions:
    """The distribution for an action space: Discrete, MultiDiscrete or Box."""
    if isinstance(space, spaces.Discrete):
        return Categorical([int(space.n)], start=[int(space.start)], single=True)
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        return Categorical([int(n) for n in space.nvec], start=[int(s) for s in space.start], single=False)
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space.low, space.high)
    raise TypeError(f"actions of {space} are not supported; use Discrete, MultiDiscrete or a Box of floats in one dimension")


class Actions(nn.Module):
    """What an agent needs to know of its actions."""

    inputs: int          # numbers that the head gives
    width: int           # numbers that describe a distribution
    factors: int         # numbers in an action
    dtype: torch.dtype   # of actions inside

    def describe(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Head outputs [..., inputs], mask [..., inputs] bool of allowed actions -> descriptions [..., width]."""
        raise NotImplementedError

    def noise(self, *shape: int, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        """What `sample` needs for `shape` draws [*shape, ...]."""
        raise NotImplementedError

    def sample(self, dist: Tensor, noise: Tensor) -> Tensor:
        raise NotImplementedError

    def mode(self, dist: Tensor) -> Tensor:
        """The most likely action."""
        raise NotImplementedError

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        raise NotImplementedError

    def entropy(self, dist: Tensor) -> Tensor:
        raise NotImplementedError

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old || new) [...]."""
        raise NotImplementedError

    def to_env(self, action: Tensor) -> Tensor:
        raise NotImplementedError


class Categorical(Actions):
    """Independent choices among `sizes[i]` each; described by normalised log-probabilities, side by side."""

    start: Tensor

    def __init__(self, sizes: list[int], start: list[int] | None = None, single: bool = False):
        super().__init__()
        self.sizes, self.single, self.factors = sizes, single, len(sizes)
        self.inputs = self.width = sum(sizes)
        self.dtype = torch.int64
        self.register_buffer("start", torch.tensor(start or [0] * len(sizes)), persistent=False)

    def describe(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        least = torch.finfo(y.dtype).min / 4                            # far below any other, and still finite
        if mask is not None:
            y = y.masked_fill(~mask, least)
        parts = [F.log_softmax(part, -1) for part in y.split(self.sizes, -1)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return y if mask is None else y.masked_fill(~mask, least)       # again: one nan made all of them nan

    def noise(self, *shape: int, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        """Gumbel noise."""
        u = torch.empty(*shape, self.width, device=device).exponential_(generator=generator)
        return u.clamp_(min=1e-20).log_().neg_()

    def sample(self, dist: Tensor, noise: Tensor) -> Tensor:
        return self.mode(dist + noise)

    def mode(self, dist: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in dist.split(self.sizes, -1)], -1)

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        parts = [part.gather(-1, action[..., i:i + 1]) for i, part in enumerate(dist.split(self.sizes, -1))]
        return torch.cat(parts, -1).sum(-1)

    def entropy(self, dist: Tensor) -> Tensor:
        return -(dist.exp() * dist).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        return (old.exp() * (old - new)).sum(-1)

    def to_env(self, action: Tensor) -> Tensor:
        action = action + self.start
        return action[..., 0] if self.single else action


class Gaussian(Actions):
    """A normal distribution for each number, its spread a parameter that no input changes; described by means and log spreads.

    Bounded spaces are played in units of half their range: 0 is the middle, ±1 the ends, and `to_env` clips what lies beyond. (The
    probability counts what was drawn, before the clip.)
    """

    middle: Tensor
    reach: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, low: Any, high: Any):
        super().__init__()
        low, high = torch.as_tensor(np.asarray(low)).float(), torch.as_tensor(np.asarray(high)).float()
        bounded = (low.abs() < 1e6) & (high.abs() < 1e6)            # ranges beyond that stand for none
        self.inputs = self.factors = len(low)
        self.width = 2 * self.inputs
        self.dtype = torch.float32
        self.log_std = nn.Parameter(torch.zeros(self.inputs))
        self.register_buffer("middle", torch.where(bounded, (low + high) / 2, 0.0), persistent=False)
        self.register_buffer("reach", torch.where(bounded, (high - low) / 2, 1.0), persistent=False)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)

    def describe(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            raise ValueError("an action mask needs Discrete or MultiDiscrete actions")
        return torch.cat([y, self.log_std.expand_as(y)], -1)

    def noise(self, *shape: int, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        return torch.empty(*shape, self.inputs, device=device).normal_(generator=generator)

    def sample(self, dist: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = dist.chunk(2, -1)
        return mean + log_std.exp() * noise

    def mode(self, dist: Tensor) -> Tensor:
        return dist.chunk(2, -1)[0]

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        mean, log_std = dist.chunk(2, -1)
        z = (action - mean) * torch.exp(-log_std)
        return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, dist: Tensor) -> Tensor:
        return (dist.chunk(2, -1)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        (m0, s0), (m1, s1) = old.chunk(2, -1), new.chunk(2, -1)
        return (s1 - s0 + ((2 * s0).exp() + (m0 - m1).square()) * torch.exp(-2 * s1) / 2 - 0.5).sum(-1)

    def to_env(self, action: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(self.middle + self.reach * action, self.low), self.high)
