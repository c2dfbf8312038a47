"""Gymnasium envs as batched envs: the same episodes as stepping them by hand, in this process and in workers."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hadamem import envs

from .. import own
from ..toys import Actions, Mixed
from .beside import PLACES, play


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


class Limited(Mixed):
    """Has a limit of its own, under the name that `adapt` has for its own."""

    def __init__(self, max_episode_steps=4, last=None, **more):
        super().__init__(max_episode_steps, **more)
        self.last = last

    def step(self, action):
        *found, info = super().step(action)
        return (*found, info if self.last is None else self.last)


def test_an_env_that_takes_max_episode_steps_gets_it():
    for steps in (3, 6):
        env = envs.adapt(Limited, num_envs=2, workers=0, max_episode_steps=steps)
        env.reset(seed=0)
        ends = [env.step([0, 0])[2:4] for _ in range(steps)]
        assert [bool(terminated.any()) for terminated, _ in ends] == [False] * (steps - 1) + [True]
        assert not any(truncated.any() for _, truncated in ends)


@pytest.mark.parametrize(("value", "found"), [(True, True), (np.float32(1), True), (0, False), (np.array([True]), True), (None, False)])
def test_success_is_a_flag(value, found):
    env = envs.adapt(Limited, num_envs=1, workers=0, max_episode_steps=1, last={"success": value, "is_success": value})
    env.reset(seed=0)
    assert bool(env.step([0])[4].get("success", torch.zeros(1))) == found


@pytest.mark.parametrize("value", ["no", float("nan"), 0.3, np.array([True, False])])
def test_other_values_of_success_are_refused(value):
    env = envs.adapt(Limited, num_envs=1, workers=0, max_episode_steps=1, last={"success": value})
    env.reset(seed=0)
    with pytest.raises(envs.EnvError, match=r"env 0 failed in step\(\): TypeError: success in the info must be True or False, got"):
        env.step([0])


@pytest.mark.parametrize(("step", "reset", "words"), [
    (lambda found: found[:3] + found[4:], None, "obs, reward, terminated, truncated, info, as in Gymnasium's API, but returned 4 values"),
    (lambda found: (*found[:4], None), None, "info must be a dict, got NoneType"),
    (None, lambda found: found[0], "it must return obs, info, as in Gymnasium's API, but returned dict")])
def test_other_apis_are_named(step, reset, words):
    class Old(Mixed):
        def step(self, action):
            return step(super().step(action)) if step else super().step(action)

        def reset(self, **options):
            return reset(super().reset(**options)) if reset else super().reset(**options)

    def play():
        env = envs.adapt(Old, workers=0)
        env.reset(seed=0)
        env.step([0])

    with pytest.raises(envs.EnvError, match=words):
        play()
