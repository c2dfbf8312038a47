"""Observations and action masks that do not fit their spaces are errors that name the env and the value."""

import functools

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from hadamem import envs

from ..toys import Masks, Shows
from .beside import same

BYTES = spaces.Box(0, 255, (2, 2, 3), np.uint8)


@pytest.mark.parametrize(("space", "good", "bad", "words"), [
    (spaces.Discrete(3), 2, 3, r"observation must be of Discrete\(3\), here a whole number from 0 to 2, got 3"),
    (spaces.Discrete(3, start=-1), np.float32(1), 0.5, "got 0.5 .*correct the observation, or the observation_space"),
    (spaces.MultiDiscrete([3, 2]), [2, 1], [0, 2], r"shape \[2\], here .* 0 to 1, got 2"),
    (spaces.MultiBinary(3), np.ones(3, bool), [0, 2, 0], "got 2"),
    (spaces.MultiDiscrete([2] * 70), np.ones(70, int), np.full(70, -1), "got -1"),
    (BYTES, np.full((2, 2, 3), 255), np.full((2, 2, 3), 300), "a Box of uint8, here a whole number from 0 to 255, got 300"),
    (BYTES, np.ones((2, 2, 3)), np.full((2, 2, 3), 0.5), r"got 0.5 \(float64\); for an image from 0 to 1 return \(255 \* x\)"),
    (BYTES, np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), np.nan), "got nan"),
    (spaces.Discrete(3), 0, None, "got 'None' of type object"),
    (spaces.Dict(a=spaces.Tuple((spaces.Discrete(2), BYTES))), {"a": (1, BYTES.low)}, {"a": (2, BYTES.low)}, r"observation\['a'\]\[0\]"),
], ids=str)
def test_observations_outside_their_space(space, good, bad, words):
    for first, later in ((bad, good), (good, bad)):
        env = envs.adapt(Shows, num_envs=2, workers=0, space=space, first=first, later=later)
        with pytest.raises(envs.EnvError, match=f"env 0 failed in {'reset' if first is bad else 'step'}.*{words}"):
            env.reset(seed=0), env.step([0, 0])
    env = envs.adapt(Shows, num_envs=2, workers=0, space=space, first=good, later=good)
    same(env.reset(seed=0)[0], 0, good)
    env.step([0, 0])


@pytest.mark.parametrize("kind", ["envs", "vector"])
@pytest.mark.parametrize(("mask", "sizes", "words"), [
    (np.zeros(3), 3, r"action_mask must allow an action, got \[0 0 0\]"),
    ((np.zeros(2), np.ones(3)), [2, 3], r"in each part, got \[0 0 1 1 1\]")], ids=str)
def test_masks_must_allow_something(mask, sizes, words, kind):
    if kind == "vector" and isinstance(mask, tuple):
        mask = np.concatenate(mask)

    def make(when, mode):
        one = functools.partial(Masks, mask, when, sizes)
        return envs.adapt(one, 2, workers=0, autoreset_mode=mode) if kind == "envs" else envs.adapt(
            SyncVectorEnv([one] * 2, autoreset_mode="SameStep" if mode == "same_step" else "NextStep"), autoreset_mode=mode)

    for mode in ("same_step", "next_step"):
        env = make(1, mode)
        action = env.action_space.sample()
        env.reset(seed=0)
        with pytest.raises(envs.EnvError, match=f"env 0 failed in .*{words}"):
            env.step(action)
        env = make(2, mode)                       # after the end of an episode a mask may allow nothing
        env.reset(seed=0)
        env.step(action)
        assert env.step(action)[-1]["action_mask"].all()


def test_floats_may_leave_their_box():
    env = envs.adapt(Shows, num_envs=2, workers=0, space=spaces.Box(0, 1, (2,)), first=[7, -7], later=np.array([np.inf, 9.0]))
    assert env.reset(seed=0)[0].tolist() == [[7, -7]] * 2
    assert env.step([0, 0])[0].tolist() == [[np.inf, 9.0]] * 2
