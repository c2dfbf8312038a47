"""Games with three phases in different rooms: what Visual Match and Key-to-Door share.

The explore, distractor and reward phases last a fixed number of frames, with one action each. The last action of a phase is followed by
the first frame of the next phase, so a phase's own last frame is never seen; the reward of that action still counts. In the distractor
phase there are apples to pick. The player sees the 5 x 5 cells around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from ... import random
from ..base import LONGEST, BatchedEnv, assign
from ..checks import positive
from ..render.blocks import Block, Colour
from . import rooms_scene
from .room_tables import APPLE, APPLE_CELLS, COLUMNS, NO_APPLE, ROWS, VIEW, Cell, Rules, Situation, Tables, subsets

NEVER = torch.iinfo(torch.int32).max


class Rooms(BatchedEnv):
    """A game of three phases. Observation: 75 uint8, the picture [3, 5, 5] (RGB, rows, columns) flattened.

    Actions: north, south, west, east; a move into something impassable or off the board does nothing.
    explore, distractor, reward: frames of each phase; an episode terminates after their sum.
    final_reward: paid for reaching the game's aim in the reward phase, which is also success.
    num_apples: how many of the 22 possible cells hold an apple; which ones is drawn for each episode.
    apple_reward: for stepping on an apple. A pair (low, high): with fix_apple_reward one of the two for all apples of an episode, otherwise
    a uniform draw between them for each apple.
    respawn_every: an apple taken in frame f is back in frame f + respawn_every + 1 (a player who is still there takes it one frame later).
    image: observations of shape [3, 5, 5].

    State: `situation` [N] encodes everything but apples and time as a number, see `Tables`; `ripe` [N, 23] is the value of `elapsed` from
    which each apple is visible (the last entry stands for no apple).
    """

    keys: ClassVar = {"w": (0, "up"), "s": (1, "down"), "a": (2, "left"), "d": (3, "right")}
    image_shape = (3, VIEW, VIEW)
    episode_steps: int

    fixed_length, truncates = True, False

    def __init__(self, num_envs: int, tables: Tables, *, explore: int, distractor: int, reward: int, final_reward: float,
                 apple_reward: float | Sequence[float] = 1.0, fix_apple_reward: bool = True, num_apples: int = 10, respawn_every: int = 20,
                 image: bool = False, **options: Any):
        super().__init__(num_envs, **options)
        self.frames = (positive("explore", explore), positive("distractor", distractor), positive("reward", reward))
        self.episode_steps = sum(self.frames)
        if self.episode_steps > LONGEST:
            raise ValueError(f"explore + distractor + reward must be at most {LONGEST}, got {self.episode_steps}; shorten a phase")
        self.final_reward = _number("final_reward", final_reward)
        if self.final_reward <= 0:
            raise ValueError(f"final_reward must be positive, as it marks success, got {final_reward}")
        self.num_apples = _whole("num_apples", num_apples, len(APPLE_CELLS))
        self.respawn_every = _whole("respawn_every", respawn_every, LONGEST)
        self.apple_reward = _apple_reward(apple_reward)
        self.fix_apple_reward = fix_apple_reward
        self.image = image
        self.single_observation_space = Box(0, 255, self.image_shape if image else (math.prod(self.image_shape),), np.uint8)
        self.single_action_space = Discrete(4)

        self.situation = self.zeros("situation")
        self.ripe = self.register("ripe", torch.full((self.num_envs, NO_APPLE + 1), NEVER, dtype=torch.int32))
        if isinstance(self.apple_reward, tuple) and fix_apple_reward:
            self.worth = self.zeros("worth", dtype=torch.float32)                   # reward of an apple in this episode
        self._situations = tables.situations
        self._tables(tables)

    def _tables(self, tables: Tables) -> None:
        """Put the tables on the device. Situation s with colour order o has the number o * self.situations + s."""
        orders, self.situations, pixels = tables.image.shape

        def on_device(array: np.ndarray, dtype: torch.dtype) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(array)).to(self.device, dtype)

        first = np.arange(orders)[None, :, None, None] * self.situations
        self._following = on_device((tables.following[:, None] + first).ravel(), torch.int64)          # [3 * situations * 4]
        self._pays = on_device(np.tile(tables.paid * self.final_reward, (orders, 1)).ravel(), torch.float32)
        self._apple = on_device(np.tile(tables.apple, (orders, 1)).ravel(), torch.int64)
        self._nearby = on_device(np.tile(tables.nearby, (orders, 1)), torch.int64)                     # [situations, 25]
        self._image = on_device(tables.image.reshape(-1, pixels), torch.uint8)                         # [situations, 75]
        self._won = on_device(np.tile(tables.won, orders), torch.bool)
        self._phase = on_device(np.tile(tables.of("phase"), orders), torch.int64)
        self._player = on_device(np.tile(tables.of("player"), (orders, 1)), torch.int64)
        explore, distractor, _ = self.frames
        turns = torch.zeros(self.episode_steps + 1, dtype=torch.int64)
        turns[explore], turns[explore + distractor] = 1, 2
        self._turns = (turns * (self._following.numel() // 3)).to(self.device)                         # offset into _following, by time
        self._opens = torch.tensor([0, explore, explore + distractor], device=self.device)
        self._subsets = on_device(_subsets(self.num_apples), torch.int64)
        self._bits = torch.arange(NO_APPLE, device=self.device)
        self._highs = torch.tensor([self.openings, len(self._subsets), 2], device=self.device)
        self._slots = torch.arange(3, device=self.device)
        self._apple_reward = torch.tensor(self.apple_reward, device=self.device)                       # [] or [2]
        self._apple_colour = torch.tensor(APPLE, dtype=torch.uint8, device=self.device)[:, None]
        self._ripe_or_not = torch.tensor([NEVER, explore], dtype=torch.int32, device=self.device)

    # --- what a game fills in --------------------------------------------------------------------------------------

    rules: Rules
    openings: int              # number of situations that an episode may start with

    def opening(self, drawn: Tensor) -> Tensor:
        """The first situation [N] of an episode, from a number `drawn` [N] in 0 .. openings - 1."""
        return drawn

    def note(self, i: int) -> str:
        """A line for scenes: what env i must remember, or has achieved."""
        raise NotImplementedError

    def looks(self, i: int) -> dict[str, tuple[str, Colour]]:
        """Letter and colour of marks that look different in this game."""
        return {}

    # --- the task --------------------------------------------------------------------------------------------------

    def start(self, mask: Tensor | None) -> None:
        drawn = random.integers(self.key[:, None] + self._slots, self._highs)                          # [N, 3]
        assign(self.situation, mask, self.opening(drawn[:, 0]))
        assign(self.ripe[:, :NO_APPLE], mask, self._grow(self._subsets[drawn[:, 1]]))
        if isinstance(self.apple_reward, tuple) and self.fix_apple_reward:
            assign(self.worth, mask, self._apple_reward[drawn[:, 2]])

    def _grow(self, chosen: Tensor) -> Tensor:
        """`ripe` of the apple cells [N, 22]. chosen [N]: bit j is set where cell j holds an apple."""
        return self._ripe_or_not[(chosen[:, None] >> self._bits) & 1]

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        now = self.elapsed.clamp(max=self.episode_steps)
        frame = now[:, None].int()
        move = torch.add(action, self.situation, alpha=4)
        place = self._apple[move][:, None]
        ripe = self.ripe.gather(1, place)
        taken = ripe < frame                                    # it was visible in the previous frame
        self.ripe.scatter_(1, place, torch.where(taken, frame + (self.respawn_every + 1), ripe))
        reward = torch.where(taken[:, 0], self._worth(), self._pays[move])
        self.situation.copy_(self._following[move + self._turns[now]])
        return reward, self.elapsed >= self.episode_steps, torch.zeros_like(taken[:, 0])

    def _worth(self) -> Tensor:
        """The reward of an apple at this step: [] or [N]."""
        if not isinstance(self.apple_reward, tuple):
            return self._apple_reward
        if self.fix_apple_reward:
            return self.worth
        low, high = self.apple_reward
        return random.uniform(self.counter()) * (high - low) + low

    def observe(self) -> Tensor:
        image = self._image.index_select(0, self.situation).view(self.num_envs, 3, VIEW * VIEW)
        nearby = self._nearby.index_select(0, self.situation)                                          # [N, 25]
        shown = self.ripe.gather(1, nearby) <= self.elapsed[:, None].int()
        image = torch.where(shown[:, None], self._apple_colour, image)
        return image.view(self.num_envs, *self.single_observation_space.shape)      # type: ignore[misc]

    def success(self) -> Tensor:
        return self._won[self.situation]

    # --- for scenes and tests --------------------------------------------------------------------------------------

    def scene(self, i: int, hidden: bool) -> list[Block]:
        return rooms_scene.whole_room(self, i) if hidden else rooms_scene.agent_view(self, i)

    def situation_of(self, i: int) -> Situation:
        """The situation of env i, from which its board is drawn."""
        return self._situations[int(self.situation[i]) % self.situations]

    @property
    def phase(self) -> Tensor:
        """[N] 0 explore, 1 distractor, 2 reward."""
        return self._phase[self.situation]

    @property
    def frame(self) -> Tensor:
        """[N] frames of the current phase before this one."""
        return self.elapsed - self._opens[self.phase]

    @property
    def player(self) -> Tensor:
        """[N, 2] row and column in the current room."""
        return self._player[self.situation]

    @property
    def apples(self) -> Tensor:
        """[N, 22] bool: which apple cells (row by row) hold an apple now; none before the distractor phase."""
        return self.ripe[:, :NO_APPLE] <= self.elapsed[:, None]

    # --- layouts ---------------------------------------------------------------------------------------------------

    def inject_apples(self, layout: Mapping[str, Any]) -> None:
        """Put apples at layout["apple_cells"] [N, num_apples, 2], if given, in envs whose episode has just started."""
        if "apple_cells" in layout:
            places = self.places(layout, "apple_cells", APPLE_CELLS, self.num_apples).sort(1).values
            if bool((places.diff(dim=1) == 0).any()):
                raise ValueError("layout['apple_cells'] names a cell twice; give each env num_apples different cells")
            assign(self.ripe[:, :NO_APPLE], self.started, self._grow((1 << places).sum(1)))

    def places(self, layout: Mapping[str, Any], name: str, known: Sequence[Cell], *shape: int) -> Tensor:
        """Cells layout[name] [N, *shape, 2] -> their indices [N, *shape] in the list `known`."""
        given = self.given(layout, name, *shape, 2)
        table = torch.full((ROWS, COLUMNS), -1, device=self.device)
        for i, (row, column) in enumerate(known):
            table[row, column] = i
        inside = (given >= 0).all(-1) & (given[..., 0] < ROWS) & (given[..., 1] < COLUMNS)
        inner = given.where(inside[..., None], torch.zeros_like(given))
        found = torch.where(inside, table[inner[..., 0], inner[..., 1]], -1)
        if bool((found < 0).any()):
            raise ValueError(f"layout[{name!r}] names {given[found < 0][0].tolist()}; possible are {', '.join(map(str, known))}")
        return found

    def given(self, layout: Mapping[str, Any], name: str, *shape: int) -> Tensor:
        """layout[name] as int64 [N, *shape] on the device."""
        value = torch.as_tensor(np.asarray(layout[name]) if not isinstance(layout[name], Tensor) else layout[name])
        if value.shape != (self.num_envs, *shape):
            raise ValueError(f"layout[{name!r}] must be {[self.num_envs, *shape]}, got {list(value.shape)}")
        return value.to(self.device, torch.int64)


@lru_cache(maxsize=4)
def _subsets(size: int) -> np.ndarray:
    return subsets(size)


def settings(presets: Mapping[str, Mapping[str, Any]], preset: str | None, **given: Any) -> dict[str, Any]:
    """The options of a preset (None: the first), overridden by those of `given` that are not None."""
    name = next(iter(presets)) if preset is None else preset
    if name not in presets:
        raise ValueError(f"unknown preset {preset!r}; choose from {', '.join(presets)}")
    return {**presets[name], **{key: value for key, value in given.items() if value is not None}}


def _whole(name: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if not 0 <= value <= most:
        raise ValueError(f"{name} must be in 0 .. {most}, got {value}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def _apple_reward(value: Any) -> float | tuple[float, float]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 2:
            raise ValueError(f"apple_reward must be a number or a pair (low, high), got {len(value)} values")
        return _number("apple_reward[0]", value[0]), _number("apple_reward[1]", value[1])
    return _number("apple_reward", value)
