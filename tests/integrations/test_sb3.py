"""Memories in sb3-contrib's RecurrentPPO: what is carried, what is replayed, and that it learns."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import hadamem as hm

pytest.importorskip("sb3_contrib", reason="needs sb3-contrib: pip install 'hadamem[sb3]'")
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from hadamem.integrations.sb3 import MemoryCell, MemoryPolicy

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "integrations"))
import sb3_recurrent_ppo
from recall_env import Recall

SMALL = dict(memory_size=6, memory_output_size=5)


def make_model(memory="shm", env=Recall, learning_rate=0.0, **options):
    return RecurrentPPO(MemoryPolicy, make_vec_env(env, n_envs=3, seed=0), policy_kwargs={"memory": memory, **SMALL, **options},
                        learning_rate=learning_rate, n_steps=16, batch_size=20, n_epochs=1, seed=0, device="cpu")


@pytest.mark.parametrize("name", hm.list_memories())
def test_states_come_back_as_they_were(name):
    cell = MemoryCell(hm.make_memory(name, 3, 5, memory_size=6))
    state = hm.states.detach(cell.memory(torch.randn(4, 5, 3))[1])
    h, c = cell.pack(state)
    assert h.shape == c.shape == (1, 4, cell.hidden_size)
    assert all(torch.equal(a, b) for a, b in zip(cell.unpack((h, c)), state, strict=True))


@pytest.mark.parametrize("name", ["dnc", "shm-paper"])
def test_zeros_are_a_fresh_state(name):
    """RecurrentPPO and predict() start with zeros, which are no state of a DNC, and would give every env the same random rows."""
    cell = MemoryCell(hm.make_memory(name, 3, 5, memory_size=6))
    used = cell.pack(cell.memory.initial_state(4))
    mixed = tuple(torch.cat([x[:, :2], torch.zeros_like(x[:, 2:])], dim=1) for x in used)
    torch.manual_seed(0)
    got = cell.unpack(mixed)
    torch.manual_seed(0)
    want = hm.states.where(torch.tensor([False, False, True, True]), cell.memory.initial_state(4), cell.unpack(used))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", hm.list_memories())
def test_learning_replays_what_acting_did(name):
    """The log-probabilities and values of the rollout come out again, over episodes, padding and states from the middle of episodes."""
    model = make_model(name).learn(2 * 3 * 16)
    for batch in model.rollout_buffer.get(20):
        values, log_prob, _ = model.policy.evaluate_actions(batch.observations, batch.actions.long().flatten(), batch.lstm_states,
                                                            batch.episode_starts)
        mask = batch.mask > 0
        torch.testing.assert_close(log_prob[mask], batch.old_log_prob[mask], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(values.flatten()[mask], batch.old_values[mask], rtol=1e-4, atol=1e-5)


def test_a_reset_in_the_middle_of_a_sequence():
    policy = make_model("gru").policy
    features, starts = torch.randn(2, 6, 2), torch.zeros(2, 6)
    starts[0, 3] = 1
    zeros = (torch.zeros(1, 2, policy.lstm_actor.hidden_size),) * 2
    got, _ = policy._process_sequence(features.flatten(0, 1), zeros, starts.flatten(), policy.lstm_actor)
    want, _ = policy.lstm_actor.memory(features, reset=starts.bool())
    torch.testing.assert_close(got.unflatten(0, (2, 6)), want)


def test_predict_carries_the_state():
    model, obs = make_model("shm"), np.random.default_rng(0).normal(size=(5, 3, 2)).astype(np.float32)
    state, first = None, np.ones(3, bool)
    for x in obs:
        _, state = model.predict(x, state, first, deterministic=True)
        first = np.zeros(3, bool)
    memory = model.policy.lstm_actor.memory
    with torch.no_grad():
        want = memory(torch.from_numpy(obs).transpose(0, 1))[1]
    got = model.policy.lstm_actor.unpack(tuple(torch.from_numpy(s) for s in state))
    torch.testing.assert_close(got.M, want.M)


def test_saved_models_act_the_same(tmp_path):
    model = make_model("shm", learning_rate=1e-3, enable_critic_lstm=False, memory_options={"calibration": "none"}).learn(48)
    model.save(tmp_path / "model.zip")
    model.policy.save(tmp_path / "policy.pt")
    obs = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    want = model.policy.get_distribution(torch.from_numpy(obs), (torch.zeros(1, 3, model.policy.lstm_actor.hidden_size),) * 2,
                                         torch.ones(3))[0].distribution.logits
    for policy in (RecurrentPPO.load(tmp_path / "model.zip").policy, MemoryPolicy.load(tmp_path / "policy.pt")):
        zeros = (torch.zeros(1, 3, policy.lstm_actor.hidden_size),) * 2
        assert torch.equal(policy.get_distribution(torch.from_numpy(obs), zeros, torch.ones(3))[0].distribution.logits, want)


class Seen(gymnasium.Env):
    """Observations of a given space, and continuous actions."""

    action_space = spaces.Box(-1, 1, (2,))

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, bool(self.np_random.random() < 0.2), {}


@pytest.mark.parametrize(("space", "options"), [
    (spaces.Box(-1, 1, (3,)), dict(shared_lstm=True, enable_critic_lstm=False)),
    (spaces.Box(-1, 1, (3,)), dict(enable_critic_lstm=False)),
    (spaces.Dict({"a": spaces.Box(-1, 1, (3,)), "b": spaces.Discrete(3)}), dict(share_features_extractor=False)),
    (spaces.Box(0, 255, (3, 36, 36), np.uint8), dict(net_arch=[8])),
], ids=["shared", "critic without memory", "dict", "image"])
def test_spaces_and_options_of_the_policy(space, options):
    model = make_model(env=lambda: Seen(space), learning_rate=1e-3, **options)
    before = [p.clone() for p in model.policy.lstm_actor.parameters()]
    model.learn(48)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.policy.lstm_actor.parameters(), strict=True))


@pytest.mark.parametrize("inside", [False, True])
def test_multidiscrete_observations(inside):
    """Their sizes add up to more than a uint8 holds, the dtype of the space."""
    space = spaces.MultiDiscrete([150, 150], dtype=np.uint8)

    class Cards(gymnasium.Env):
        observation_space = spaces.Dict({"cards": space}) if inside else space
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 0.0, False, True, {}

    model = RecurrentPPO(MemoryPolicy, Cards(), policy_kwargs=dict(memory="gru", memory_size=8), n_steps=8, batch_size=8)
    model.learn(8)
    assert model.policy.features_dim == 300


def test_options_of_an_lstm_are_refused():
    with pytest.raises(TypeError, match="lstm_hidden_size does not apply to MemoryPolicy; set memory"):
        make_model(lstm_hidden_size=8)


@pytest.mark.parametrize(("memory", "low", "high"), [("shm", 0.9, 1.0), ("none", -0.3, 0.3)])
def test_memory_is_what_learns_recall(memory, low, high):
    model = sb3_recurrent_ppo.train(memory, steps=20_000)
    score, _ = evaluate_policy(model, make_vec_env(Recall, n_envs=8, seed=1), n_eval_episodes=200)
    assert low <= score <= high
