"""Rewards far outside what was seen before, which one faulty step of one env can produce. They are limited, counted and told."""

from __future__ import annotations

import torch
from torch import Tensor

FACTOR = 1000.0      # a reward counts at most this many times the largest one before


class RewardLimit:
    """Limits the rewards of a rollout to `FACTOR` times the largest magnitude before them.

    In the first rollout, to as many times that of a typical env: the median over envs with rewards. As long as all rewards were 0 there is
    no limit. If rewards really have grown, in half of the envs or again and again, the limit grows with them. Works in place, without
    waiting for the GPU.
    """

    def __init__(self, device: torch.device):
        self.largest = torch.zeros((), device=device)      # magnitude of a reward so far, after limiting
        self.count = torch.zeros((), device=device)        # rewards of the last rollout that were limited
        self.worst = torch.zeros((), device=device)        # magnitude of the largest of them
        self.before = torch.zeros((), device=device)       # what they are compared with
        self.low = torch.full((), -torch.inf, device=device)      # limits of the next rollout
        self.high = torch.full((), torch.inf, device=device)

    def restore(self, largest: Tensor) -> None:
        """Continue from a saved `largest`."""
        self.largest.copy_(largest)
        self._set_limits()

    def apply(self, reward: Tensor) -> None:
        """Limit rewards [N, T]. Those that are not finite stay: they are dealt with elsewhere."""
        size = torch.where(torch.isfinite(reward), reward.abs(), 0.0).to(self.largest.dtype)
        each = size.amax(1)      # of every env
        usual = torch.where(self.largest > 0, torch.maximum(self.largest, _typical(each)), _median_above_zero(each))
        limit = torch.where(usual > 0, FACTOR * usual, torch.inf)
        self.before.copy_(usual)
        self.count.copy_((size > limit).sum())
        self.worst.copy_(size.max())
        reward.copy_(torch.where(size > limit, limit * reward.sign(), reward))
        self.largest.copy_(torch.maximum(self.largest, size.clamp(max=limit).max()))
        self._set_limits()

    def _set_limits(self) -> None:
        self.high.copy_(torch.where(self.largest > 0, FACTOR * self.largest, torch.inf))
        self.low.copy_(-self.high)

    def numbers(self) -> dict[str, Tensor]:
        """For a row of metrics: how many rewards were limited, the largest, and the largest before. nan if none was."""
        nothing = torch.full_like(self.count, torch.nan)
        return {name: torch.where(self.count > 0, x, nothing)
                for name, x in (("outliers", self.count), ("outlier_reward", self.worst), ("usual_reward", self.before))}


def _typical(x: Tensor) -> Tensor:
    """The median of x [N]; 0 for fewer than 3 entries, where one of them would decide."""
    return x.sort().values[(len(x) - 1) // 2] if len(x) >= 3 else torch.zeros_like(x[0])


def _median_above_zero(x: Tensor) -> Tensor:
    """The median of the entries of x [N] that are above 0; 0 if there are none. By sorting, which is deterministic on a GPU as well."""
    order = x.sort().values
    count = (x > 0).sum()
    return order.gather(0, (len(x) - count + (count - 1).clamp(min=0) // 2).clamp(max=len(x) - 1)[None])[0]
