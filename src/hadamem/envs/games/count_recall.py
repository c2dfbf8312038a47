"""CountRecall (POPGym): say how many cards of the class asked for have been shown so far."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from torch import Tensor

from ..base import assign
from ..render.blocks import WHITE, Block, Caption, Cards, Grid, Square
from .cards import CLASSES, FACES, CardEnv, checked_deck, swap

LEVELS = {"Easy": dict(num_decks=1, kind="colors"), "Medium": dict(num_decks=2, kind="suits"), "Hard": dict(num_decks=4, kind="ranks")}


class CountRecall(CardEnv):
    """Each step shows the next card of a deck and asks about a class, which is drawn from a second deck: (shown, asked).

    The right answer is how many cards of that class have been shown, this one included. Each answer pays ±1 / (cards - 1). The episode
    ends with the last card. kind: the classes, "colors", "suits" or "ranks".
    """

    layout = ("deck", "queries")

    fixed_length, truncates = True, False

    def __init__(self, num_envs: int = 1, *, num_decks: int = 1, kind: str = "colors", **options: Any):
        super().__init__(num_envs, num_decks, kind, **options)
        n = CLASSES[kind]
        self.single_observation_space = MultiDiscrete(np.array([n, n]))
        self.single_action_space = Discrete(self.num_cards // n + 1)
        self.episode_steps = self.num_cards - 1
        self.queries = self.register("queries", self.deck.clone())     # [N, cards]: the second deck
        self.query = self.zeros("query")                               # the class asked for
        self.counts = self.zeros("counts", n)                          # cards shown, by class

    def start(self, mask: Tensor | None) -> None:
        super().start(mask)
        assign(self.queries, mask, self.ordered)
        assign(self.query, mask, self._ask(mask))
        assign(self.counts, mask, torch.zeros_like(self.counts).scatter_(1, self.card[:, None], 1))

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        right = self.counts.gather(1, self.query[:, None])[:, 0] == action
        scale = 1 / (self.num_cards - 1)
        self.card.copy_(self.deal(self.elapsed))
        self.query.copy_(self._ask())
        self.counts.scatter_add_(1, self.card[:, None], torch.ones_like(self.counts[:, :1]))
        return torch.where(right, scale, -scale), self.elapsed >= self.num_cards - 1, torch.zeros_like(right)

    def observe(self) -> Tensor:
        return torch.stack((self.card, self.query), 1)

    def inject(self, layout: dict[str, Any]) -> None:
        """Both decks [N, cards], as classes in the order they are dealt."""
        if set(layout) != set(self.layout):
            raise ValueError(f"layout must hold both 'deck' and 'queries', got {sorted(layout)}")
        super().inject(layout)
        queries = torch.as_tensor(layout["queries"], device=self.device)
        self.queries.copy_(checked_deck("queries", queries, self.queries))
        self.query.copy_(self.queries[:, 0])
        self.counts.zero_()
        self.counts.scatter_(1, self.card[:, None], 1)

    def _ask(self, mask: Tensor | None = None) -> Tensor:
        fixed = self.stacked if mask is None else self.stacked | ~mask
        return swap(self.queries, self.elapsed.clamp(max=self.num_cards - 1), self.counter(1), fixed)[:, 0].long()

    def scene(self, i: int, hidden: bool) -> list[Block]:
        kinds = self.counts.shape[1]
        face = FACES[kinds]
        cards = Cards([face(self.card[i]), face(self.query[i], lit=True)])
        blocks: list[Block] = [self.count_caption(i), Caption("shown, and how many so far of:"), cards]
        if hidden:
            blocks.append(Caption("the right answers are, by class:"))
            counts = self.counts[i].tolist()
            blocks.append(Grid([[Square(face(c).face(False), WHITE, face(c).ink, lit=c == int(self.query[i])) for c in range(kinds)],
                                [Square(str(n), WHITE) for n in counts]], wide=4))
        return blocks
