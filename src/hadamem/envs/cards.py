"""Decks of cards that are shuffled while they are dealt: one swap of a Fisher-Yates shuffle for each card.

Card i of a deck has rank (i // 4) % 13, suit i % 4 (spades, diamonds, clubs, hearts) and colour i % 2 (black, red).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import random
from .base import BatchedEnv, assign, positive

CARDS = 52
CLASSES = {"colors": 2, "suits": 4, "ranks": 13}


def classes(num_decks: int, kind: str) -> Tensor:
    """The colour, suit or rank of every card of `num_decks` decks, in order [52 * num_decks] uint8."""
    i = torch.arange(CARDS * num_decks)
    return {"colors": i % 2, "suits": i % 4, "ranks": (i // 4) % 13}[kind].to(torch.uint8)


def swap(deck: Tensor, place: Tensor, counter: Tensor, fixed: Tensor | None = None) -> Tensor:
    """One swap of a Fisher-Yates shuffle of deck [N, cards], in place: `place` [N] gets one of the cards from it on, which is returned
    [N, 1]. Nothing moves where `fixed` [N] is true.
    """
    if random.fused(counter):
        from . import cards_triton

        return cards_triton.swap(deck, place, counter, fixed)
    other = place + random.integers(counter, deck.shape[1] - place)
    if fixed is not None:
        other = torch.where(fixed, place, other)
    other, place = other[:, None], place[:, None]
    card = deck.gather(1, other)
    deck.scatter_(1, other, deck.gather(1, place))
    deck.scatter_(1, place, card)
    return card


def checked_deck(name: str, given: Tensor, deck: Tensor) -> Tensor:
    """A deck of a layout [N, cards], if every env has the cards it should have."""
    if given.shape != deck.shape or not torch.equal(given.sort(1).values.to(deck.dtype), deck.sort(1).values):
        raise ValueError(f"layout[{name!r}] must be {list(deck.shape)}, an order of the deck's cards for each env; got {list(given.shape)}"
                         + ("" if given.shape != deck.shape else " with other cards"))
    return given


class CardEnv(BatchedEnv):
    """A task that deals one card of a shuffled deck after the other. `deck[:, :dealt]` are those on the table, as classes of `kind`."""

    layout: tuple[str, ...] = ("deck",)

    def __init__(self, num_envs: int, num_decks: int, kind: str, **options: Any):
        super().__init__(num_envs, **options)
        if kind not in CLASSES:
            raise ValueError(f"unknown kind of card {kind!r}; choose from {', '.join(CLASSES)}")
        self.num_decks = positive("num_decks", num_decks)
        self.num_cards = CARDS * self.num_decks
        self.ordered = classes(self.num_decks, kind).to(self.device)
        self.deck = self.register("deck", self.ordered.repeat(self.num_envs, 1))                       # [N, cards]
        self.stacked = self.zeros("stacked", dtype=torch.bool)                                         # deal `deck` as it lies
        self.card = self.zeros("card")                                                                 # the one on show

    def start(self, mask: Tensor | None) -> None:
        """Take a new deck and show its first card."""
        assign(self.deck, mask, self.ordered)
        assign(self.stacked, mask, False)
        assign(self.card, mask, self.deal(self.elapsed, mask))

    def deal(self, place: Tensor, mask: Tensor | None = None) -> Tensor:
        """Card number `place` [N] (from 0; those before it were dealt already): its class [N] int64. Nothing moves outside `mask`."""
        fixed = self.stacked if mask is None else self.stacked | ~mask
        return swap(self.deck, place.clamp(max=self.num_cards - 1), self.counter(), fixed)[:, 0].long()

    def dealt(self, place: Tensor) -> Tensor:
        """The class of card `place` [N], dealt before. [N] int64"""
        return self.deck.gather(1, place.clamp(0, self.num_cards - 1)[:, None])[:, 0].long()

    def inject(self, layout: dict[str, Any]) -> None:
        deck = torch.as_tensor(layout["deck"], device=self.device)
        self.deck.copy_(checked_deck("deck", deck, self.deck))
        self.stacked.fill_(True)
        self.card.copy_(self.deck[:, 0])
