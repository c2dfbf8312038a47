"""Autoencode (POPGym): watch a deck of cards, then recite their suits in reverse."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Discrete, Tuple
from torch import Tensor

from .cards import CardEnv

LEVELS = {"Easy": dict(num_decks=1), "Medium": dict(num_decks=2), "Hard": dict(num_decks=3)}


class Autoencode(CardEnv):
    """First every card of the deck is shown (mode 1, any action); with the last one mode turns 0. Then each action recites the suit of the
    latest card not yet recited, for ±1 / cards, and nothing is shown.
    """

    fixed_length, truncates = True, False

    def __init__(self, num_envs: int = 1, *, num_decks: int = 1, **options: Any):
        super().__init__(num_envs, num_decks, "suits", **options)
        self.single_observation_space = Tuple((Discrete(2), Discrete(4)))
        self.single_action_space = Discrete(4)
        self.episode_steps = 2 * self.num_cards - 1

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reciting = self.elapsed >= self.num_cards                   # all cards are on the table before this step
        right = self.dealt(2 * self.num_cards - 1 - self.elapsed) == action
        scale = 1 / self.num_cards
        reward = torch.where(right, scale, -scale).masked_fill_(~reciting, 0.0)
        self.card.copy_(self.deal(self.elapsed, ~reciting))
        return reward, self.elapsed >= 2 * self.num_cards - 1, torch.zeros_like(right)

    def observe(self) -> tuple[Tensor, Tensor]:
        return (self.elapsed < self.num_cards - 1).long(), self.card.masked_fill(self.elapsed >= self.num_cards, 0)
