"""MultiarmedBandit (POPGym): find the arm that pays most often, and keep pulling it."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from ... import random
from ..base import BatchedEnv, assign, check_length
from ..checks import positive
from ..render.blocks import Bars, Block, Caption

LEVELS = {"Easy": dict(num_arms=10, steps=200), "Medium": dict(num_arms=20, steps=400), "Hard": dict(num_arms=30, steps=600)}


class MultiarmedBandit(BatchedEnv):
    """An action pulls an arm: observation 1 and reward 1 / steps if it pays, observation 0 and reward -1 / steps if not.

    In each episode every arm has a probability to pay, drawn uniformly from [0, 1). The observation does not show which arm was pulled.
    Truncated after `steps`.
    """

    layout = ("payouts",)

    fixed_length = True

    def __init__(self, num_envs: int = 1, *, num_arms: int = 10, steps: int = 200, **options: Any):
        super().__init__(num_envs, **options)
        self.steps = self.episode_steps = check_length("steps", steps)
        self.single_observation_space = Discrete(2)
        self.single_action_space = Discrete(positive("num_arms", num_arms))
        self.payouts = self.zeros("payouts", num_arms, dtype=torch.float32)     # probability of each arm
        self.paid = self.zeros("paid")

    def start(self, mask: Tensor | None) -> None:
        assign(self.payouts, mask, random.uniform(random.spread(self.counter(), self.payouts.shape[1])))
        assign(self.paid, mask, 0)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        paid = random.uniform(self.counter()) < self.payouts.gather(1, action[:, None])[:, 0]
        self.paid.copy_(paid)
        return torch.where(paid, 1 / self.steps, -1 / self.steps), torch.zeros_like(paid), self.elapsed >= self.steps

    def observe(self) -> Tensor:
        return self.paid.clone()

    def inject(self, layout: dict[str, Any]) -> None:
        payouts = torch.as_tensor(layout["payouts"], device=self.device)
        if payouts.shape != self.payouts.shape or not bool(((payouts >= 0) & (payouts <= 1)).all()):
            raise ValueError(f"layout['payouts'] must be {list(self.payouts.shape)}: the probability of each arm, 0 to 1; got "
                             f"{list(payouts.shape)}")
        self.payouts.copy_(payouts)

    def scene(self, i: int, hidden: bool) -> list[Block]:
        steps = int(self.elapsed[i])
        word = "nothing pulled yet" if steps == 0 else "it paid" if int(self.paid[i]) else "it did not pay"
        blocks: list[Block] = [Caption(f"step {steps} of {self.episode_steps}, {self.payouts.shape[1]} arms"), Caption(word, strong=True)]
        return blocks + ([Caption("how often each arm pays:"), Bars(self.payouts[i].tolist())] if hidden else [])
