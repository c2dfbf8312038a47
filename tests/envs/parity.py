"""A small task that docs/environments.md shows, from the imports on, to explain how to add one."""

from typing import ClassVar

import torch
from gymnasium.spaces import Discrete

from hadamem import envs, random
from hadamem.envs.base import assign
from hadamem.envs.render.blocks import Caption


class Parity(envs.BatchedEnv):
    """Bits are shown one by one; name the parity of all bits so far. Each answer pays ±1 / steps."""

    keys: ClassVar = {"e": (0, "even"), "o": (1, "odd")}
    fixed_length, truncates = True, False

    def __init__(self, num_envs=1, *, steps=8, **options):
        super().__init__(num_envs, **options)
        self.single_observation_space, self.single_action_space = Discrete(2), Discrete(2)
        self.episode_steps = steps
        self.bit, self.parity = self.zeros("bit"), self.zeros("parity")

    def start(self, mask):
        assign(self.bit, mask, random.integers(self.counter(), 2))
        assign(self.parity, mask, self.bit)

    def advance(self, action):
        right = action == self.parity
        self.bit.copy_(random.integers(self.counter(), 2))
        self.parity.bitwise_xor_(self.bit)
        over = self.elapsed >= self.episode_steps
        return torch.where(right, 1 / self.episode_steps, -1 / self.episode_steps), over, torch.zeros_like(over)

    def observe(self):
        return self.bit.clone()

    def scene(self, i, hidden):
        blocks = [Caption(f"step {int(self.elapsed[i])} of {self.episode_steps}"), Caption(f"bit {int(self.bit[i])}", strong=True)]
        return [*blocks, Caption(f"parity {int(self.parity[i])}")] if hidden else blocks
