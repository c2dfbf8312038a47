"""RepeatPrevious (POPGym): say the suit of the card shown k - 1 cards before the current one."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from ..checks import positive
from ..render.blocks import Block, Caption, Card, Cards
from .cards import SUIT_KEYS, CardEnv, suit

LEVELS = {"Easy": dict(num_decks=1, k=4), "Medium": dict(num_decks=2, k=32), "Hard": dict(num_decks=3, k=64)}


class RepeatPrevious(CardEnv):
    """Cards are shown one by one; the right answer is the suit of the k-th latest (k = 1: the card shown now).

    Answers before k cards were shown do not count. Each other answer pays ±1 / (cards - k). The episode ends with the last card.
    """

    keys = SUIT_KEYS
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
        shown = self.elapsed                                        # cards shown before this step
        right = self.dealt(shown - self.k) == action
        scale = 1 / (self.num_cards - self.k)
        reward = torch.where(right, scale, -scale).masked_fill_(shown < self.k, 0.0)
        self.card.copy_(self.deal(shown))
        return reward, shown >= self.num_cards - 1, torch.zeros_like(right)

    def observe(self) -> Tensor:
        return self.card.clone()

    def scene(self, i: int, hidden: bool) -> list[Block]:
        blocks: list[Block] = [self.count_caption(i), Cards([suit(self.card[i])])]
        if hidden:
            shown = min(int(self.elapsed[i]) + 1, self.num_cards)
            latest = [suit(card) for card in self.deck[i, max(0, shown - self.k):shown].tolist()]
            if shown >= self.k:
                latest[0] = latest[0]._replace(lit=True)
            blocks += [Caption(f"k = {self.k}" + (": the right answer is marked" if shown >= self.k else ": too early for an answer")),
                       Cards(latest + [Card("")] * (self.k - shown), columns=16)]
        return blocks
