"""Visual Match, passive (Memory-RL): see a colour, pick apples for a while, then walk to the object of that colour."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ... import random
from ..base import assign
from ..render.blocks import Colour
from .room_tables import CODE, DISTRACTOR, EXPLORE, ORDERS, REWARD, Board, Rules, Situation, Tables, cells, painted, tabulate, without
from .rooms import Rooms, settings

PRESETS = {
    "mrl": dict(explore=15, reward=15, final_reward=5.0),            # Memory-RL
    "release": dict(explore=15, reward=10, final_reward=10.0),       # code published with the SHM paper
}
COLOURS = 0x636F6C6F7572                                             # stream key of the draw that gives the objects their colours

CELL = (
    "           ",
    "    ppp    ",
    "    p+p    ",
    "    ppp    ",
    "           ",
    "           ",
    "           ",
)
HALL = (
    "###########",
    "# b  c  e #",
    "#         #",
    "#         #",
    "####   ####",
    "   # + #   ",
    "   #####   ",
)
RING = cells(CELL, "p")
OBJECTS = [cells(HALL, mark)[0] for mark in "bce"]
UNTOUCHED, RIGHT, WRONG = range(3)


class VisualMatchRules(Rules):
    """memo: (place of the colour in the ring, target) in the explore phase, target in the next, (target, touched object) in the last."""

    starts = tuple(Situation(EXPLORE, cells(CELL, "+")[0], (ring, target)) for ring in range(len(RING)) for target in range(3))
    reward_start = cells(HALL, "+")[0]

    def board(self, now: Situation) -> Board:
        if now.phase == EXPLORE:
            ring, target = now.memo
            walls = [row.replace("p", "#").replace("+", " ") for row in CELL]
            return painted(walls, RING[ring], "bce"[target])
        return without(HALL, "+" if now.memo[1] == UNTOUCHED else "+bce")

    def blocking(self, now: Situation) -> str:
        return "#bce" if now.phase == EXPLORE else "#"

    def touch(self, now: Situation) -> tuple[Any, bool]:
        if now.phase == EXPLORE:
            return now.memo, False
        target, touched = now.memo
        if touched != UNTOUCHED or now.player not in OBJECTS:
            return now.memo, False
        right = now.player == OBJECTS[target]
        return (target, RIGHT if right else WRONG), right

    def carry(self, now: Situation) -> Any:
        return now.memo[1] if now.phase == EXPLORE else (now.memo, UNTOUCHED)

    def won(self, now: Situation) -> bool:
        return now.phase == REWARD and now.memo[1] == RIGHT

    @staticmethod
    def target(now: Situation) -> int:
        return now.memo if now.phase == DISTRACTOR else now.memo[1 if now.phase == EXPLORE else 0]


@lru_cache(maxsize=1)
def _tables() -> Tables:
    return tabulate(VisualMatchRules(), ORDERS)


class VisualMatch(Rooms):
    """In the explore phase the player, walled in, sees one coloured cell. In the reward phase there is an object of each colour.

    Stepping on the object of the colour seen pays `final_reward`, once. The first step on any object removes all three.
    preset: "mrl" (the default: 15 explore and 15 reward frames, final reward 5) or "release" (15, 10, 10); `explore`, `reward` and
    `final_reward` override it. The other options are those of `Rooms` and `BatchedEnv`.
    The objects' colours are drawn from the run's seed, once for all envs and episodes, so training and evaluation envs with the same seed
    agree. per_env: drawn separately for each env.
    Layout: target [N] (0, 1, 2 from the left), target_cell [N, 2] of the colour shown first, door_colours [N, 3, 3] RGB of the objects
    from the left (kept until the next seed), apple_cells [N, num_apples, 2].
    """

    rules = VisualMatchRules()
    layout = ("target", "target_cell", "door_colours", "apple_cells")
    openings = len(VisualMatchRules.starts)

    def __init__(self, num_envs: int = 1, *, explore: int | None = None, distractor: int = 250, reward: int | None = None,
                 final_reward: float | None = None, preset: str | None = None, per_env: bool = False, **options: Any):
        chosen = settings(PRESETS, preset, explore=explore, reward=reward, final_reward=final_reward)
        super().__init__(num_envs, _tables(), distractor=distractor, **chosen, **options)
        self.per_env = per_env
        self.order = self.zeros("order")                         # index into ORDERS: the objects' colours
        self._targets = torch.tensor([VisualMatchRules.target(s) for s in _tables().situations] * len(ORDERS), device=self.device)

    def prepare(self, seed: int) -> None:
        streams = random.stream(self.seeds, COLOURS)
        if self.per_env:
            streams = random.stream(streams, self.indices)
        self.order.copy_(random.integers(streams, len(ORDERS)))

    def opening(self, drawn: Tensor) -> Tensor:
        return self.order * self.situations + drawn

    @property
    def target(self) -> Tensor:
        """[N] which object pays: 0, 1, 2 from the left."""
        return self._targets[self.situation]

    def note(self, i: int) -> str:
        colour = ("red", "green", "blue")[ORDERS[int(self.order[i])][int(self.target[i])]]
        return f"the colour is {colour}" + (": found" if bool(self.success()[i]) else "")

    def looks(self, i: int) -> dict[str, tuple[str, Colour]]:
        return {mark: ("RGB"[code], CODE[code]) for mark, code in zip("bce", ORDERS[int(self.order[i])], strict=True)}

    def inject(self, layout: dict[str, Any]) -> None:
        drawn = self.situation - self.order * self.situations    # valid where an episode has just started
        ring, target = drawn // 3, drawn % 3
        if "target_cell" in layout:
            ring = self.places(layout, "target_cell", RING)
        if "target" in layout:
            target = self.given(layout, "target")
            if bool(((target < 0) | (target > 2)).any()):
                raise ValueError(f"layout['target'] must be 0, 1 or 2, got {target.tolist()}")
        if "door_colours" in layout:
            assign(self.order, self.started, self._order_of(self.given(layout, "door_colours", 3, 3)))
        self.situation.copy_(torch.where(self.started, self.opening(ring * 3 + target), self.situation))
        self.inject_apples(layout)

    def _order_of(self, colours: Tensor) -> Tensor:
        known = torch.tensor([[CODE[i] for i in order] for order in ORDERS], device=self.device)           # [6, 3, 3]
        same = (colours[:, None] == known).all(-1).all(-1)                                                 # [N, 6]
        if not bool(same.any(1).all()):
            wrong = colours[~same.any(1)][0].tolist()
            raise ValueError(f"layout['door_colours'] must be red, green and blue in some order, got {wrong}")
        return same.int().argmax(1)
