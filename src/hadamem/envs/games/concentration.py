"""Concentration (POPGym): cards lie face down; turn two at a time and find all pairs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from torch import Tensor

from ..base import EPISODE, BatchedEnv, assign
from ..checks import positive
from ..render.blocks import Block, Caption, Card, Cards
from .cards import CARDS, CLASSES, FACES, checked_deck, classes, swap

LEVELS = {"Easy": dict(num_decks=1, kind="colors"), "Medium": dict(num_decks=2, kind="colors"), "Hard": dict(num_decks=1, kind="ranks")}


class Concentration(BatchedEnv):
    """An action turns the card at that place. Two turns in a row make a try.

    Two different cards of one class (`kind`: "colors" or "ranks") stay face up, for 2 / cards. Any other second card costs 2 / length, and
    what was turned is turned down again. A card that is face up already costs 1 / length as the first of a try, and ends the try.
    The observation holds the class at each place right after the turn, before the try is judged; face-down cards have the class after the
    last. Terminates when all cards are face up, is truncated after `length` = `episode_steps` steps.

    The next episode's deck is shuffled while this one is played, one swap per step: an episode has at least as many steps as cards.
    """

    truncates_early = False
    layout = ("deck",)

    def __init__(self, num_envs: int = 1, *, num_decks: int = 1, kind: str = "ranks", **options: Any):
        super().__init__(num_envs, **options)
        if kind not in ("colors", "ranks"):
            raise ValueError(f"kind must be 'colors' or 'ranks' (13 cards of each suit leave one without a partner), got {kind!r}")
        self.num_decks = positive("num_decks", num_decks)
        n = self.num_cards = CARDS * self.num_decks
        self.face_down = CLASSES[kind]
        self.single_observation_space = MultiDiscrete(np.full(n, self.face_down + 1), dtype=np.uint8)
        self.single_action_space = Discrete(n)
        self.episode_steps = math.ceil(2 * n - n / (2 * n - 1))
        self.ordered = classes(self.num_decks, kind).to(self.device)
        self.deck = self.register("deck", self.ordered.repeat(self.num_envs, 1))       # [N, cards]: the class at each place
        self.spare = self.register("spare", self.deck.clone())                         # the next episode's, partly shuffled
        self.up = self.zeros("up", n + 1, dtype=torch.bool)                            # pairs found; the last column is a dummy
        self.shown = self.zeros("shown", 2)                                            # places turned in this try; n: none
        self.first = self.zeros("first")                                               # place of the first card of a try; n: none
        self.found = self.zeros("found")                                               # cards that stay face up
        self.swapped = self.zeros("swapped")                                           # swaps of the spare deck done so far

    def start(self, mask: Tensor | None) -> None:
        if self.resetting:                      # the spare deck is not ready: shuffle it now
            assign(self.spare, mask, self.ordered)
            for place in range(self.num_cards - 1):
                self._shuffle(torch.full_like(self.first, place), self.key, None if mask is None else ~mask)
        assign(self.deck, mask, self.spare)
        assign(self.spare, mask, self.ordered)
        assign(self.up, mask, False)
        assign(self.shown, mask, self.num_cards)
        assign(self.first, mask, self.num_cards)
        assign(self.found, mask, 0)
        assign(self.swapped, mask, 0)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n, length = self.num_cards, self.episode_steps or 0
        second = self.first < n
        wasted = self.up.gather(1, action[:, None])[:, 0]
        card = self.deck.gather(1, torch.stack((action, self.first.clamp(max=n - 1)), 1))     # [N, 2]
        pair = second & ~wasted & (card[:, 0] == card[:, 1]) & (action != self.first)
        reward = torch.where(second, -2 / length, torch.where(wasted, -1 / length, 0.0)).masked_fill_(pair, 2 / n)
        self.shown[:, 0] = action
        self.shown[:, 1] = self.first
        self.up.scatter_(1, torch.where(pair[:, None], self.shown, n), True)
        self.found.add_(2 * pair)
        self.first.copy_(torch.where(second | wasted, n, action))
        steps = n if self.max_episode_steps is None else min(self.max_episode_steps, n)
        for _ in range(-(-(n - 1) // steps)):
            self._shuffle(self.swapped, self.key + EPISODE)
            self.swapped.add_(1)
        return reward, self.found == n, self.elapsed >= length

    def observe(self) -> Tensor:
        visible = self.up.scatter(1, self.shown, True)[:, :-1]
        return torch.where(visible, self.deck, self.face_down)

    def inject(self, layout: dict[str, Any]) -> None:
        deck = torch.as_tensor(layout["deck"], device=self.device)
        self.deck.copy_(checked_deck("deck", deck, self.deck))

    def _shuffle(self, place: Tensor, key: Tensor, fixed: Tensor | None = None) -> None:
        """Swap number `place` [N] of the spare deck, for the episode with `key`."""
        swap(self.spare, place.clamp(max=self.num_cards - 1), key + place, fixed)

    def scene(self, i: int, hidden: bool) -> list[Block]:
        face, down = FACES[self.face_down], self.face_down
        seen, deck, turned = self.observe()[i].tolist(), self.deck[i].tolist(), self.shown[i].tolist()
        cards = [face(s, lit=p in turned) if s != down else face(d, faint=True) if hidden else Card("")
                 for p, (s, d) in enumerate(zip(seen, deck, strict=True))]
        pairs = f"{int(self.found[i]) // 2} of {self.num_cards // 2} pairs found"
        return [Caption(f"step {int(self.elapsed[i])} of {self.episode_steps}: {pairs}"), Cards(cards)]
