"""A task of your own, as any Gymnasium env: a lamp shines red or green, and ten steps later the agent has to say which."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Lamp(gymnasium.Env):
    def __init__(self, delay: int = 10):
        self.delay = delay
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)      # colour of the lamp (0: off), and whether the question is asked
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.colour = 0, int(self.np_random.integers(2))
        return np.array([2 * self.colour - 1, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t > self.delay
        right = over and int(action) == self.colour
        reward = 0.0 if not over else 1.0 if right else -1.0
        return np.array([0, self.t == self.delay], np.float32), reward, over, False, {"success": right} if over else {}
