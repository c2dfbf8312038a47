"""CartPole without half of its state (POPGym): PositionOnly, VelocityOnly and NoisyPositionOnly."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from ..render.blocks import BLUE, INK, Block, Caption, Plane, Spot, Stroke, numbers
from .control import ControlEnv

POSITION_LEVELS = {"Easy": dict(steps=200), "Medium": dict(steps=400), "Hard": dict(steps=600)}
VELOCITY_LEVELS = {level: dict(shows="velocity", **options) for level, options in POSITION_LEVELS.items()}
NOISY_LEVELS = {"Easy": dict(noise=0.1), "Medium": dict(noise=0.2), "Hard": dict(noise=0.3)}

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, STEP = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02      # SI units; HALF_LENGTH: of the pole
MASS, MOMENT = CART + POLE, POLE * HALF_LENGTH
EDGE, TILT = 2.4, 12 * 2 * math.pi / 360                                            # limits of the cart and the pole


class CartPole(ControlEnv):
    """Gymnasium's CartPole: push the cart left (0) or right (1) and keep the pole up.

    Each step pays 1 / steps. Terminates when the cart or the pole leaves its limits, is truncated after `steps`.
    shows: "position" (x, angle) or "velocity" (of both). As in POPGym, the first observation of an episode is always x and angle.
    noise: see ControlEnv.
    """

    keys: ClassVar = {"a": (0, "left"), "d": (1, "right")}

    def __init__(self, num_envs: int = 1, *, steps: int = 200, shows: str = "position", noise: float = 0.0, **options: Any):
        if shows not in ("position", "velocity"):
            raise ValueError(f"shows must be 'position' or 'velocity', got {shows!r}")
        high = (2 * EDGE, 2 * TILT) if shows == "position" else (math.inf, math.inf)
        super().__init__(num_envs, [0.05] * 4, high, steps, noise, **options)
        self.shows = shows
        self.single_action_space = Discrete(2)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, speed, angle, spin = self.state.unbind(1)
        cos, sin = torch.cos(angle), torch.sin(angle)
        push = (torch.where(action == 1, FORCE, -FORCE) + MOMENT * spin**2 * sin) / MASS
        spin_up = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE * cos**2 / MASS))
        speed_up = push - MOMENT * spin_up * cos / MASS
        x, angle = x + STEP * speed, angle + STEP * spin
        self.state.copy_(torch.stack((x, speed + STEP * speed_up, angle, spin + STEP * spin_up), 1))
        fallen = (x.abs() > EDGE) | (angle.abs() > TILT)
        return torch.full_like(x, 1 / self.steps, dtype=torch.float32), fallen, self.elapsed >= self.steps

    def measure(self) -> Tensor:
        position, velocity = self.state[:, ::2], self.state[:, 1::2]
        return position if self.shows == "position" else torch.where((self.elapsed == 0)[:, None], position, velocity)

    def scene(self, i: int, hidden: bool) -> list[Block]:
        names = ("x", "angle") if self.shows == "position" or bool(self.started[i]) else ("speed", "spin")
        blocks: list[Block] = [Caption(f"step {int(self.elapsed[i])} of {self.episode_steps}"), numbers(names, self.observe()[i])]
        if hidden:
            x, _, angle, _ = self.state[i].tolist()
            top = x + math.sin(angle), 0.2 + math.cos(angle)
            blocks.append(Plane([Stroke(-2.4, 0, 2.4, 0, (190, 190, 186), 0.02, "-"), Stroke(x - 0.22, 0.1, x + 0.22, 0.1, BLUE, 0.2, "#"),
                                 Stroke(x, 0.2, *top, (196, 132, 72), 0.07, "/" if angle > 0.03 else "\\" if angle < -0.03 else "|"),
                                 Spot(x, 0.2, 0.05, INK, "o")], (-2.6, -0.2), (2.6, 1.4), 320))
            blocks += [numbers(("x", "speed"), self.state[i, :2]), numbers(("angle", "spin"), self.state[i, 2:])]
        return blocks
