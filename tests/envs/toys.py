"""Small Gymnasium envs for tests of the adapter. Worker processes import this file, so it needs Gymnasium and numpy only."""

import os
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Mixed(gymnasium.Env):
    """Dict, tuple and image observations; actions 2 to 4, one of them masked; episodes of `length` steps."""

    def __init__(self, length=4, mask="info", picture=(3, 4, 4), render_mode=None):
        self.length, self.mask, self.render_mode = length, mask, render_mode
        self.action_space = spaces.Discrete(3, start=2)
        parts = {"picture": spaces.Box(0, 255, picture, np.uint8),
                 "pair": spaces.Tuple((spaces.Discrete(5), spaces.Box(-np.inf, np.inf, (2,), np.float64)))}
        if mask == "obs":
            parts["action_mask"] = spaces.MultiBinary(3)
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.acted, self.start = 0, 0, int(self.np_random.integers(5))
        if options:
            self.start = options["start"]
        return self.obs(), self.info()

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t, self.acted = self.t + 1, int(action)
        over = self.t == self.length
        info = self.info() | ({"is_success": self.acted == 3, "note": f"t={self.t}", "odd": lambda: 0} if over else {})
        return self.obs(), 0.5 * self.acted, over, False, info

    def allowed(self):
        return np.arange(3) != self.t % 3

    def info(self):
        return {"action_mask": self.allowed()} if self.mask == "info" else {}

    def obs(self):
        shape = self.observation_space["picture"].shape
        out = {"picture": np.full(shape, 10 * self.t + self.start, np.uint8), "pair": (self.start, np.array([self.t, self.acted], float))}
        return out | ({"action_mask": self.allowed().astype(np.int8)} if self.mask == "obs" else {})

    def render(self):
        return f"t={self.t} acted={self.acted}"


class Actions(gymnasium.Env):
    """Returns the action as the observation, for any action space; never ends."""

    def __init__(self, action_space):
        self.action_space = action_space
        self.observation_space = spaces.Box(-np.inf, np.inf, action_space.shape, np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.action_space.shape), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return np.asarray(action, dtype=float), 0, False, False, {}


class Shows(gymnasium.Env):
    """Returns the observation `first`, then `later`, whether they are in the space or not."""

    def __init__(self, space, first, later, action_space=None):
        self.observation_space, self.first, self.later = space, first, later
        self.action_space = action_space or spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action):
        return self.later, 0.0, False, False, {}


class Masks(gymnasium.Env):
    """Episodes of two steps; the info of step `when` has the action mask `mask`."""

    observation_space = spaces.Discrete(2)

    def __init__(self, mask, when, sizes):
        self.mask, self.when = mask, when
        self.action_space = spaces.MultiDiscrete(sizes) if isinstance(sizes, list) else spaces.Discrete(sizes)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return 0, {"action_mask": np.ones(sum(self.action_space.nvec) if hasattr(self.action_space, "nvec") else self.action_space.n)}

    def step(self, action):
        self.t += 1
        return 0, 0.0, self.t == 2, False, {"action_mask": self.mask} if self.t == self.when else {}


class Shapes(gymnasium.Env):
    """Dtypes that torch does not support, and a mask [2, 4] (or a tuple of two) in the observation; episodes of 2 steps."""

    def __init__(self, tuples=False):
        self.action_space = spaces.MultiDiscrete([4, 4])
        part = spaces.MultiBinary(4)
        self.observation_space = spaces.Dict({
            "small": spaces.Box(0, 60000, (2,), np.uint16), "large": spaces.Box(0, 60000, (2,), np.uint64),
            "long": spaces.Box(0, 60000, (2,), np.longdouble),
            "action_mask": spaces.Tuple((part, part)) if tuples else spaces.MultiBinary((2, 4))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.obs(), {}

    def step(self, action):
        self.t += 1
        return self.obs(), 0.0, self.t == 2, False, {}

    def obs(self):
        mask = (np.arange(8).reshape(2, 4) % (2 + self.t) == 0).astype(np.int8)
        if isinstance(self.observation_space["action_mask"], spaces.Tuple):
            mask = tuple(mask)
        values = np.array([self.t, 50000 + self.t])
        return {"small": values.astype(np.uint16), "large": values.astype(np.uint64), "long": values.astype(np.longdouble),
                "action_mask": mask}


class OwnVector(gymnasium.vector.VectorEnv):
    """Three envs with episodes of one step. The info is not in Gymnasium's form: some values belong to all envs."""

    num_envs = 3
    single_observation_space = single_action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.int64), {"speed": 20.0}

    def step(self, actions):
        info = {"speed": 30.0, "name": "own", "pair": (1, 2), "score": np.arange(3), "absent": np.arange(3), "_absent": np.zeros(3, bool),
                "nested": {"depth": [10, 11, 12], "kind": np.int64(7)}}
        return np.ones(3, np.int64), np.zeros(3), np.ones(3, bool), np.zeros(3, bool), info


class Fragile(Mixed):
    """Fails in step `when`. how: "raise", "sys.exit" or "exit" (ends the process)."""

    def __init__(self, when=2, how="raise", **options):
        super().__init__(**options)
        self.when, self.how = when, how

    def step(self, action):
        if self.t + 1 == self.when:
            if self.how == "raise":
                raise ZeroDivisionError("the pole fell off the table")
            if self.how == "sys.exit":
                sys.exit(None)
            os._exit(3)
        return super().step(action)


class Slow(Mixed):
    def step(self, action):
        time.sleep(0.3)
        return super().step(action)


class Imported(gymnasium.Env):
    """The observation says whether its process has imported hadamem or torch."""

    observation_space = action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return int("hadamem" in sys.modules or "torch" in sys.modules), {}


class Unmakeable(gymnasium.Env):
    def __init__(self):
        raise OSError("no such robot")


class Stuck(Mixed):
    """Never returns from its third step."""

    def step(self, action):
        while self.t == 2:
            time.sleep(0.01)
        return super().step(action)
