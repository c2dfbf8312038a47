"""Gymnasium envs as batched envs: the same episodes as stepping them by hand, wherever they run, and processes that always end."""

import errno
import functools
import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from hadamem import envs
from hadamem.envs import adapter_backends, trees

from . import own
from .toys import Actions, Fragile, Masks, Mixed, OwnVector, Shapes, Shows, Slow, Unmakeable

PLACES = [0, 2]      # workers


def arrays(tree):
    return trees.apply(lambda x: x.numpy(), tree)


def same(tree, i, want):
    if isinstance(want, dict):
        for key in want:
            same(tree[key], i, want[key])
    elif isinstance(want, tuple):
        for part, value in zip(tree, want, strict=True):
            same(part, i, value)
    else:
        np.testing.assert_array_equal(tree[i].numpy(), want)


def play(env, make, steps, seed=3, chosen=None):
    """Step `env` beside single envs made by hand, in same-step mode; everything must be equal."""
    singles = [make() for _ in range(env.num_envs)]
    space = env.single_action_space
    space.seed(0)
    obs, info = env.reset(seed=seed)
    assert env.started.all()
    for i, single in enumerate(singles):
        first, first_info = single.reset(seed=seed + i)
        same(obs, i, first)
        if "action_mask" in first_info:
            np.testing.assert_array_equal(info["action_mask"][i], first_info["action_mask"])
    ends = 0
    for _ in range(steps):
        action = np.stack([space.sample() for _ in singles])
        obs, reward, terminated, truncated, info = env.step(torch.as_tensor(action))
        assert reward.dtype == torch.float32
        for i, single in enumerate(singles):
            start = getattr(single.action_space, "start", 0)
            now, pay, over, cut, more = single.step(action[i] + start)
            assert float(reward[i]) == pytest.approx(pay, rel=1e-6)
            assert (bool(terminated[i]), bool(truncated[i])) == (over, cut)
            same(info["final_obs"], i, now)
            assert bool(info["_final_obs"][i]) == (over or cut) == bool(env.started[i])
            if over or cut:
                ends += 1
                if "is_success" in more:
                    assert bool(info["success"][i]) == more["is_success"]
                    assert info["final_info"][i]["note"] == more["note"]
                now, more = single.reset()
            else:
                assert info["final_info"][i] is None
            same(obs, i, now)
            if "action_mask" in more:
                np.testing.assert_array_equal(info["action_mask"][i], more["action_mask"])
    return ends


@pytest.mark.parametrize("workers", PLACES)
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_equals_single_envs(name, workers):
    env = envs.adapt(name, num_envs=3, workers=workers)
    ends = play(env, lambda: gymnasium.make(name), 210 if name == "Pendulum-v1" else 90)
    assert ends >= 3
    assert env.episode_steps == gymnasium.spec(name).max_episode_steps
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="closed"):
        env.step([0, 0, 0])


@pytest.mark.parametrize("workers", PLACES)
@pytest.mark.parametrize("mask", ["info", "obs"])
def test_dicts_pictures_and_masks(workers, mask):
    env = envs.adapt(Mixed, num_envs=5, workers=workers, mask=mask, validate=True)
    assert env.single_action_space == spaces.Discrete(3)        # from 0, whatever the env's own start
    assert play(env, lambda: Mixed(mask=mask), 13) == 15
    obs, info = env.reset(seed=[4, 5, 6, 7, 8])
    assert obs["picture"].dtype == torch.uint8
    assert obs["picture"].shape == (5, 3, 4, 4)
    assert obs["pair"][0].dtype == torch.int64
    assert obs["pair"][1].dtype == torch.float64
    assert info["action_mask"].dtype == torch.bool
    assert all(row in env.observation_space["picture"] for row in [obs["picture"].numpy()])
    features = envs.wrap(env)
    vector, _ = features.reset(seed=0)
    assert vector.shape == features.observation_space.shape
    with pytest.raises(ValueError, match="outside"):
        env.step([0, 0, 0, 0, 3])
    env.close()


