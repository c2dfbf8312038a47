"""Physical systems that are observed in part, or with noise: what CartPole and Pendulum share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ... import random
from ..base import BatchedEnv, assign, check_length

NOISE_SLOT = 32     # lower slots are for the start of an episode


class ControlEnv(BatchedEnv):
    """A system with a float64 state [N, k] and observations of two float32 numbers.

    Episodes start uniformly in ±`spread` and are truncated after `steps`. noise: standard deviation of the Gaussian noise added to
    observations, which are then clipped to ±`high`, the bounds of their space.
    """

    layout = ("state",)

    def __init__(self, num_envs: int, spread: Sequence[float], high: Sequence[float], steps: int, noise: float, **options: Any):
        super().__init__(num_envs, **options)
        if not noise >= 0:
            raise ValueError(f"noise must be at least 0, got {noise}")
        self.steps = self.episode_steps = check_length("steps", steps)
        self.noise = float(noise)
        self.single_observation_space = Box(-np.array(high, np.float32), np.array(high, np.float32), dtype=np.float32)
        self.high = torch.tensor(high, dtype=torch.float32, device=self.device)
        self.spread = torch.tensor(spread, dtype=torch.float64, device=self.device)
        self.state = self.zeros("state", len(spread), dtype=torch.float64)

    def measure(self) -> Tensor:
        """The observed part of the state, without noise. [N, 2] float64"""
        raise NotImplementedError

    def start(self, mask: Tensor | None) -> None:
        unit = random.uniform(self.counters(self.state.shape[1]), torch.float64)
        assign(self.state, mask, self.spread * (2 * unit - 1))

    def observe(self) -> Tensor:
        obs = self.measure().float()
        if self.noise:
            noise = random.normal(torch.stack((self.counter(NOISE_SLOT), self.counter(NOISE_SLOT + 1)), 1))
            obs = (obs + self.noise * noise).clamp(-self.high, self.high)
        return obs

    def inject(self, layout: dict[str, Any]) -> None:
        state = torch.as_tensor(layout["state"], device=self.device)
        if state.shape != self.state.shape:
            raise ValueError(f"layout['state'] must be {list(self.state.shape)}, got {list(state.shape)}")
        self.state.copy_(state)
