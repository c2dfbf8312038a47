"""Wind (meta-learning): reach a known goal although a hidden wind pushes the point at every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..render.blocks import Block, Spot, Stroke, numbers
from .plane import PlaneEnv, choose_preset

_ONLY = dict(horizon=100, episodes=1, radius=0.01, start=((0.0, 0.0), (0.0, 0.0)), tasks=dict(shape="square", size=0.1, kind="wind"))
PRESETS = {"release": _ONLY, "paper": _ONLY}


class Wind(PlaneEnv):
    """The task is a wind, at most 0.1 along each axis, that is added to every step. Every step that ends within `radius` of the goal (0, 1)
    pays 1.

    The point starts at (0, 0). Presets "release" and "paper" are the same: 100 steps, k = 1, radius 0.01. About one wind in twenty blows
    south so hard that the goal cannot be reached. For the options see `PlaneEnv`.
    """

    def __init__(self, num_envs: int = 1, *, preset: str = "release", **options: Any):
        super().__init__(num_envs, choose_preset(PRESETS, preset), **options)
        self.target = torch.tensor([0.0, 1.0], dtype=self.dtype, device=self.device)

    def move(self, step: Tensor) -> Tensor:
        return self.position + step + self.task

    def goal(self) -> Tensor:
        return self.target

    def hidden_parts(self, i: int, unit: float) -> tuple[list[Block], list[Stroke | Spot]]:
        (x, y), (wind_x, wind_y) = self.seen[i].tolist(), self.task[i].tolist()
        arrow = Stroke(x, y, x + 4 * wind_x, y + 4 * wind_y, (150, 180, 214), 0.03 * unit, "~")
        return [numbers(("wind x", "y"), (wind_x, wind_y))], [arrow]
