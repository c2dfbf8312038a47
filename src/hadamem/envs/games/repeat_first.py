"""RepeatFirst (POPGym): say the suit of the first card at every step."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from ..render.blocks import Block, Caption, Cards
from .cards import SUIT_KEYS, CardEnv, suit

LEVELS = {"Easy": dict(num_decks=1), "Medium": dict(num_decks=8), "Hard": dict(num_decks=16)}


class RepeatFirst(CardEnv):
    """Cards are shown one by one; the right answer is always the suit of the first.

    Each answer pays ±1 / (cards - 1); the episode ends with the last card. The observation does not mark the first card; the `FirstStep`
    wrapper does.
    """

    keys = SUIT_KEYS
    fixed_length, truncates = True, False

    def __init__(self, num_envs: int = 1, *, num_decks: int = 1, **options: Any):
        super().__init__(num_envs, num_decks, "suits", **options)
        self.single_observation_space = Discrete(4)
        self.single_action_space = Discrete(4)
        self.episode_steps = self.num_cards - 1

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        right = self.deck[:, 0] == action
        scale = 1 / (self.num_cards - 1)
        self.card.copy_(self.deal(self.elapsed))
        return torch.where(right, scale, -scale), self.elapsed >= self.num_cards - 1, torch.zeros_like(right)

    def observe(self) -> Tensor:
        return self.card.clone()

    def scene(self, i: int, hidden: bool) -> list[Block]:
        blocks: list[Block] = [self.count_caption(i), Cards([suit(self.card[i])])]
        return blocks + ([Caption("the first card is always right:"), Cards([suit(self.deck[i, 0], lit=True)])] if hidden else [])
