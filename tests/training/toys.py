"""Small settings and envs for tests of training. Worker processes import this file, so it needs Gymnasium and numpy only."""

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces

TINY = {"num_envs": 8, "num_steps": 16, "memory_size": 8, "encoder_size": 16, "layer_size": 16, "memory_output_size": 16,
        "head_size": 16, "num_epochs": 1, "num_minibatches": 2, "log": ()}
BATCH = 8 * 16
SEED_0 = int(np.random.SeedSequence([0]).generate_state(1)[0]) % (1 << 30)      # of env 0 in a run with seed 0: `env_seed(0)`


class Recall(gymnasium.Env):
    """A bit is shown at the start, and asked for after `length` steps. Step number `fails_after` of the env fails, as `how` says."""

    def __init__(self, length=4, fails_after=None, how="raise"):
        self.length, self.fails_after, self.how = length, fails_after, how
        self.observation_space = spaces.Dict({"cue": spaces.Discrete(3), "t": spaces.Box(0, 1, (1,), np.float64)})
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.bit = 0, int(self.np_random.integers(2))
        return self.obs(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails_after:
            if self.how == "raise":
                raise ZeroDivisionError("the cue fell off the table")
            if self.how == "terminate":      # a signal to the whole group of processes
                os.kill(os.getppid(), signal.SIGTERM)
            os._exit(3)
        self.t += 1
        over = self.t == self.length
        right = over and int(action) == self.bit
        return self.obs(), float(right), over, False, {"success": right} if over else {}

    def obs(self):
        return {"cue": self.bit + 1 if self.t == 0 else 0, "t": np.array([self.t / self.length])}


class Hangs(Recall):
    """Step number `hangs_after` sends SIGTERM to the process `main` and never ends, in the env with the seed `only` (None: in all)."""

    def __init__(self, main, hangs_after=None, only=SEED_0):
        super().__init__()
        self.main, self.hangs_after, self.only, self.seed = main, hangs_after, only, None

    def reset(self, *, seed=None, options=None):
        self.seed = self.seed if seed is None else seed
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.only in (None, self.seed) and self.steps + 1 == self.hangs_after:
            os.kill(self.main, signal.SIGTERM)
            while True:
                time.sleep(0.01)
        return super().step(action)
