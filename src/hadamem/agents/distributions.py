"""Distributions over actions: `parameters_of` maps the actor's outputs to distribution parameters, one tensor for all of them.

Sampling takes noise drawn beforehand, so that a rollout can be repeated and captured in a CUDA graph. Actions are [..., K]: integers
from 0, or floats in the units of the policy. `to_env` converts them to what the env takes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

MOST_JOINT = 1024      # choices of a joint distribution over MultiDiscrete actions


def make_actions(space: spaces.Space[Any], *, joint: bool | str = False, squashed: bool = False) -> Actions:
    """The distribution for an action space: Discrete, MultiDiscrete or Box.

    joint: MultiDiscrete actions are one choice among all combinations; "auto": if there are at most MOST_JOINT. squashed: boxes get a
    normal distribution through tanh, whose spread depends on the input.
    """
    if isinstance(space, spaces.Discrete):
        return Categorical([int(space.n)], start=[int(space.start)], single=True)
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        sizes, start = [int(n) for n in space.nvec], [int(s) for s in space.start]
        many = math.prod(sizes) > MOST_JOINT
        if not joint or (joint == "auto" and many):
            return Categorical(sizes, start=start, single=False)
        if many:
            raise ValueError(f"actions of {space} have {math.prod(sizes):,} combinations, and at most {MOST_JOINT} can be one choice; use "
                             "agent 'ppo' with joint_actions 'never' or 'auto', which chooses each part by itself, or an env with fewer "
                             "actions")
        return Joint(sizes, start)
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating):
        return TanhGaussian(space.low, space.high) if squashed else Gaussian(space.low, space.high)
    raise TypeError(f"actions of {space} are not supported; use Discrete, MultiDiscrete or a Box of floats in one dimension")


class Actions(nn.Module):
    """A family of distributions over the actions of a space."""

    inputs: int          # outputs that the actor must have
    width: int           # D, the number of distribution parameters
    factors: int         # K, the numbers in an action
    dtype: torch.dtype   # of an action
    mask_size: int = 0   # A, the entries of a mask of allowed actions; 0: there are no masks

    def parameters_of(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Actor outputs [..., inputs], mask [..., A] bool of allowed actions -> distribution parameters [..., D]."""
        raise NotImplementedError

    def named(self, dist: Tensor) -> dict[str, Tensor]:
        """The parameters dist [..., D] by name, in order: side by side they are `dist` again."""
        return {"dist": dist}

    def noise(self, *shape: int, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        """Random numbers [*shape, ...] for `sample`, enough for `shape` actions. Zeros give the most likely action."""
        raise NotImplementedError

    def sample(self, dist: Tensor, noise: Tensor) -> Tensor:
        """Actions [..., K] drawn from distributions with the parameters dist [..., D]."""
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

    def uniform(self, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Actions [..., K] drawn uniformly from the space, from the same noise as `sample`."""
        raise NotImplementedError

    def to_env(self, action: Tensor) -> Tensor:
        raise NotImplementedError


class Categorical(Actions):
    """Independent choices among `sizes[i]` each. Parameters: normalised log-probabilities, side by side."""

    start: Tensor

    def __init__(self, sizes: list[int], start: list[int] | None = None, single: bool = False):
        super().__init__()
        self.sizes, self.single, self.factors = sizes, single, len(sizes)
        self.inputs = self.width = self.mask_size = sum(sizes)
        self.dtype = torch.int64
        self.register_buffer("start", torch.tensor(start or [0] * len(sizes)), persistent=False)

    def parameters_of(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        least = torch.finfo(y.dtype).min / 4                            # far below all others, and finite
        if mask is not None:
            y = y.masked_fill(~mask, least)
        parts = [F.log_softmax(part, -1) for part in y.split(self.sizes, -1)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return y if mask is None else y.masked_fill(~mask, least)       # again: log_softmax spreads a nan to all entries

    def named(self, dist: Tensor) -> dict[str, Tensor]:
        return {"logits": dist}

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

    def uniform(self, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.mode(self.parameters_of(torch.zeros_like(noise), mask) + noise)

    def to_env(self, action: Tensor) -> Tensor:
        action = action + self.start
        return action[..., 0] if self.single else action


class Joint(Categorical):
    """One choice among all combinations of several. Actions are [..., 1]: the number of the combination, the last part counting fastest.

    A mask still has an entry for every value of every part; a combination is allowed if all its parts are.
    """

    combinations: Tensor      # [choices, parts]: as the env takes them
    entries: Tensor           # [choices, parts]: into a mask

    def __init__(self, sizes: list[int], start: list[int]):
        super().__init__([math.prod(sizes)])
        self.mask_size = sum(sizes)
        combinations = torch.cartesian_prod(*(torch.arange(n) for n in sizes)).view(-1, len(sizes))      # [combinations, parts]
        self.register_buffer("combinations", combinations + torch.tensor(start), persistent=False)
        offset = torch.tensor([sum(sizes[:i]) for i in range(len(sizes))])
        self.register_buffer("entries", combinations + offset, persistent=False)

    def parameters_of(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().parameters_of(y, None if mask is None else mask[..., self.entries].all(-1))

    def to_env(self, action: Tensor) -> Tensor:
        return self.combinations[action[..., 0]]


class _Normal(Actions):
    """What the distributions over boxes share. In bounded spaces the unit is half the range: 0 is the middle, ±1 are the bounds, and
    `to_env` clips.
    """

    middle: Tensor
    reach: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, low: Any, high: Any):
        super().__init__()
        low, high = torch.as_tensor(np.asarray(low)).float(), torch.as_tensor(np.asarray(high)).float()
        bounded = (low.abs() < 1e6) & (high.abs() < 1e6)            # larger bounds are treated as unbounded
        self.factors, self.bounded = len(low), bool(bounded.all())
        self.width = 2 * self.factors
        self.dtype = torch.float32
        self.register_buffer("middle", torch.where(bounded, (low + high) / 2, 0.0), persistent=False)
        self.register_buffer("reach", torch.where(bounded, (high - low) / 2, 1.0), persistent=False)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)

    def named(self, dist: Tensor) -> dict[str, Tensor]:
        mean, log_std = dist.chunk(2, -1)
        return {"mean": mean, "log_std": log_std}

    def noise(self, *shape: int, generator: torch.Generator | None = None, device: Any = None) -> Tensor:
        return torch.empty(*shape, self.factors, device=device).normal_(generator=generator)

    def uniform(self, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.erf(noise / math.sqrt(2))                      # the normal distribution's own cumulative function

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        (m0, s0), (m1, s1) = old.chunk(2, -1), new.chunk(2, -1)
        return (s1 - s0 + ((2 * s0).exp() + (m0 - m1).square()) * torch.exp(-2 * s1) / 2 - 0.5).sum(-1)

    def to_env(self, action: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(self.middle + self.reach * action, self.low), self.high)


class Gaussian(_Normal):
    """Independent normal distributions, with a learned standard deviation that does not depend on the input.
    Parameters: means and logarithms of the deviations. Probabilities are those of the action before clipping.
    """

    def __init__(self, low: Any, high: Any):
        super().__init__(low, high)
        self.inputs = self.factors
        self.log_std = nn.Parameter(torch.zeros(self.inputs))

    def parameters_of(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            raise ValueError("an action mask needs Discrete or MultiDiscrete actions")
        return torch.cat([y, self.log_std.expand_as(y)], -1)

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


class TanhGaussian(_Normal):
    """Independent normal distributions through tanh. Parameters: means and logarithms of the deviations, both from the actor.

    The entropy has no closed form: it is the mean of -log_prob.
    """

    def __init__(self, low: Any, high: Any):
        super().__init__(low, high)
        self.inputs = 2 * self.factors

    def parameters_of(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        mean, log_std = y.chunk(2, -1)
        return torch.cat([mean, log_std.clamp(*LOG_STD)], -1)

    def sample(self, dist: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = dist.chunk(2, -1)
        return torch.tanh(mean + log_std.exp() * noise)

    def sample_with_log_prob(self, dist: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [..., K] and their log-probabilities [...]; both have gradients."""
        action = self.sample(dist, noise)
        density = -0.5 * noise.square() - dist.chunk(2, -1)[1] - 0.5 * math.log(2 * math.pi)
        return action, (density - torch.log(1 - action.square() + EDGE)).sum(-1)

    def mode(self, dist: Tensor) -> Tensor:
        return torch.tanh(dist.chunk(2, -1)[0])

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Of actions from elsewhere. Near ±1, where tanh cannot be inverted well, those of `sample_with_log_prob` are better."""
        mean, log_std = dist.chunk(2, -1)
        limit = 1 - torch.finfo(action.dtype).eps
        noise = (torch.atanh(action.clamp(-limit, limit)) - mean) * torch.exp(-log_std)
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return (density - torch.log(1 - action.square() + EDGE)).sum(-1)


LOG_STD = (-20.0, 2.0)      # limits of the logarithm of the deviation
EDGE = 1e-6                 # keeps the density finite at ±1
