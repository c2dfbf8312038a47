"""SAC learns on a CPU in half a minute: what needs memory is learned with it and not without."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import hadamem as hm
from hadamem.envs.games.wind import Wind

from ..training.toys import Recall

SMALL = {"device": "cpu", "quiet": True, "hidden_sizes": (64, 64), "lr": 1e-3}
MEMORY = {"memory_size": 32, "memory_output_size": 32}


class HiddenVelocity(gymnasium.ObservationWrapper):
    """Pendulum-v1 without its velocity. An action lasts four steps, so that an episode is 50 actions; rewards are divided by 10."""

    def __init__(self):
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def observation(self, observation):
        return observation[:2]

    def step(self, action):
        steps = [super(HiddenVelocity, self).step(action) for _ in range(4)]
        observation, _, terminated, truncated, info = steps[-1]
        return observation, sum(step[1] for step in steps) / 10, terminated, truncated, info


def learn(env, memory, **settings):
    """The evaluations of a run of a small agent."""
    run = hm.train(env, memory, **{**SMALL, **({} if memory == "none" else MEMORY), **settings})
    assert not any(row["skipped"] for row in run.metrics)
    return [row for row in run.metrics if "eval_return" in row]


@pytest.mark.parametrize(("memory", "least", "most"), [pytest.param("gru", 0.9, 1.0, marks=pytest.mark.slow), ("shm", 0.9, 1.0),
                                                         ("none", 0.0, 0.8)])
def test_discrete_recall_needs_memory(memory, least, most):
    """A bit is shown at the first step of an episode, and asked for at its end."""
    sequences = {} if memory == "none" else {"sequence_length": 16, "batch_size": 16, "memory_size": 16, "memory_output_size": 16}
    found = learn(Recall, memory, agent="sac-discrete", total_steps=1152, eval_every=1152, eval_episodes=40, workers=0, num_envs=8,
                  gamma=0.9, ent_coef=0.02, updates_per_step=0.3, learning_starts=400, hidden_sizes=(32, 32), **{**sequences, "lr": 3e-3})
    assert least <= found[-1]["eval_return"] <= most


@pytest.mark.slow
def test_plain_sac_balances_a_cart():
    """A Box action that ends in failure: the value of a terminal step is its reward. Random actions last 20 steps."""
    gymnasium.register("test/PushCart-v0", lambda: PushCart(), max_episode_steps=100)
    found = learn("test/PushCart-v0", "none", agent="sac", total_steps=2400, eval_every=400, eval_episodes=5, workers=0, num_envs=2)
    assert max(row["eval_return"] for row in found) > 60


class PushCart(gymnasium.ActionWrapper):
    """CartPole pushed by a force between -10 and 10."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=10_000))
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action):
        self.unwrapped.force_mag = 10 * abs(float(action[0]))
        return self.env.step(int(action[0] > 0))


@pytest.mark.parametrize(("memory", "least", "most"), [("gru", -60, 0), ("none", -200, -100)])
def test_a_pendulum_seen_by_its_position_needs_memory(memory, least, most):
    """Chance is about -120. Without memory it does not swing up."""
    sequences = {"batch_size": 256} if memory == "none" else {"sequence_length": 8, "num_steps": 8, "batch_size": 32}
    found = learn(HiddenVelocity, memory, agent="sac", total_steps=3_200, eval_every=3_200, eval_episodes=30, workers=0, num_envs=4,
                  gamma=0.9, tau=0.02, lr=3e-3, updates_per_step=0.8, ent_coef=0.05, **sequences)
    assert least <= found[-1]["eval_return"] <= most


class NearWind(Wind):
    """Wind with a goal that is near, so that random actions find it, and small: to stay there, one has to know the wind."""

    def __init__(self, num_envs=1, **options):
        super().__init__(num_envs, **options)
        self.target = torch.tensor([0.0, 0.1], dtype=self.dtype, device=self.device)


@pytest.mark.parametrize(("memory", "least", "most"), [("shm", 5, 12), ("none", 0, 3)])
def test_a_small_wind_needs_memory(memory, least, most):
    """Twelve steps in held-out winds. Without memory the point is pushed out of the goal again."""
    hm.envs.register_env("test/NearWind", NearWind, {}, "a near goal in the wind")
    found = learn("test/NearWind", memory, agent="sac", env_options={"horizon": 12, "radius": 0.04, "num_train": 20, "num_eval": 20},
                  eval_env_options={"tasks": "eval", "cycle": True}, seed=1, num_envs=8, total_steps=6_048, eval_every=6_048,
                  eval_episodes=40, gamma=0.8, tau=0.02, lr=3e-3, batch_size=256 if memory == "none" else 64, updates_per_step=0.25,
                  learning_starts=2_000, ent_coef=0.003)
    assert least <= found[-1]["eval_return"] <= most


@pytest.mark.parametrize(("memory", "least", "most"), [("shm", 0.8, 1.0), ("none", 0.0, 0.6)])
def test_a_short_visual_match_needs_memory(memory, least, most):
    """A colour is shown for two steps; ten steps of apples later it decides which of three doors is right."""
    found = learn("VisualMatch", memory, agent="sac-discrete", env_options={"explore": 2, "distractor": 10, "reward": 15}, seed=1,
                  num_envs=64, total_steps=56_000, eval_every=56_000, eval_episodes=60, gamma=0.9, tau=0.05, ent_coef=0.3, lr=2e-3,
                  updates_per_step=1 / 16, learning_starts=4_000, batch_size=16, shared_memory=True)
    assert least <= found[-1]["eval_success"] <= most
