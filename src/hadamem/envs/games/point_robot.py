"""Point Robot (meta-learning): find a hidden goal in the plane, then go there again."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .plane import PlaneEnv, choose_preset

PRESETS = {      # start: (lowest x, y), (highest x, y)
    "release": dict(horizon=100, episodes=2, radius=0.05, start=((-1.5, -0.5), (1.5, 1.5)),
                    tasks=dict(shape="half_circle", size=1.0, kind="point_robot")),
    "paper": dict(horizon=100, episodes=1, radius=0.01, start=((-1.5, -0.5), (1.5, 1.5)),
                  tasks=dict(shape="square", size=10.0, kind=None)),
}
DENSE = dict(horizon=60, episodes=1, radius=None, start=((-1.0, -1.0), (1.0, 1.0)),
             tasks=dict(shape="square", size=10.0, kind="point_robot_dense"))


class PointRobot(PlaneEnv):
    """The task is the goal. Every step that ends within `radius` of it pays 1.

    Preset "release": goals on the upper half of the unit circle, radius 0.05, k = 2. Preset "paper": goals in the square [-10, 10) x
    [-10, 10), radius 0.01, k = 1 (starts as in the release, as the paper does not give them); such goals are hardly ever found. Both: 100
    steps, starts in [-1.5, 1.5) x [-0.5, 1.5).
    dense: every step pays minus the distance instead; goals in the square, starts in [-1, 1) x [-1, 1), 60 steps, k = 1, and no success
    unless a radius is given. For the options see `PlaneEnv`.
    """

    def __init__(self, num_envs: int = 1, *, preset: str = "release", dense: bool = False, **options: Any):
        settings = choose_preset(PRESETS, preset)
        if dense and preset != "release":
            raise ValueError(f"dense needs preset='release', got {preset!r}: only the published code has a dense variant")
        self.dense = dense
        super().__init__(num_envs, DENSE if dense else settings, **options)

    def move(self, step: Tensor) -> Tensor:
        return self.position + step

    def goal(self) -> Tensor:
        return self.task

    def pay(self, distance: Tensor) -> Tensor:
        return -distance if self.dense else super().pay(distance)
