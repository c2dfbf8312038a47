"""Gymnasium vector envs as batched envs, in every autoreset mode."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from hadamem import envs

from ..toys import Mixed, OwnVector, Shapes
from .beside import play


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_vector_envs_of_every_mode_give_final_observations(kind, mode):
    if kind is AsyncVectorEnv and mode is AutoresetMode.SAME_STEP:
        make = functools.partial(gymnasium.make, "CartPole-v1")       # AsyncVectorEnv cannot pickle the function in Mixed's info
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


def test_vector_envs_in_next_step_mode():
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
    """Gymnasium's wrapper miscounts if envs are reset by mask, so that is not done; its counts are in `final_info`."""
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
@pytest.mark.parametrize("wrapper", [
    wrappers.FlattenObservation, wrappers.RecordEpisodeStatistics, wrappers.NormalizeReward, gymnasium.vector.VectorWrapper,
    lambda e: wrappers.FlattenObservation(wrappers.RecordEpisodeStatistics(e))])
def test_wrapped_vector_envs_keep_their_mode(wrapper, mode):
    """A wrapper may count episodes, and would miss resets by mask."""
    inner = wrapper(SyncVectorEnv([Mixed] * 2, autoreset_mode=mode))
    assert envs.adapt(inner).autoreset_mode is mode
    with pytest.raises(ValueError, match=f"autoreset_mode must be {mode.name.lower()}"):
        envs.adapt(inner, autoreset_mode="same_step")


def test_the_error_about_the_mode_names_a_way_out():
    with pytest.raises(ValueError, match=r"must be next_step .* its id, .*vector_kwargs=.*AutoresetMode\.SAME_STEP"):
        envs.adapt(gymnasium.make_vec("CartPole-v1", num_envs=2), autoreset_mode="same_step")      # a vector env of the task itself
    more = {"autoreset_mode": AutoresetMode.SAME_STEP}
    env = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync", vector_kwargs=more)
    assert envs.adapt(env).autoreset_mode is AutoresetMode.SAME_STEP


def test_a_reset_that_clears_the_arrays_of_the_step():
    """An env may return its own buffers, which the reset of an episode changes: nothing of the step is lost."""
    class Buffers(gymnasium.vector.VectorEnv):
        metadata = {"autoreset_mode": AutoresetMode.DISABLED}      # noqa: RUF012
        num_envs = 2
        single_observation_space, single_action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)
        observation_space, action_space = spaces.Box(-9, 9, (2, 1)), spaces.MultiDiscrete([2, 2])

        def __init__(self):
            self.now, self.reward, self.over, self.cut = np.zeros((2, 1), np.float32), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool)

        def reset(self, *, seed=None, options=None):
            which = (options or {}).get("reset_mask", np.ones(2, bool))
            self.now[which], self.reward[which], self.over[which] = 0, 0, False
            return self.now, {}

        def step(self, actions):
            self.now += 1
            self.reward[:], self.over[:] = 1, self.now[:, 0] >= [2, 3]
            return self.now, self.reward, self.over, self.cut, {}

    env = envs.adapt(Buffers(), autoreset_mode="same_step")
    env.reset(seed=0)
    for over in ([False, False], [True, False], [False, True], [True, False]):
        _, reward, terminated, _, info = env.step([0, 0])
        assert reward.tolist() == [1, 1]
        assert terminated.tolist() == over
        assert all(info["final_obs"][i].item() == 2 + i for i in range(2) if over[i])


@pytest.mark.parametrize("given", ["objects", "batch", "nothing"])
def test_final_observations_of_other_vector_envs(given):
    final = {"objects": np.array([None, np.int64(1), None], object), "batch": np.array([0, 1, 0])}

    class Ends(OwnVector):
        metadata = dict(autoreset_mode=AutoresetMode.SAME_STEP)  # noqa: RUF012  # Gymnasium declares it so

        def step(self, actions):
            info = {} if given == "nothing" else {"final_obs": final[given], "_final_obs": np.arange(3) == 1}
            return np.zeros(3, np.int64), np.zeros(3), np.arange(3) == 1, np.zeros(3, bool), info

    env = envs.adapt(Ends())
    env.reset(seed=0)
    if given == "nothing":
        with pytest.raises(ValueError, match=r"must give info\['final_obs'\]"):
            env.step([0, 0, 0])
    else:
        obs, *_, info = env.step([0, 0, 0])
        assert (obs.tolist(), info["final_obs"].tolist(), env.started.tolist()) == ([0, 0, 0], [0, 1, 0], [False, True, False])


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
    """Adapted, they equal the task itself."""
    there = gymnasium.make_vec("hadamem/RepeatPreviousEasy-v0", num_envs=3, autoreset_mode="same_step")
    back, plain = envs.adapt(there), envs.make("popgym/RepeatPreviousEasy", num_envs=3)
    a, _ = back.reset(seed=[5, 6, 7])
    b, _ = plain.reset(seed=[5, 6, 7])
    for i in range(60):
        assert torch.equal(a, b)
        a, reward_a, end_a, _, _ = back.step([i % 4] * 3)
        b, reward_b, end_b, _, _ = plain.step([i % 4] * 3)
        assert torch.equal(reward_a, reward_b)
        assert torch.equal(end_a, end_b)


def test_observations_of_vector_envs_outside_their_space(monkeypatch):
    env = envs.adapt(OwnVector())
    env.reset()
    step = OwnVector.step
    monkeypatch.setattr(OwnVector, "step", lambda self, actions: (np.array([0, 1, 2]), *step(self, actions)[1:]))
    with pytest.raises(envs.EnvError, match=r"env 2 failed in step\(\): .*Discrete\(2\), here a whole number from 0 to 1, got 2"):
        env.step([0, 0, 0])
