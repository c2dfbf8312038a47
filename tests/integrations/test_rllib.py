"""Memories in RLlib: what acting stores and learning replays, episodes and padding, spaces, checkpoints, and that PPO learns."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import hadamem as hm

pytest.importorskip("ray.rllib", reason="needs RLlib: pip install 'hadamem[rllib]', or make test-rllib")
import ray
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

from hadamem.integrations.rllib import SEED, MemoryModule

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "integrations"))
import rllib_ppo

SMALL = dict(memory_size=6, memory_output_size=5, fcnet_hiddens=[8])
MEMORIES = {**{name: {} for name in hm.list_memories()}, "rows by episode": dict(row_mode="episode", theta_init=1.0)}


@pytest.fixture(scope="module", autouse=True)
def end_of_ray():
    """RLlib starts Ray with the first algorithm."""
    yield
    ray.shutdown()


class Noise(gymnasium.Env):
    """Episodes of random lengths that end in both ways."""

    observation_space = spaces.Box(-3, 3, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, options=None):
        super().__init__()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        return self.observe(), 1.0, bool(self.np_random.random() < 0.1), bool(self.np_random.random() < 0.1), {}


def make_module(memory="shm", observation_space=Noise.observation_space, action_space=Noise.action_space, **options) -> MemoryModule:
    torch.manual_seed(0)
    spec = RLModuleSpec(module_class=MemoryModule, observation_space=observation_space, action_space=action_space,
                        model_config={"memory": memory, **SMALL, **options})
    return spec.build()


def initial_states(module, B):
    return {name: torch.from_numpy(x).expand(B, -1) for name, x in module.get_initial_state().items()}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", MEMORIES)
def test_learning_replays_what_acting_did(name, shared):
    """The logits of the rollout come out again, over ends of episodes, padding, and sequences from the middle of episodes."""
    kind = name if name in hm.list_memories() else "shm"
    config = rllib_ppo.make_config(kind, max_seq_len=4, vf_share_layers=shared, memory_options=MEMORIES[name], **SMALL)
    algorithm = config.environment(Noise).env_runners(num_envs_per_env_runner=3).build_algo()
    learner = algorithm.learner_group._learner
    module = learner.module["default_policy"]
    for _ in range(3):      # the second and third start in the middle of episodes
        episodes = algorithm.env_runner.sample(num_timesteps=60)
        lengths = [len(episode) for episode in episodes]
        batch = learner._learner_connector(rl_module=learner.module, batch={}, episodes=episodes, shared_data={})["default_policy"]
        with torch.no_grad():
            out = module.forward_train(batch)
            values = [module.compute_values(batch, embeddings) for embeddings in (None, out[Columns.EMBEDDINGS])]
        mask = batch[Columns.LOSS_MASK]
        assert max(lengths) > mask.shape[1] == 4
        assert int(mask.sum()) == sum(lengths)
        got, want = (x[Columns.ACTION_DIST_INPUTS][mask] for x in (out, batch))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(*values)
    algorithm.stop()


@pytest.mark.parametrize("shared", [True, False])
def test_a_sequence_equals_its_steps(shared):
    """Also with padding behind it, which comes after all steps that count."""
    module = make_module("shm", vf_share_layers=shared)
    obs = torch.randn(3, 7, 2)
    padded = torch.cat([obs, torch.zeros(3, 4, 2)], dim=1)
    whole = module.forward_train({Columns.OBS: padded, Columns.STATE_IN: initial_states(module, 3)})
    state, logits = initial_states(module, 3), []
    for t in range(7):
        out = module.forward_inference({Columns.OBS: obs[:, t:t + 1], Columns.STATE_IN: state})
        state = out[Columns.STATE_OUT]
        logits.append(out[Columns.ACTION_DIST_INPUTS])
    torch.testing.assert_close(whole[Columns.ACTION_DIST_INPUTS][:, :7], torch.cat(logits, dim=1), rtol=1e-4, atol=1e-5)
    assert state.keys() == ({"actor"} if shared else {"actor", "critic"})
    again = module.forward_train({Columns.OBS: obs, Columns.STATE_IN: initial_states(module, 3)})
    torch.testing.assert_close(again[Columns.STATE_OUT]["actor"], state["actor"], rtol=1e-4, atol=1e-5)


def test_fresh_states_that_are_random():
    """Each episode has rows of its own, and the seed that acting stored brings them back. Other rows keep their states."""
    module = make_module("shm-paper")
    obs = torch.randn(4, 1, 2)
    first = module.forward_exploration({Columns.OBS: obs, Columns.STATE_IN: initial_states(module, 4)})
    used = first[Columns.STATE_OUT]["actor"]
    assert first[SEED].shape == (4, 1)
    assert len(used[:, -4:].unique(dim=0)) == 4      # the clock
    replay = {Columns.OBS: obs, SEED: first[SEED], Columns.STATE_IN: initial_states(module, 4)}
    torch.testing.assert_close(module.forward_train(replay)[Columns.STATE_OUT]["actor"], used)
    mixed = {"actor": torch.cat([used[:2], torch.zeros_like(used[2:])])}
    after = module.forward_train({**replay, Columns.STATE_IN: mixed})[Columns.STATE_OUT]["actor"]
    assert torch.equal(after[2:, -4:], used[2:, -4:])
    assert not torch.equal(after[:2, -4:], used[:2, -4:])
    assert SEED not in make_module("shm").forward_exploration({Columns.OBS: obs, Columns.STATE_IN: initial_states(make_module("shm"), 4)})


@pytest.mark.parametrize(("observation_space", "action_space", "options"), [
    (spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,)), dict(free_log_std=True)),
    (spaces.Box(-1, 1, (3,)), spaces.MultiDiscrete([2, 3]), dict(head_fcnet_hiddens=[7], head_fcnet_activation="tanh")),
    (spaces.Box(0, 255, (42, 42, 3), np.float32), spaces.Discrete(3), dict(vf_share_layers=False)),
], ids=["continuous", "many discrete", "image"])
def test_spaces_and_options_of_rllib(observation_space, action_space, options):
    module = make_module("gru", observation_space, action_space, **options)
    obs = torch.from_numpy(np.stack([observation_space.sample() for _ in range(10)])).unflatten(0, (2, 5))
    batch = {Columns.OBS: obs, Columns.STATE_IN: initial_states(module, 2)}
    out = module.forward_train(batch)
    actions = module.get_train_action_dist_cls().from_logits(out[Columns.ACTION_DIST_INPUTS])
    assert actions.logp(actions.sample()).shape == (2, 5)
    values = module.compute_values(batch, out[Columns.EMBEDDINGS])
    assert values.shape == (2, 5)
    (values.sum() + out[Columns.ACTION_DIST_INPUTS].sum()).backward()
    assert all(p.grad is not None for p in module.parameters())


def test_saved_modules_act_the_same(tmp_path):
    module = make_module("shm", vf_share_layers=False, memory_options={"calibration": "none"})
    module.save_to_path(tmp_path / "module")
    batch = {Columns.OBS: torch.randn(3, 4, 2), Columns.STATE_IN: initial_states(module, 3)}
    again = RLModule.from_checkpoint(tmp_path / "module")
    assert torch.equal(module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS],
                       again.forward_inference(batch)[Columns.ACTION_DIST_INPUTS])


def test_errors():
    with pytest.raises(TypeError, match="unknown option 'memory_sise' in model_config; options of the memory are memory, memory_size"):
        make_module(memory_sise=3)
    with pytest.raises(TypeError, match="use_lstm does not apply to MemoryModule; set memory='lstm'"):
        make_module(use_lstm=True)
    with pytest.raises(ValueError, match=r"observation_space must be a Box .* got Discrete\(4\); .*FlattenObservations"):
        make_module(observation_space=spaces.Discrete(4))


def test_defaults():
    for given in (None, {}, DefaultModelConfig(fcnet_hiddens=[8])):
        module = MemoryModule(observation_space=Noise.observation_space, action_space=Noise.action_space, model_config=given)
        assert module.model_config["max_seq_len"] == 20
        assert isinstance(module.trunks["actor"].memory, hm.SHM)
        assert module.is_stateful()


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "low", "high"), [("shm", 0.9, 1.0), ("none", -0.3, 0.3)])
def test_memory_is_what_learns_recall(memory, low, high):
    assert low <= rllib_ppo.train(memory, "recall", rllib_ppo.STEPS["recall"]) <= high


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "low", "high"), [("shm", 0.3, 1.0), ("none", -0.6, -0.4)])
def test_memory_is_what_learns_in_hadamems_vector_env(memory, low, high):
    assert low <= rllib_ppo.train(memory, "repeat", rllib_ppo.STEPS["repeat"]) <= high
