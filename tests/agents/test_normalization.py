"""Features on a common scale: statistics against NumPy, and what must not change."""

import gymnasium
import numpy as np
import pytest
import torch

from hadamem.agents.normalization import LIMIT, Normalizer
from hadamem.runs.config import make_config
from hadamem.training.policy import Policy
from hadamem.training.trainer import Trainer


def features(n, seed=0):
    """[n, 5]: columns of very different scales; the third never changes."""
    rng = np.random.default_rng(seed)
    return torch.tensor(np.stack([rng.normal(1e3, 5, n), rng.normal(0, 1e-3, n), np.full(n, 3.0), rng.normal(-2, 1, n),
                                  rng.integers(0, 2, n)], 1), dtype=torch.float32)


def test_parts_and_the_whole_give_the_statistics_of_numpy():
    x = features(1000)
    norm = Normalizer(5, [(0, 4)])
    for part in (x[:1], x[1:300], x[300:].view(7, 100, 5)):
        norm.update(part)
    want = x.numpy().astype(np.float64)
    np.testing.assert_allclose(norm.mean[:4], want[:, :4].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose((norm.square / norm.count)[[0, 1, 3]], want.var(0)[[0, 1, 3]], rtol=1e-3)
    y = norm(x)
    assert torch.equal(y[:, 4], x[:, 4])                            # was not chosen
    np.testing.assert_allclose(y[:, [0, 3]].std(0), 1.0, rtol=1e-3)
    assert y[:, 2].abs().max() < 1e-3                               # a constant becomes 0
    assert y.isfinite().all()


def test_before_the_first_update_nothing_changes():
    x = features(10)
    assert torch.equal(Normalizer(5, [])(x), x)
    norm = Normalizer(5, [(1, 2), (3, 5)])
    norm.update(torch.full((4, 5), float("nan")))                   # nothing to learn from
    assert torch.equal(norm(x), x)


def test_outliers_are_limited_and_bad_rows_left_out():
    x = features(100)
    norm, same = Normalizer(5, [(0, 4)]), Normalizer(5, [(0, 4)])
    norm.update(x)
    bad = torch.cat([x, torch.tensor([[float("inf"), 0, 0, 0, 0], [0, float("nan"), 0, 0, 0]])])
    same.update(bad[torch.randperm(102)])
    torch.testing.assert_close(same.mean, norm.mean, rtol=1e-4, atol=1e-5)
    assert float(same.count) == 100
    assert float(norm(torch.full((1, 5), 1e9))[0, :4].abs().max()) == LIMIT
    assert float(norm(torch.full((1, 5), 1e9))[0, 4]) == 1e9


class Far(gymnasium.Env):
    """Observations around 1000, a flag and a picture."""

    observation_space = gymnasium.spaces.Dict({"flag": gymnasium.spaces.Discrete(2), "far": gymnasium.spaces.Box(-np.inf, np.inf, (2,)),
                                               "picture": gymnasium.spaces.Box(0, 255, (6, 6, 1), np.uint8)})
    action_space = gymnasium.spaces.Discrete(2)

    def _look(self):
        return {"flag": 1, "far": self.np_random.normal([1000, -50], [5, 0.1]).astype(np.float32),
                "picture": np.full((6, 6, 1), 200, np.uint8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {}

    def step(self, action):
        self.t += 1
        return self._look(), float(action), self.t == 5, False, {}


@pytest.fixture
def trainer():
    config = make_config(env="Far", memory="gru", memory_size=8, num_envs=4, num_steps=16, num_minibatches=2, num_epochs=1, device="cpu",
                         workers=0, previous_reward=True, log=(), total_steps=1000)
    made = Trainer(config, env=Far)
    yield made
    made.close()


def test_only_numbers_of_the_observation_are_scaled(trainer):
    norm = trainer.network.normalizer
    assert int(norm.chosen.sum()) == 3                              # two numbers and the previous reward
    before = norm.scale.clone()
    trainer.iteration()
    assert torch.equal(norm.scale[~norm.chosen], before[~norm.chosen])
    far = next(start for start, stop in trainer.inputs.numbers if stop - start == 2)
    torch.testing.assert_close(norm.mean[far:far + 2], torch.tensor([1000.0, -50.0]), rtol=0.01, atol=0.1)


def test_statistics_are_saved_with_policies(trainer, tmp_path):
    for _ in range(2):
        trainer.iteration()
    policy = Policy.of(trainer)
    policy.save(tmp_path / "policy")
    from hadamem import load_policy

    loaded = load_policy(tmp_path / "policy")
    assert torch.equal(loaded.network.normalizer.mean, policy.network.normalizer.mean)
    obs, _ = Far().reset(seed=1)
    assert loaded.act(obs, deterministic=True)[0] == policy.act(obs, deterministic=True)[0]


def test_learning_and_acting_see_the_same_after_the_first_iteration(trainer):
    """PPO's ratio is 1 before an iteration's first update: statistics change after the updates."""
    trainer.iteration()
    trainer.collector.draw(1)
    trainer.collector.collect()
    agent, rollout = trainer.agent, trainer.collector.rollout
    dist = agent.network(rollout.features(), rollout.state, rollout.first).dist
    torch.testing.assert_close(dist, rollout.extras["dist"], rtol=1e-4, atol=1e-5)
