"""T-Maze, passive and active: a cue at one end of a corridor shows which way to turn at the other end."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from ... import random
from ..base import EPISODE, SLOTS, BatchedEnv, assign
from ..checks import positive
from ..render.blocks import Block, Caption, Grid, Square

LONGEST = EPISODE // SLOTS - 4


class TMaze(BatchedEnv):
    """A corridor from the cue, at x = 0, to the junction, with a cell above and one below the junction; one of the two is the goal.

    corridor: cells from the start to the junction. active: the start is one cell to the right of the cue, so that the player must go left
    to see it; otherwise the start is the cue's cell.
    Actions: 0 right, 1 up, 2 left, 3 down; a move into a wall does nothing.
    Observation: 2 float32. The first is 1 at the junction and in the two cells next to it, else 0. The second is +1 in the cell above, -1
    in the one below, and at the cue, on the first visit, +1 or -1 for a goal above or below; else 0. The cells of the corridor all look
    the same.
    Reward: the last action pays `goal_reward` in the goal's cell and 0 elsewhere. Every other action pays `penalty` where the player is
    behind the shortest path (x < action number, active: x < action number - 1), else 0; None: -1 / corridor.
    Terminates after as many actions as the shortest path past the cue needs (corridor + 1, active: corridor + 3), wherever the player
    is. Success: in the goal's cell at the end.
    Layout: goal [N], +1 above or -1 below.
    """

    keys: ClassVar = {"w": (1, "up"), "s": (3, "down"), "a": (2, "left"), "d": (0, "right")}
    layout = ("goal",)
    episode_steps: int

    fixed_length, truncates = True, False

    def __init__(self, num_envs: int = 1, *, corridor: int = 10, active: bool = False, goal_reward: float = 1.0,
                 penalty: float | None = None, **options: Any):
        super().__init__(num_envs, **options)
        self.corridor = positive("corridor", corridor)
        if self.corridor > LONGEST:
            raise ValueError(f"corridor must be at most {LONGEST}, got {corridor}")
        self.active = bool(active)
        self.goal_reward = goal_reward
        self.penalty = -1 / self.corridor if penalty is None else penalty
        for name, value in (("goal_reward", self.goal_reward), ("penalty", self.penalty)):
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value}")
        self.opening = int(self.active)                          # x of the start
        self.junction = self.opening + self.corridor
        self.episode_steps = self.corridor + 2 * self.opening + 1
        self.single_observation_space = Box(np.array([0, -1], np.float32), np.array([1, 1], np.float32))
        self.single_action_space = Discrete(4)
        self.x = self.zeros("x")
        self.y = self.zeros("y")                                 # 1 above the junction, -1 below it
        self.goal = self.zeros("goal")
        self.seen = self.zeros("seen", dtype=torch.bool)         # the cue was shown before
        self._right = torch.tensor([1, 0, -1, 0], device=self.device)
        self._up = torch.tensor([0, 1, 0, -1], device=self.device)

    def start(self, mask: Tensor | None) -> None:
        assign(self.x, mask, self.opening)
        assign(self.y, mask, 0)
        assign(self.seen, mask, False)
        assign(self.goal, mask, random.integers(self.counter(), 2) * 2 - 1)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        action = action.long()
        self.seen.logical_or_(self.x == 0)
        x = (self.x + self._right[action]).clamp_(0, self.junction)
        y = (self.y + self._up[action]).clamp_(-1, 1)
        inside, beside = self.x == self.junction, self.y == 0    # cells where one can move up and down, or left and right
        self.y.copy_(torch.where(inside, y, self.y))
        self.x.copy_(torch.where(beside, x, self.x))
        last = self.elapsed >= self.episode_steps
        lags = self.x < self.elapsed - self.opening
        reward = torch.where(last, self.success() * self.goal_reward, lags * self.penalty)
        return reward, last, torch.zeros_like(last)

    def observe(self) -> Tensor:
        cue = (self.x == 0) & ~self.seen
        return torch.stack([(self.x == self.junction).float(), torch.where(cue, self.goal, self.y).float()], dim=1)

    def success(self) -> Tensor:
        return self.y == self.goal

    def inject(self, layout: dict[str, Any]) -> None:
        goal = torch.as_tensor(layout["goal"], device=self.device)
        if goal.shape != (self.num_envs,) or not bool((goal.abs() == 1).all()):
            raise ValueError(f"layout['goal'] must be [{self.num_envs}] of +1 (above) and -1 (below), got {goal.tolist()}")
        assign(self.goal, self.started, goal.to(self.goal.dtype))

    def scene(self, i: int, hidden: bool) -> list[Block]:
        at, other = self.observe()[i].tolist()
        word = ("at the junction" if at and not other else "above the junction" if at and other > 0 else "below the junction" if at
                else f"the cue says {'up' if other > 0 else 'down'}" if other else "in the corridor")
        blocks: list[Block] = [Caption(f"step {int(self.elapsed[i])} of {self.episode_steps}"), Caption(word, strong=True)]
        return [*blocks, self._map(i)] if hidden else blocks

    def _map(self, i: int) -> Grid:
        """The maze around the player, at most 41 cells of the corridor."""
        x, y, goal = int(self.x[i]), int(self.y[i]), int(self.goal[i])
        width = min(self.junction + 1, 41)
        first = min(max(0, x - 20), self.junction + 1 - width)
        last = first + width - 1
        wall, path = Square("##", (66, 68, 74), (66, 68, 74)), (230, 230, 224)
        columns = range(first, last + 1)
        rows = [[Square(" ", path) if up == 0 or column == self.junction else wall for column in columns] for up in (1, 0, -1)]
        if first == 0:
            rows[1][0] = Square("^" if goal > 0 else "v", (250, 214, 130))
        if last == self.junction:
            rows[1 - goal][-1] = Square("G", (150, 210, 160))
        rows[1 - y][x - first] = Square("@", (170, 196, 230))
        return Grid(rows, side=max(14, min(34, 440 // width)))