def test_options_and_partial_resets():
    for make in (*(functools.partial(envs.adapt, Mixed, 3, workers=workers) for workers in PLACES),
                 lambda: envs.adapt(SyncVectorEnv([Mixed] * 3))):
        env = make()
        obs, _ = env.reset(seed=0, options={"start": 4})
        assert obs["pair"][0].tolist() == [4, 4, 4]
        env.step([0, 1, 2])
        obs, _ = env.reset(options={"reset_mask": np.array([False, True, False]), "start": 1})
        assert obs["pair"][1][:, 0].tolist() == [1, 0, 1]
        assert obs["pair"][0].tolist() == [4, 1, 4]
        assert env.started.tolist() == [False, True, False]
        again, _ = env.reset(options={"reset_mask": np.zeros(3, bool)})
        assert torch.equal(again["pair"][1], obs["pair"][1])
        with pytest.raises(ValueError, match="reset_mask"):
            env.reset(options={"reset_mask": [True]})
        env.close()


@pytest.mark.parametrize("space", [
    spaces.Discrete(3, start=-2), spaces.MultiDiscrete([2, 3], start=[1, -1]), spaces.MultiBinary(4), spaces.MultiBinary([2, 2]),
    spaces.Box(-1, 1, (2, 2), np.float32), spaces.Box(0, 3, (2,), np.float64)], ids=str)
@pytest.mark.parametrize("vector", [False, True])
def test_actions_arrive(space, vector):
    if vector:
        env = envs.adapt(SyncVectorEnv([lambda: Actions(space)] * 3))
    else:
        env = envs.adapt(Actions, num_envs=3, workers=0, action_space=space)
    env.reset(seed=0)
    space.seed(0)
    chosen = np.stack([space.sample() for _ in range(3)])
    start = getattr(space, "start", 0)
    obs, *_ = env.step(chosen - start)
    np.testing.assert_allclose(obs.numpy(), chosen)
    if isinstance(space, spaces.Box):
        obs, *_ = env.step(np.full_like(chosen, 9))
        np.testing.assert_allclose(obs.numpy(), np.broadcast_to(space.high, chosen.shape))


@pytest.mark.parametrize("workers", PLACES)
def test_other_modes(workers):
    env = envs.adapt(Mixed, num_envs=2, workers=workers, autoreset_mode="next_step")
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env.reset(seed=0)
    seen = []
    for _ in range(6):
        obs, reward, terminated, _, info = env.step([1, 1])
        seen.append((int(obs["pair"][1][0, 0]), float(reward[0]), bool(terminated[0]), bool(env.started[0])))
        assert "final_obs" not in info
    assert seen == [(1, 1.5, False, False), (2, 1.5, False, False), (3, 1.5, False, False), (4, 1.5, True, False),
                    (0, 0.0, False, True), (1, 1.5, False, False)]
    assert bool(info["success"].any()) is False
    env.close()
    env = envs.adapt(Mixed, num_envs=2, workers=workers, autoreset_mode="disabled", length=1)
    env.reset(seed=0)
    obs, _, terminated, _, _ = env.step([0, 1])
    assert terminated.all()
    assert not env.started.any()
    env.close()


@pytest.mark.parametrize("workers", PLACES)
def test_time_limit(workers):
    env = envs.adapt(Mixed, num_envs=3, workers=workers, length=9, max_episode_steps=5)
    env = envs.TimeLimit(env, 3)
    env.reset(seed=0)
    flags = [env.step([0, 0, 0])[2:4] for _ in range(7)]
    assert [bool(cut.all()) for _, cut in flags] == [False, False, True] * 2 + [False]
    assert not any(over.any() for over, _ in flags)
    env.close()
    long = envs.adapt("CartPole-v1", max_episode_steps=1000)
    assert long.max_episode_steps == long.episode_steps == 1000


def test_seeds():
    env = envs.adapt("CartPole-v1", num_envs=2, seed=7)
    first, _ = env.reset()
    for i in range(2):
        np.testing.assert_array_equal(first[i], gymnasium.make("CartPole-v1").reset(seed=7 + i)[0])
    later, _ = env.reset()
    assert not torch.equal(first, later)
    assert torch.equal(env.reset(seed=[7, 8])[0], first)
    env.close()
    torch.manual_seed(5)
    a, _ = envs.adapt("CartPole-v1").reset()
    torch.manual_seed(5)
    b, _ = envs.adapt("CartPole-v1").reset()
    assert torch.equal(a, b)


