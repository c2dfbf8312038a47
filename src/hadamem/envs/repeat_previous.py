"""RepeatPrevious (POPGym): say the suit of the card shown k - 1 cards before the present one."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from .base import positive
from .cards import CardEnv

LEVELS = {"Easy": dict(num_decks=1, k=4), "Medium": dict(num_decks=2, k=32), "Hard": dict(num_decks=3, k=64)}


class RepeatPrevious(CardEnv):
    """Cards are shown one by one; the right answer is the suit of the k-th latest (k = 1: the one on show). Answers before there are
    k cards do not count. Each other answer pays ±1 / (cards - k); the episode ends with the last card.
    """

    fixed_length, truncates = True, False

    def __init__(self, num_envs: int = 1, *, num_decks: int = 1, k: int = 4, **options: Any):
        super().__init__(num_envs, num_decks, "suits", **options)
        self.k = positive("k", k)
        if k >= self.num_cards:
            raise ValueError(f"k must be smaller than the deck ({self.num_cards} cards), got k={k}; lower k or raise num_decks")
        self.single_observation_space = Discrete(4)
        self.single_action_space = Discrete(4)
        self.episode_steps = self.num_cards - 1

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shown = self.elapsed                                        # cards on the table before this step
        right = self.dealt(shown - self.k) == action
        scale = 1 / (self.num_cards - self.k)
        reward = torch.where(right, scale, -scale).masked_fill_(shown < self.k, 0.0)
        self.card.copy_(self.deal(shown))
        return reward, shown >= self.num_cards - 1, torch.zeros_like(right)

    def observe(self) -> Tensor:
        return self.card.clone()
