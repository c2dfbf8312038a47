"""Autoencode (POPGym): watch a deck of cards, then recite their suits in reverse."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Discrete, Tuple
from torch import Tensor

from ..render.blocks import Block, Caption, Card, Cards
from .cards import SUIT_KEYS, CardEnv, suit

LEVELS = {"Easy": dict(num_decks=1), "Medium": dict(num_decks=2), "Hard": dict(num_decks=3)}


class Autoencode(CardEnv):
    """Watch every card of the deck, then name their suits from the last card to the first.

    Observation: (mode, suit). While cards are shown, mode is 1 and actions do not matter; with the last card mode becomes 0. Then each
    action names the suit of the latest card not yet named, for ±1 / cards, and the suit shown is always 0.
    """

    keys = SUIT_KEYS
    fixed_length, truncates = True, False

    def __init__(self, num_envs: int = 1, *, num_decks: int = 1, **options: Any):
        super().__init__(num_envs, num_decks, "suits", **options)
        self.single_observation_space = Tuple((Discrete(2), Discrete(4)))
        self.single_action_space = Discrete(4)
        self.episode_steps = 2 * self.num_cards - 1

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reciting = self.elapsed >= self.num_cards                   # all cards were shown before this step
        right = self.dealt(2 * self.num_cards - 1 - self.elapsed) == action
        scale = 1 / self.num_cards
        reward = torch.where(right, scale, -scale).masked_fill_(~reciting, 0.0)
        self.card.copy_(self.deal(self.elapsed, ~reciting))
        return reward, self.elapsed >= 2 * self.num_cards - 1, torch.zeros_like(right)

    def observe(self) -> tuple[Tensor, Tensor]:
        return (self.elapsed < self.num_cards - 1).long(), self.card.masked_fill(self.elapsed >= self.num_cards, 0)

    def scene(self, i: int, hidden: bool) -> list[Block]:
        n, elapsed = self.num_cards, int(self.elapsed[i])
        mode, card = (int(x[i]) for x in self.observe())
        recited = max(0, elapsed - n + 1)
        words = f"watch: card {elapsed + 1} of {n}" if mode else f"recite: {min(recited, n)} of {n} done"
        blocks: list[Block] = [Caption(words), Cards([suit(card) if elapsed < n else Card("")])]
        if hidden:
            cards = [suit(c, lit=not mode and p == n - 1 - recited, faint=not mode and p > n - 1 - recited)
                     for p, c in enumerate(self.deck[i, :elapsed + 1].tolist())]
            blocks += [Caption("shown so far:" if mode else "the right answer is marked:"), Cards(cards + [Card("")] * (n - len(cards)))]
        return blocks
