"""A user's env, made by its name."""

import gymnasium


class Coin(gymnasium.Env):
    """The right action is the observation of the step before."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 5):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.shown = 0, int(self.np_random.integers(2))
        return self.shown, {}

    def step(self, action):
        self.t += 1
        before, self.shown = self.shown, int(self.np_random.integers(2))
        return self.shown, float(action == before), self.t == self.length, False, {}
