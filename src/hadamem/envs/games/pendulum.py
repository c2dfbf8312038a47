"""Pendulum with its speed hidden (POPGym): PositionOnly and NoisyPositionOnly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ..render.blocks import INK, Block, Caption, Plane, Spot, Stroke, numbers
from .control import ControlEnv

POSITION_LEVELS = {"Easy": dict(steps=200), "Medium": dict(steps=150), "Hard": dict(steps=100)}
NOISY_LEVELS = {"Easy": dict(noise=0.1), "Medium": dict(noise=0.2), "Hard": dict(noise=0.3)}

TORQUE, SPEED, STEP = 2.0, 8.0, 0.05     # highest torque and speed; seconds per step
GRAVITY = 15.0                           # 3 g / (2 l) for a rod with g = 10 and m = l = 1; the torque's factor 3 / (m l^2) is 3
WORST = 16.2736044                       # highest cost of a step: hanging down at full speed and torque


class Pendulum(ControlEnv):
    """Gymnasium's Pendulum: swing it up and hold it there with a torque in [-2, 2].

    Observation: cosine and sine of the angle (0 is up). Each step pays (1 - 2 cost / WORST) / steps, with the cost of the angle and speed
    before the step. Truncated after `steps`. noise: see ControlEnv.
    """

    fixed_length = True

    def __init__(self, num_envs: int = 1, *, steps: int = 200, noise: float = 0.0, **options: Any):
        super().__init__(num_envs, [math.pi, 1.0], [1.0, 1.0], steps, noise, **options)
        self.single_action_space = Box(-TORQUE, TORQUE, (1,), np.float32)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = self.state.unbind(1)
        torque = action[:, 0].float().clamp(-TORQUE, TORQUE)
        off = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = off**2 + 0.1 * speed**2 + 0.001 * torque**2
        reward = (1 - 2 * cost / WORST) / self.steps
        speed = (speed + (GRAVITY * torch.sin(angle) + 3 * torque) * STEP).clamp(-SPEED, SPEED)
        self.state.copy_(torch.stack((angle + speed * STEP, speed), 1))
        over = self.elapsed >= self.steps
        return reward.float(), torch.zeros_like(over), over

    def measure(self) -> Tensor:
        angle = self.state[:, 0]
        return torch.stack((torch.cos(angle), torch.sin(angle)), 1)

    def scene(self, i: int, hidden: bool) -> list[Block]:
        blocks: list[Block] = [Caption(f"step {int(self.elapsed[i])} of {self.episode_steps}"), numbers(("cos", "sin"), self.observe()[i])]
        if hidden:
            angle, speed = self.state[i].tolist()
            tip = -math.sin(angle), math.cos(angle)
            blocks.append(Plane([Stroke(0, 0, *tip, (196, 84, 72), 0.18, "*"), Spot(0, 0, 0.06, INK, "o")], (-1.3, -1.3), (1.3, 1.3), 220))
            blocks.append(numbers(("speed",), [speed]))
        return blocks