def test_not_restorable():
    env = envs.adapt("CartPole-v1")
    env.reset(seed=0)
    assert (env.restorable, env.get_state(), envs.make("popgym/RepeatPreviousEasy").restorable) == (False, {}, True)
    with pytest.raises(RuntimeError, match="restorable"):
        envs.wrap(env).set_state({"prev_action": torch.zeros(1)})


def test_one_env_and_its_rendering():
    inner = Mixed(render_mode="ansi")
    env = envs.adapt(inner)
    env.reset(seed=0)
    env.step([1])
    assert env.render() == "t=1 acted=3"
    assert inner.t == 1
    with pytest.raises(ValueError, match="callable"):
        envs.adapt(inner, num_envs=2)
    pair = envs.adapt(Mixed, num_envs=2, workers=1, render_mode="ansi")
    pair.reset()
    assert (pair.render(), pair.render_mode) == ("t=0 acted=0", "ansi")
    pair.close()


# --- vector envs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_envs_of_every_mode_show_last_observations(kind, mode):
    if kind is AsyncVectorEnv and mode is AutoresetMode.SAME_STEP:
        make = functools.partial(gymnasium.make, "CartPole-v1")       # Gymnasium's cannot send the function in Mixed's info
    else:
        make = functools.partial(gymnasium.make, "CartPole-v1") if kind is AsyncVectorEnv else Mixed
    env = envs.adapt(kind([make] * 3, autoreset_mode=mode))
    assert env.autoreset_mode is AutoresetMode.SAME_STEP
    assert play(env, make, 13 if make is Mixed else 60) >= 3
    if mode is AutoresetMode.SAME_STEP:
        with pytest.raises(ValueError, match="max_episode_steps"):
            envs.TimeLimit(env, 2)
    else:
        limited = envs.TimeLimit(env, 2)
        limited.reset(seed=0)
        assert [bool(limited.step([0, 0, 0])[3].all()) for _ in range(4)] == [False, True, False, True]
    env.close()


def test_vector_envs_that_must_stay_next_step():
    inner = wrappers.NormalizeObservation(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2))
    env = envs.adapt(inner)
    assert env.autoreset_mode is AutoresetMode.NEXT_STEP
    env.reset(seed=0)
    ended = torch.zeros(2, dtype=torch.bool)
    for _ in range(40):
        _, _, terminated, _, info = env.step([0, 0])
        assert torch.equal(env.started, ended)
        assert "final_obs" not in info
        ended = terminated
    with pytest.raises(ValueError, match="autoreset_mode must be next_step"):
        envs.adapt(inner, autoreset_mode="same_step")
    with pytest.raises(TypeError, match="as it is"):
        envs.adapt(inner, workers=2)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_statistics_around_vector_envs(kind, mode):
    """Gymnasium's wrapper loses count when some envs are reset by mask, so that is not done; its counts arrive in `final_info`."""
    make = functools.partial(gymnasium.make, "CartPole-v1")
    env = envs.adapt(wrappers.RecordEpisodeStatistics(kind([make] * 3, autoreset_mode=mode)))
    assert env.autoreset_mode is mode
    env.reset(seed=0)
    total, length, ends = np.zeros(3), np.zeros(3, int), 0
    for t in range(60):
        _, reward, terminated, _, info = env.step([t % 2, 0, 1])
        counts = ~env.started.numpy() | terminated.numpy()
        total, length = total + reward.numpy(), length + counts
        for i in np.flatnonzero(terminated):
            episode = info["final_info"][i]["episode"]
            assert (episode["r"], episode["l"]) == (total[i], length[i])
            total[i], length[i], ends = 0, 0, ends + 1
    assert ends >= 10
    assert all(info["final_info"][i] is None for i in range(3) if not terminated[i])
    env.close()


