"""Settings and presets of SAC that ask for something odd, or for an experiment of the paper."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import hadamem as hm
from hadamem.cli import main
from hadamem.runs.config import make_config, override, to_flat
from hadamem.training.trainer import Trainer

from .test_sac_runs import TINY

WIND = {**{name: x for name, x in TINY.items() if not name.startswith("memory")}, "agent": "sac", "env": "Wind",
        "env_options": {"horizon": 6}, "replay_size": 1000}


class Idle(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 0.0, self.t == 9, False, {}


def test_a_memory_in_the_actor_or_the_critics_alone(tmp_path):
    """On the command line "none" is a memory, not a missing value."""
    for memory, actor in (("none", "gru"), ("gru", "none")):
        for window in ({}, {"sequence_length": 6, "num_steps": 4}):
            config = make_config(**{**WIND, **window}, memory=memory, actor_memory=actor, total_steps=100)
            network = Trainer(config).network
            bodies = network.body.memory, network.critic.body.memory
            assert [body is None for body in bodies] == [actor == "none", memory == "none"]
    out = tmp_path / "run"
    words = ["train", "--agent", "sac", "--env", "Wind", "--env-option", "horizon=6", "--memory", "gru", "--actor-memory", "none",
             "--out", str(out), "--plain", "--steps", "24", "--num-envs", "4", "--log", "none", "--device", "cpu"]
    assert main(words) == 0
    assert "actor_memory: none" in (out / "config.yaml").read_text()


def test_another_actor_memory_than_that_of_a_file_has_its_own_options():
    saved = to_flat(make_config(**WIND, memory="gru", actor_memory="shm"))
    config = make_config(**override(saved, {"network.actor_memory": "gru"}))
    assert (config.network.actor_memory, config.network.actor_memory_options) == ("gru", {})


def test_sequences_shorter_than_rollouts_are_refused():
    with pytest.raises(ValueError, match=r"sequence_length must be at least the 8 steps of a rollout, .* got 4; lower num_steps, or set"):
        Trainer(make_config(**{**WIND, "num_steps": 8}, sequence_length=4))
    assert Trainer(make_config(**{**WIND, "num_steps": 80})).replay.length == 160      # two rollouts by default


def test_a_single_env_is_stepped_in_short_rollouts():
    run = hm.train(Idle(), "gru", agent="sac", total_steps=64, quiet=True, learning_starts=0, memory_size=4, device="cpu",
                   memory_output_size=4, hidden_sizes=(8,), sequence_length=16)
    assert [row["steps"] for row in run.metrics] == [16, 32, 48, 64]
    assert run.metrics[-1]["updates"] > 0


def test_presets_of_the_paper():
    """Steps, updates and sequences as in its tables; the memory spans the episode."""
    for name, updates, batch in (("wind-50-150", 250_000, 64), ("pointrobot-10-190-release", 200_000, 32), ("keytodoor-500", 500_000, 32)):
        config = make_config(name)
        settings = config.algorithm
        random = 0 if settings.catch_up else settings.learning_starts
        assert (config.total_steps - random) * settings.updates_per_step == updates
        assert settings.batch_size == batch
    assert make_config("visualmatch-500", memory="gpt2").network.memory_options["window"] > 525
    assert make_config("wind-10-190-release").network.actor_memory == "gru"
    assert make_config("wind-10-190").network.actor_memory == "same"
    split = make_config("wind-10-190")
    envs = [hm.envs.make("Wind", **{**split.env_options, **more}) for more in ({}, split.eval_env_options)]
    for env in envs:
        env.reset(seed=3)
    tasks = [set(map(tuple, env.unwrapped.tasks[0].tolist())) for env in envs]
    assert [len(group) for group in tasks] == [10, 190]
    assert not tasks[0] & tasks[1]
