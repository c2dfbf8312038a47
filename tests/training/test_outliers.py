"""Rewards and observations far outside what was seen before, and rewards and flags of the wrong kind."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hadamem as hm
from hadamem.agents.normalization import Normalizer
from hadamem.agents.ppo import make_batch
from hadamem.envs import EnvError
from hadamem.training.outliers import RewardLimit, _median_above_zero

from .toys import Recall


class Faulty(Recall):
    """One env of many gives one huge reward."""

    made = 0

    def __init__(self, size):
        super().__init__()
        self.which, self.size, self.count = Faulty.made, size, 0
        Faulty.made += 1

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.count += 1
        return obs, self.size if self.which == 4 and self.count == 70 else reward, terminated, truncated, info


def test_learning_goes_on_after_an_outlier():
    """1e15 used to end learning, at a success of 0.6 or less."""
    Faulty.made = 0
    with pytest.warns(RuntimeWarning, match=r"a reward of magnitude 1e\+15 in iteration 3 is far outside what was seen before \(at most 1"):
        run = hm.train(Faulty, "gru", env_options={"size": 1e15}, total_steps=16_000, num_envs=32, num_steps=32, workers=0, memory_size=16,
                       device="cpu", quiet=True, log=())
    assert [row["iteration"] for row in run.metrics if "outliers" in row] == [3]
    assert run.summary()["success"] > 0.95


@pytest.mark.parametrize(("values", "median"), [([0, 0, 0], 0), ([5], 5), ([0, 7], 7), ([3, 0, 1, 2], 2), ([4, 3, 2, 1], 2)])
def test_the_median_of_envs_with_rewards(values, median):
    assert _median_above_zero(torch.tensor(values, dtype=torch.float32)) == median


def test_limits():
    limit = RewardLimit(torch.device("cpu"))
    sparse = torch.zeros(4, 8)
    sparse[1, 2] = 1e6
    limit.apply(sparse)                                    # the first reward that is not 0 may have any size
    assert sparse.max() == 1e6
    limit = RewardLimit(torch.device("cpu"))
    few = torch.zeros(8, 4)
    few[:3, 1], few[3, 1] = 1.0, 1e15                      # most envs have none yet
    limit.apply(few)
    assert few.max() == 1000
    limit = RewardLimit(torch.device("cpu"))
    reward = torch.ones(4, 8)
    reward[1, 2], reward[2, 0], reward[3, 1] = -1e15, torch.nan, torch.inf
    limit.apply(reward)
    assert reward[1, 2] == -1000
    assert torch.isnan(reward[2, 0])
    assert torch.isinf(reward[3, 1])
    found = {name: float(x) for name, x in limit.numbers().items()}
    assert found == pytest.approx({"outliers": 1, "outlier_reward": 1e15, "usual_reward": 1})
    larger = torch.full((4, 8), 5e4)                       # rewards that really grow are limited no more
    limit.apply(larger)
    assert larger.min() == 5e4
    assert torch.isnan(limit.numbers()["outliers"])
    for envs in (1, 4):                                    # the only reward of a rollout is not its own measure
        limit = RewardLimit(torch.device("cpu"))
        limit.apply(torch.ones(envs, 8))
        alone = torch.zeros(envs, 8)
        alone[0, 3] = 1e15
        limit.apply(alone)
        assert alone.max() == 1000


def test_one_observation_does_not_decide_about_the_scale():
    normalizer = Normalizer(2, [(0, 1)])
    x = torch.randn(4096, 2, generator=torch.Generator().manual_seed(0))
    normalizer.update(x)
    y = x.clone()
    y[7] = 1e15
    normalizer.update(y)
    assert 0.5 < float(normalizer.scale[0]) < 1.0
    assert float(normalizer.scale[1]) == 1.0
    early = Normalizer(2, [(0, 1)])
    early.update(y, first=True)
    assert 0.3 < float(early.scale[0]) < 1.0


def test_observations_that_are_not_finite_do_not_count():
    normalizer = Normalizer(1, [(0, 1)])
    x = 1000 + torch.randn(64, 1, generator=torch.Generator().manual_seed(0))
    normalizer.update(x, first=True)
    normalizer.update(torch.where(torch.arange(64)[:, None] % 2 > 0, x, torch.nan))
    assert float(normalizer.mean) == pytest.approx(1000, abs=1)
    assert float(normalizer.scale) == pytest.approx(1, rel=0.3)
    empty = Normalizer(1, [(0, 1)])
    empty.update(torch.full((4, 1), torch.nan), first=True)
    assert (float(empty.mean), float(empty.scale)) == (0.0, 1.0)


def test_a_rare_reward_is_no_outlier():
    """The size of returns shrinks while there are no rewards; the first ones count fully all the same."""
    config = hm.agents.PPOConfig(normalize_values=True, normalize_advantage="none", gae_lambda=1.0)
    rollout = SimpleNamespace(reward=torch.tensor([[0.0, 1.0]]), done=torch.tensor([[False, True]]), extras={"value": torch.zeros(1, 2),
                              "dist": None}, final={}, last={"value": torch.zeros(1)}, features=lambda: None, first=None, state=None,
                              action=None, mask=None, usual_reward=torch.ones(1))
    assert make_batch(rollout, config, size=torch.tensor(1e-3)).target[0, 1] == 1
    rollout.reward[0, 1] = 1000.0
    assert make_batch(rollout, config, size=torch.tensor(1e-3)).target[0, 1] == 30
    rollout.usual_reward.zero_()
    assert make_batch(rollout, config, size=torch.tensor(1e-3)).target[0, 1] == 1000


class Wrong(Recall):
    def __init__(self, **values):
        super().__init__()
        self.values = values

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        given = {"reward": reward, "terminated": terminated, "truncated": truncated, **self.values}
        return obs, given["reward"], given["terminated"], given["truncated"], info


@pytest.mark.parametrize(("values", "message"), [
    ({"reward": None}, "reward must be a number, got None"), ({"reward": "1.5"}, "reward must be a number, got '1.5'"),
    ({"reward": [1.0, 2.0]}, "reward must be a number"), ({"reward": 1j}, "reward must be a number"),
    ({"terminated": 0}, "terminated must be True or False, got 0; wrap it in bool"),
    ({"truncated": None}, "truncated must be True or False"),
    ({"terminated": "no"}, "terminated must be True or False, got 'no'"),
])
def test_rewards_and_flags_of_the_wrong_kind_are_refused(values, message):
    env = hm.envs.adapt(lambda: Wrong(**values), num_envs=2, workers=0)
    env.reset(seed=0)
    with pytest.raises(EnvError, match=rf"env 0 failed in step\(.*\): TypeError: {message}"):
        env.step(torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("values", [{"reward": np.float64(1)}, {"reward": 1}, {"reward": np.ones(())}, {"reward": torch.tensor(1.0)},
                                    {"reward": torch.ones(1, dtype=torch.bfloat16, requires_grad=True)},
                                    {"terminated": np.bool_(False), "truncated": np.array([False])}])
def test_numbers_and_flags_of_numpy_and_torch_are_taken(values):
    env = hm.envs.adapt(lambda: Wrong(**values), num_envs=2, workers=0)
    env.reset(seed=0)
    _, reward, terminated, _, _ = env.step(torch.zeros(2, dtype=torch.int64))
    assert reward.tolist() == [1.0 if "reward" in values else 0.0] * 2
    assert terminated.tolist() == [False] * 2


def test_a_vector_env_with_flags_of_the_wrong_kind_is_refused():
    from gymnasium.vector import SyncVectorEnv

    class Numbers(SyncVectorEnv):
        def step(self, actions):
            obs, reward, terminated, truncated, info = super().step(actions)
            return obs, reward, terminated.astype(np.int64), truncated, info

    env = hm.envs.adapt(Numbers([Recall, Recall]))
    env.reset(seed=0)
    with pytest.raises(EnvError, match="terminated must be an array of booleans, got int64"):
        env.step(torch.zeros(2, dtype=torch.int64))