def test_last_infos_hold_nothing_of_the_reset():
    env = envs.adapt(wrappers.RecordEpisodeStatistics(SyncVectorEnv([Mixed] * 2, autoreset_mode=AutoresetMode.SAME_STEP)))
    env.reset(seed=0)
    for _ in range(4):
        info = env.step([1, 1])[4]
    assert set(info["final_info"][0]) == {"action_mask", "is_success", "note", "odd", "episode"}
    assert info["final_info"][0]["action_mask"].tolist() == [True, False, True]      # of t = 4, not of t = 0
    assert info["final_info"][0]["episode"]["l"] == 4


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize(("wrapper", "allowed"), [
    (lambda e: wrappers.ClipReward(wrappers.TransformAction(wrappers.FlattenObservation(e), lambda a: a), 0, 1), True),
    (wrappers.RecordEpisodeStatistics, False), (wrappers.NormalizeReward, False), (gymnasium.vector.VectorWrapper, False),
    (lambda e: wrappers.FlattenObservation(wrappers.RecordEpisodeStatistics(e)), False)])
def test_wrappers_that_allow_resets_by_mask(wrapper, allowed, mode):
    inner = wrapper(SyncVectorEnv([Mixed] * 2, autoreset_mode=mode))
    assert envs.adapt(inner).autoreset_mode is (AutoresetMode.SAME_STEP if allowed else mode)
    if not allowed:
        with pytest.raises(ValueError, match="autoreset_mode must be"):
            envs.adapt(inner, autoreset_mode="same_step")


@pytest.mark.parametrize("tuples", [False, True])
def test_vector_envs_store_as_workers_do(tuples):
    single, vector = envs.adapt(Shapes, num_envs=2, workers=0, tuples=tuples), envs.adapt(SyncVectorEnv([lambda: Shapes(tuples)] * 2))
    for _ in range(2):
        results = [(env.reset(seed=0), *(env.step([[1, 2], [0, 3]]) for _ in range(3))) for env in (single, vector)]
        for (a, *_, more), (b, *_, other) in zip(*results, strict=True):
            for name, dtype in (("small", torch.int32), ("large", torch.int64), ("long", torch.float64)):
                assert a[name].dtype == b[name].dtype == dtype
                assert torch.equal(a[name], b[name])
            assert more["action_mask"].shape == (2, 8)
            assert torch.equal(more["action_mask"], other["action_mask"])
            if "final_obs" in more:
                assert torch.equal(more["final_obs"]["small"], other["final_obs"]["small"])


def test_infos_of_other_vector_envs():
    env = envs.adapt(OwnVector())
    env.reset(seed=0)
    end = env.step([0, 0, 0])[4]["final_info"][1]
    assert end.pop("score") == 1
    assert end == {"speed": 30.0, "name": "own", "pair": (1, 2), "nested": {"depth": 11, "kind": 7}}
    with pytest.raises(TypeError, match="info as a dict of arrays, got list"):
        envs.adapt(wrappers.DictInfoToList(SyncVectorEnv([Mixed] * 2))).reset(seed=0)


