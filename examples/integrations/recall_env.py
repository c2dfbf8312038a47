"""The task of the examples in this folder: a bit is shown at the first step and asked for some steps later."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Recall(gymnasium.Env):
    """Return 1 for the right answer, -1 for the wrong one: 0 on average without memory."""

    def __init__(self, delay: int = 4):
        self.delay = delay
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)      # the bit as -1 or 1, later 0; whether the question is asked
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.bit = 0, int(self.np_random.integers(2))
        return np.array([2 * self.bit - 1, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t > self.delay
        reward = (1.0 if int(action) == self.bit else -1.0) if over else 0.0
        return np.array([0, self.t == self.delay], np.float32), reward, over, False, {}
