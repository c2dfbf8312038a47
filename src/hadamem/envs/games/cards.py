"""Decks of cards that are shuffled while they are dealt: one swap of a Fisher-Yates shuffle per card.

Card i of a deck has rank (i // 4) % 13, suit i % 4 (spades, diamonds, clubs, hearts) and colour i % 2 (black, red).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ... import random
from ..base import BatchedEnv, assign
from ..checks import positive
from ..render.blocks import BLACK, INK, RED, Caption, Card

CARDS = 52
CLASSES = {"colors": 2, "suits": 4, "ranks": 13}
SUITS = "♠♦♣♥"
RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
SUIT_KEYS: Mapping[str, tuple[int, str]] = {"s": (0, "spades"), "d": (1, "diamonds"), "c": (2, "clubs"), "h": (3, "hearts")}


def classes(num_decks: int, kind: str) -> Tensor:
    """The colour, suit or rank of every card of `num_decks` decks, in order [52 * num_decks] uint8."""
    i = torch.arange(CARDS * num_decks)
    return {"colors": i % 2, "suits": i % 4, "ranks": (i // 4) % 13}[kind].to(torch.uint8)


def swap(deck: Tensor, place: Tensor, counter: Tensor, fixed: Tensor | None = None) -> Tensor:
    """One swap of a Fisher-Yates shuffle of deck [N, cards], in place. Returns the card [N, 1] that ends up at `place` [N].

    That card is drawn from the ones at `place` and after it. Nothing moves where `fixed` [N] is true.
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
    """Check that a layout's deck [N, cards] holds the right cards for every env, and return it."""
    if given.shape != deck.shape or not torch.equal(given.sort(1).values.to(deck.dtype), deck.sort(1).values):
        raise ValueError(f"layout[{name!r}] must be {list(deck.shape)}, an order of the deck's cards for each env; got {list(given.shape)}"
                         + ("" if given.shape != deck.shape else " with other cards"))
    return given


class CardEnv(BatchedEnv):
    """A task that deals the cards of a shuffled deck one by one. `deck[:, :dealt]` are the cards dealt so far, as classes of `kind`."""

    layout: tuple[str, ...] = ("deck",)

    def __init__(self, num_envs: int, num_decks: int, kind: str, **options: Any):
        super().__init__(num_envs, **options)
        if kind not in CLASSES:
            raise ValueError(f"unknown kind of card {kind!r}; choose from {', '.join(CLASSES)}")
        self.num_decks = positive("num_decks", num_decks)
        self.num_cards = CARDS * self.num_decks
        self.ordered = classes(self.num_decks, kind).to(self.device)
        self.deck = self.register("deck", self.ordered.repeat(self.num_envs, 1))                       # [N, cards]
        self.stacked = self.zeros("stacked", dtype=torch.bool)                                         # deal `deck` in the order given
        self.card = self.zeros("card")                                                                 # the card shown now

    def start(self, mask: Tensor | None) -> None:
        """Take a new deck and show its first card."""
        assign(self.deck, mask, self.ordered)
        assign(self.stacked, mask, False)
        assign(self.card, mask, self.deal(self.elapsed, mask))

    def deal(self, place: Tensor, mask: Tensor | None = None) -> Tensor:
        """Deal card number `place` [N] (from 0; earlier ones are dealt already): its class [N] int64. Nothing moves outside `mask`."""
        fixed = self.stacked if mask is None else self.stacked | ~mask
        return swap(self.deck, place.clamp(max=self.num_cards - 1), self.counter(), fixed)[:, 0].long()

    def dealt(self, place: Tensor) -> Tensor:
        """The class [N] int64 of card `place` [N], which was dealt before."""
        return self.deck.gather(1, place.clamp(0, self.num_cards - 1)[:, None])[:, 0].long()

    def inject(self, layout: dict[str, Any]) -> None:
        deck = torch.as_tensor(layout["deck"], device=self.device)
        self.deck.copy_(checked_deck("deck", deck, self.deck))
        self.stacked.fill_(True)
        self.card.copy_(self.deck[:, 0])

    def count_caption(self, i: int) -> Caption:
        """How many cards env i has shown."""
        return Caption(f"card {min(int(self.elapsed[i]) + 1, self.num_cards)} of {self.num_cards}")


# --- how cards look ------------------------------------------------------------------------------------------------


def suit(number: Any, **how: Any) -> Card:
    return Card(SUITS[int(number)], RED if int(number) % 2 else BLACK, **how)


def rank(number: Any, **how: Any) -> Card:
    return Card(RANKS[int(number)], INK, **how)


def colour(number: Any, **how: Any) -> Card:
    return Card("●", RED if int(number) % 2 else BLACK, plain="R" if int(number) % 2 else "B", **how)


FACES = {2: colour, 4: suit, 13: rank}     # by the number of classes