def test_actions_that_require_grad():
    for inner in ("Pendulum-v1", SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")])):
        env = envs.adapt(inner)
        env.reset(seed=0)
        obs, reward, *_ = env.step(torch.zeros(1, 1, requires_grad=True))
        assert (obs.requires_grad, reward.requires_grad) == (False, False)


def test_our_own_vector_envs():
    """There and back again: the same as the task itself."""
    there = gymnasium.make_vec("hadamem/RepeatPreviousEasy-v0", num_envs=3)
    back, plain = envs.adapt(there), envs.make("popgym/RepeatPreviousEasy", num_envs=3)
    a, _ = back.reset(seed=[5, 6, 7])
    b, _ = plain.reset(seed=[5, 6, 7])
    for i in range(60):
        assert torch.equal(a, b)
        a, reward_a, end_a, _, _ = back.step([i % 4] * 3)
        b, reward_b, end_b, _, _ = plain.step([i % 4] * 3)
        assert torch.equal(reward_a, reward_b)
        assert torch.equal(end_a, end_b)


# --- names ---------------------------------------------------------------------------------------------------------


def test_make_knows_gymnasiums_ids():
    env = envs.make("CartPole-v1", num_envs=2, workers=0, seed=1)
    assert isinstance(env, envs.AdaptedEnv)
    assert isinstance(envs.make("gymnasium:CartPole"), envs.AdaptedEnv)
    assert type(envs.make("hadamem/RepeatPreviousEasy-v0", k=3)) is type(envs.make("popgym/RepeatPreviousEasy"))
    for name in ("CartPoleX-v1", "no_such_module_xyz:Env-v0", "not an id!"):
        with pytest.raises(ValueError, match="unknown env"):
            envs.make(name)
    with pytest.raises(ValueError, match="did you mean popgym/AutoencodeEasy"):
        envs.make("AutoencodeEasy")


@pytest.mark.parametrize(("env", "options", "error", "words"), [
    (3, {}, TypeError, "a Gymnasium id, a callable"),
    ("CartPole-v1", dict(workers=-1), ValueError, "workers must be"),
    ("CartPole-v1", dict(num_envs=0), ValueError, "num_envs must be"),
    (lambda: 3, {}, envs.EnvError, "must make a gymnasium.Env"),
    (lambda: Actions(spaces.Tuple((spaces.Discrete(2),))), {}, TypeError, "actions of Tuple"),
])
def test_bad_arguments(env, options, error, words):
    with pytest.raises(error, match=words):
        envs.adapt(env, **options)


def test_spaces_that_are_no_tensors():
    class Words(Mixed):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Text(5)

    with pytest.raises(TypeError, match="cannot be tensors"):
        envs.adapt(Words)


# --- what can go wrong in a worker ---------------------------------------------------------------------------------


def alive(env):
    return [p for p in env.backend.processes if p.poll() is None]


@pytest.mark.parametrize("workers", PLACES)
def test_errors_of_an_env_come_back(workers):
    env = envs.adapt(Fragile, num_envs=3, workers=workers)
    env.reset(seed=0)
    env.step([0, 0, 0])
    with pytest.raises(envs.EnvError, match=r"env 0 failed in step\(.*2.*\): ZeroDivisionError: the pole fell off the table") as caught:
        env.step([0, 0, 0])
    if workers:
        assert "toys.py" in str(caught.value)        # the traceback of the worker
        assert alive(env) == []
        with pytest.raises(RuntimeError, match="one of its envs failed"):
            env.reset()
    else:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(RuntimeError, match=r"interrupted.*reset\(\)"):      # the others may be a step ahead
            env.step([0, 0, 0])
        with pytest.raises(ValueError, match="without it"):
            env.reset(options={"reset_mask": np.array([True, False, False])})
        obs, _ = env.reset(seed=0)
        assert obs["pair"][1][:, 0].tolist() == [0, 0, 0]
        assert env.step([0, 0, 0])[0]["pair"][1][:, 0].tolist() == [1, 1, 1]
    env.close()


@pytest.mark.parametrize("workers", PLACES)
def test_an_env_that_calls_exit(workers):
    env = envs.adapt(Fragile, num_envs=2, workers=workers, when=1, how="sys.exit")
    env.reset(seed=0)
    with pytest.raises(envs.EnvError, match=r"^env 0 failed in step\(.*2.*\): it called sys.exit\(None\)"):
        env.step([0, 0])
    env.close()


BYTES = spaces.Box(0, 255, (2, 2, 3), np.uint8)


@pytest.mark.parametrize(("space", "good", "bad", "words"), [
    (spaces.Discrete(3), 2, 3, r"observation must be of Discrete\(3\), here a whole number from 0 to 2, got 3"),
    (spaces.Discrete(3, start=-1), np.float32(1), 0.5, "got 0.5 .*correct the observation, or the observation_space"),
    (spaces.MultiDiscrete([3, 2]), [2, 1], [0, 2], r"shape \[2\], here .* 0 to 1, got 2"),
    (spaces.MultiBinary(3), np.ones(3, bool), [0, 2, 0], "got 2"),
    (spaces.MultiDiscrete([2] * 70), np.ones(70, int), np.full(70, -1), "got -1"),
    (BYTES, np.full((2, 2, 3), 255), np.full((2, 2, 3), 300), "a Box of uint8, here a whole number from 0 to 255, got 300"),
    (BYTES, np.ones((2, 2, 3)), np.full((2, 2, 3), 0.5), r"got 0.5 \(float64\); for a picture from 0 to 1 give \(255 \* x\)"),
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
        env = make(2, mode)                       # nothing is to be done where an episode is over
        env.reset(seed=0)
        env.step(action)
        assert env.step(action)[-1]["action_mask"].all()


def test_floats_may_leave_their_box():
    env = envs.adapt(Shows, num_envs=2, workers=0, space=spaces.Box(0, 1, (2,)), first=[7, -7], later=np.array([np.inf, 9.0]))
    assert env.reset(seed=0)[0].tolist() == [[7, -7]] * 2
    assert env.step([0, 0])[0].tolist() == [[np.inf, 9.0]] * 2


def test_observations_of_vector_envs_outside_their_space(monkeypatch):
    env = envs.adapt(OwnVector())
    env.reset()
    step = OwnVector.step
    monkeypatch.setattr(OwnVector, "step", lambda self, actions: (np.array([0, 1, 2]), *step(self, actions)[1:]))
    with pytest.raises(envs.EnvError, match=r"env 2 failed in step\(\): .*Discrete\(2\), here a whole number from 0 to 1, got 2"):
        env.step([0, 0, 0])


def test_a_worker_that_dies_is_told():
    env = envs.adapt(Fragile, num_envs=2, workers=2, how="exit")
    env.reset(seed=0)
    env.step([0, 0])
    with pytest.raises(envs.EnvError, match="envs 0 to 0 ended with code 3"):
        env.step([0, 0])
    assert alive(env) == []


@pytest.mark.parametrize("workers", PLACES)
def test_envs_that_cannot_be_made(workers):
    with pytest.raises(envs.EnvError, match="env 0 failed in being made: OSError: no such robot"):
        envs.adapt(Unmakeable, num_envs=2, workers=workers)
    shapes = iter([(3, 4, 4), (3, 5, 5)])
    if not workers:
        with pytest.raises(ValueError, match="same observation space"):
            envs.adapt(lambda: Mixed(picture=next(shapes)), num_envs=2, workers=0)


def test_files_in_the_working_directory_stay_out_of_workers(tmp_path, monkeypatch):
    for name in ("random", "tempfile", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not what you want')")
    monkeypatch.chdir(tmp_path)
    env = envs.adapt("CartPole-v1", num_envs=2, workers=1)
    assert env.reset(seed=0)[0].shape == (2, 4)
    env.close()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate") or not os.path.isdir("/dev/shm"), reason="needs posix_fallocate and /dev/shm")
@pytest.mark.parametrize("everywhere", [False, True])
def test_too_little_shared_memory(tmp_path, monkeypatch, everywhere):
    asked = []

    def reserve(file, start, size):
        place = os.readlink(f"/proc/self/fd/{file}")
        asked.append(place)
        if everywhere or place.startswith("/dev/shm"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    if everywhere:
        with pytest.raises(OSError, match=r"share arrays of \d+ bytes.*--shm-size"):
            envs.adapt(Mixed, num_envs=2, workers=1)
    else:
        env = envs.adapt(Mixed, num_envs=2, workers=1)
        assert env.reset(seed=0, options={"start": 3})[0]["pair"][0].tolist() == [3, 3]
        env.close()
    assert [str(Path(place).parent) for place in asked] == ["/dev/shm", str(tmp_path)]
    assert not any(os.path.exists(place) for place in asked)


def test_processes_end_with_the_env():
    env = envs.adapt(Mixed, num_envs=2, workers=2)
    processes = env.backend.processes
    assert len(alive(env)) == 2
    del env
    gc.collect()
    assert [p.poll() for p in processes] == [0, 0]


SCRIPT = """
    import gymnasium, hadamem as hm
    class Own(gymnasium.Env):                     # of the main script, which has no `if __name__ == "__main__"`
        observation_space = action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            return 0, dict()
        def step(self, action):
            return 1, 1.0, False, False, dict()
    gymnasium.register("Own-v0", entry_point=Own)
    env = hm.envs.adapt("Own-v0", num_envs=2, workers=2)
    env.reset(seed=0)
    print(env.step([0, 1])[0].tolist(), *(p.pid for p in env.backend.processes), flush=True)
    {then}
"""


def script(tmp_path, then):
    path = tmp_path / "main.py"
    path.write_text(textwrap.dedent(SCRIPT).format(then=then))
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", ["ends", "interrupted", "killed"])
def test_processes_end_with_the_parent(tmp_path, how):
    parent = script(tmp_path, "" if how == "ends" else "while True: env.step([0, 1])")
    obs, *pids = parent.stdout.readline().rsplit(maxsplit=2)
    assert obs == "[1, 1]"
    if how != "ends":
        time.sleep(0.1)
        parent.send_signal(signal.SIGINT if how == "interrupted" else signal.SIGKILL)
    _, err = parent.communicate(timeout=30)
    assert all(gone(int(pid)) for pid in pids)
    if how == "interrupted":
        assert err.count("Traceback") == 1
        assert err.strip().endswith("KeyboardInterrupt")
    else:
        assert err == ""


HANGS = """
    import ctypes, pathlib, gymnasium, hadamem as hm
    from hadamem.envs import adapter_backends
    adapter_backends.LAST = 1                     # second
    class Hangs(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            self.seed = seed
            return 0, dict()
        def step(self, action):
            while self.seed:
                print("hangs", flush=True)
                ctypes.PyDLL(None).sleep(30)      # in C, and no other thread may run
            return 0, 0.0, False, False, dict()
        def close(self):
            pathlib.Path("closed").touch()
    env = hm.envs.adapt(Hangs, num_envs=2, workers=2)
    env.reset(seed=0)
    print(*(p.pid for p in env.backend.processes), flush=True)
    env.step([0, 0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell of a parent's death")
def test_a_worker_that_hangs_ends_with_a_killed_parent(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HANGS)], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    pids = parent.stdout.readline().split()
    assert parent.stdout.readline() == "hangs\n"
    parent.kill()
    parent.wait()
    assert all(gone(int(pid)) for pid in pids)
    assert (tmp_path / "closed").exists()         # by the other worker, which had its second
    parent.stdout.close()


def test_envs_that_do_not_answer_are_named(monkeypatch):
    env = envs.adapt(Slow, num_envs=4, workers=2)
    env.reset(seed=0)
    monkeypatch.setattr(adapter_backends, "QUIET", 0.05)
    with pytest.warns(RuntimeWarning, match="envs 0 to 1 have not answered"):
        env.step([2, 2, 2, 2])
    env.close()


def test_a_step_that_was_interrupted(monkeypatch):
    env = envs.adapt(Mixed, num_envs=2, workers=2)
    env.reset(seed=0)
    poll = type(env.backend.connections[1]).poll

    def interrupt(self, timeout=0.0):
        if self is env.backend.connections[1]:
            raise KeyboardInterrupt
        return poll(self, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(type(env.backend.connections[1]), "poll", interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.step([0, 0])
    with pytest.raises(RuntimeError, match="interrupted"):
        env.step([0, 0])
    obs, _ = env.reset(seed=0)
    assert obs["pair"][1][:, 0].tolist() == [0, 0]
    env.close()


def test_a_class_by_name():
    name = f"{own.__name__}:Coin"
    env = envs.make(name, num_envs=2, workers=0, length=3)
    assert env.single_observation_space == own.Coin.observation_space
    env.reset(seed=0)
    for t in range(1, 7):
        *_, terminated, _, _ = env.step(torch.zeros(2, dtype=torch.int64))
        assert bool(terminated.all()) == (t % 3 == 0)
    for wrong, words in ((f"{own.__name__}:Con", r"module 'tests.envs.own' has no 'Con'; did you mean 'Coin'\?"),
                         ("no.such.module:Coin", "cannot import module 'no.such.module'"),
                         (f"{own.__name__}:__name__", "'__name__' of module 'tests.envs.own' is a str")):
        with pytest.raises(ValueError, match=f"module:Class.*{words}") as caught:
            envs.make(wrong)
        assert "Gymnasium" not in str(caught.value)
    with pytest.raises(ValueError, match="Gymnasium knows no env"):
        envs.make(f"{own.__name__}:Coin-v7")


@pytest.mark.parametrize(("text", "words"), [
    ("import os\nclass Env oops", r"cannot import module 'broken' of env 'broken:Env': .* in .*broken.py, line 2$"),
    ("len(0)", "cannot import module 'broken'.*has no len"),
    ("1 / 0", r"ZeroDivisionError\('division by zero'\)"), ("raise SystemExit(0)", r"SystemExit\(0\)")])
def test_a_module_that_cannot_be_imported(tmp_path, monkeypatch, text, words):
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=words):
        envs.make("broken:Env")
