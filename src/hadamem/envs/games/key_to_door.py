"""Key-to-Door (Memory-RL): take a key, pick apples for a while, then open the door."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .room_tables import DISTRACTOR, EXPLORE, REWARD, Board, Rules, Situation, Tables, cells, painted, tabulate, without
from .rooms import Rooms, settings

PRESETS = {
    "mrl": dict(explore=15, reward=10, final_reward=5.0),            # Memory-RL
    "release": dict(explore=10, reward=3, final_reward=10.0),        # code published with the SHM paper
}

CHAMBERS = (
    "  #######  ",
    "  #kkkkk#  ",
    "  #kkkkk#  ",
    "  ##   ##  ",
    "  #+++++#  ",
    "  #+++++#  ",
    "  #######  ",
)
PORCH = (
    "           ",
    "   ##d##   ",
    "   #   #   ",
    "   # + #   ",
    "   #   #   ",
    "   #####   ",
    "           ",
)
INDICATOR = (0, 5)
KEYS, PLAYERS = cells(CHAMBERS, "k"), cells(CHAMBERS, "+")
DOOR = cells(PORCH, "d")[0]
LOCKED, UNLOCKED, OPENED = "locked", "unlocked", "opened"     # the door
TAKEN, HELD = "taken", "held"                                 # the key: in this frame, or earlier


class KeyToDoorRules(Rules):
    """memo: the key's cell, TAKEN or HELD in the explore phase; whether the key was taken in the next; state of the door in the last."""

    starts = tuple(Situation(EXPLORE, player, key) for key in KEYS for player in PLAYERS)
    reward_start = cells(PORCH, "+")[0]
    above = "d"

    def board(self, now: Situation) -> Board:
        if now.phase == REWARD:
            return without(PORCH, "+")
        rooms = without(CHAMBERS, "k+")
        if now.memo == TAKEN:
            return painted(rooms, INDICATOR, "i")
        return rooms if now.memo == HELD else painted(rooms, now.memo, "k")

    def blocking(self, now: Situation) -> str:
        return "#d" if now.memo == LOCKED else "#i"

    def touch(self, now: Situation) -> tuple[Any, bool]:
        if now.phase == EXPLORE:
            if now.memo == TAKEN:
                return HELD, False
            return (TAKEN, False) if now.player == now.memo else (now.memo, False)
        opens = now.memo == UNLOCKED and now.player == DOOR
        return (OPENED, True) if opens else (now.memo, False)

    def carry(self, now: Situation) -> Any:
        if now.phase == EXPLORE:
            return now.memo in (TAKEN, HELD)
        return UNLOCKED if now.memo else LOCKED

    def won(self, now: Situation) -> bool:
        return now.memo == OPENED

    @staticmethod
    def has_key(now: Situation) -> bool:
        return now.memo in (TAKEN, HELD, UNLOCKED) or (now.phase == DISTRACTOR and bool(now.memo))


@lru_cache(maxsize=1)
def _tables() -> Tables:
    return tabulate(KeyToDoorRules(), [(0, 1, 2)])


class KeyToDoor(Rooms):
    """Take the key in the explore phase; in the reward phase, stepping on the door with the key pays `final_reward`, once.

    The key and the player start at random cells of two chambers. A wall cell turns white in the frame in which the key is taken. Without
    the key the door blocks the way; once open it can be walked through.
    preset: "mrl" (the default: 15 explore and 10 reward frames, final reward 5) or "release" (10, 3, 10); `explore`, `reward` and
    `final_reward` override it. The other options are those of `Rooms` and `BatchedEnv`.
    Layout: key_cell [N, 2], player [N, 2] at the start, apple_cells [N, num_apples, 2].
    """

    rules = KeyToDoorRules()
    layout = ("key_cell", "player", "apple_cells")
    openings = len(KeyToDoorRules.starts)

    def __init__(self, num_envs: int = 1, *, explore: int | None = None, distractor: int = 250, reward: int | None = None,
                 final_reward: float | None = None, preset: str | None = None, **options: Any):
        chosen = settings(PRESETS, preset, explore=explore, reward=reward, final_reward=final_reward)
        super().__init__(num_envs, _tables(), distractor=distractor, **chosen, **options)
        held = np.array([KeyToDoorRules.has_key(s) for s in _tables().situations])
        self._held = torch.as_tensor(held).to(self.device)

    @property
    def has_key(self) -> Tensor:
        """[N] bool: the player holds the key (until the door is open)."""
        return self._held[self.situation]

    def note(self, i: int) -> str:
        return "has the key" if bool(self.has_key[i]) else "the door is open" if bool(self.success()[i]) else "has no key"

    def inject(self, layout: dict[str, Any]) -> None:
        key, player = self.situation // len(PLAYERS), self.situation % len(PLAYERS)      # valid where an episode has just started
        if "key_cell" in layout:
            key = self.places(layout, "key_cell", KEYS)
        if "player" in layout:
            player = self.places(layout, "player", PLAYERS)
        self.situation.copy_(torch.where(self.started, key * len(PLAYERS) + player, self.situation))
        self.inject_apples(layout)
