"""HigherLower (POPGym): guess whether the next card is higher or lower than the current one."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from ..render.blocks import WHITE, Block, Caption, Cards, Grid, Square
from .cards import RANKS, CardEnv, rank

LEVELS = {"Easy": dict(num_decks=1), "Medium": dict(num_decks=2), "Hard": dict(num_decks=3)}


class HigherLower(CardEnv):
    """Shows the rank of a card (0 is the ace). Action 0 bets that the next rank is higher, 1 that it is lower, for ±1 / cards.

    An equal rank pays 0. The episode ends with the last card.
    """

    keys: ClassVar = {"h": (0, "higher"), "l": (1, "lower")}
    fixed_length, truncates = True, False

    def __init__(self, num_envs: int = 1, *, num_decks: int = 1, **options: Any):
        super().__init__(num_envs, num_decks, "ranks", **options)
        self.single_observation_space = Discrete(13)
        self.single_action_space = Discrete(2)
        self.episode_steps = self.num_cards - 1

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        card = self.deal(self.elapsed)
        right = (card > self.card) == (action == 0)
        scale = 1 / self.num_cards
        reward = torch.where(right, scale, -scale).masked_fill_(card == self.card, 0.0)
        self.card.copy_(card)
        return reward, self.elapsed >= self.num_cards - 1, torch.zeros_like(right)

    def observe(self) -> Tensor:
        return self.card.clone()

    def scene(self, i: int, hidden: bool) -> list[Block]:
        blocks: list[Block] = [self.count_caption(i), Cards([rank(self.card[i])]), Caption("higher or lower? (aces are lowest)")]
        if hidden:
            dealt = self.deck[i, :int(self.elapsed[i]) + 1].tolist()
            left = [4 * self.num_decks - dealt.count(r) for r in range(13)]
            blocks += [Caption("left in the deck:"),
                       Grid([[Square(r, WHITE) for r in RANKS], [Square(str(n), WHITE) for n in left]], wide=4)]
        return blocks
