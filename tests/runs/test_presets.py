"""Presets as data: what a protocol promises."""

import pytest

from hadamem import envs
from hadamem.experiments.studies.popgym_table import BEST, TASKS
from hadamem.runs.config import make_config, to_flat

MEMORY = ("network.memory", "network.memory_size", "network.memory_output_size", "network.memory_options")


def test_popgym_best():
    """Settings of PPO, and nothing that favours a memory."""
    flat = {memory: to_flat(make_config("popgym-best", memory=memory)) for memory in BEST}
    fair = to_flat(make_config("popgym-fair"))
    for memory, values in flat.items():
        assert {name for name in values if values[name] != flat["gru"][name]} <= {*MEMORY}, memory
    changed = {name: x for name, x in flat["shm"].items() if x != fair[name]}
    assert changed == {
        "preset": "popgym-best", "steps_per_iteration": 16_384, "network.encoder_size": 256, "network.layer_size": 128,
        "ppo.learning_rate": 5e-4, "ppo.lr_schedule": "linear", "ppo.gamma": 0.8, "ppo.gae_lambda": 0.8, "ppo.num_epochs": 8,
        "ppo.clip_range": 0.2, "ppo.target_kl": 0.02, "ppo.min_kl_coef": 0.05, "ppo.vf_loss_clip": None, "ppo.normalize_values": True,
        "ppo.ent_coef": 0.02, "ppo.joint_actions": "auto",
    }
    assert [flat[memory]["network.memory_size"] for memory in ("shm", "gru", "lstm")] == [128, 256, 256]
    assert flat["shm"]["network.memory_output_size"] == 1024


@pytest.mark.parametrize("task", TASKS)
def test_the_window_of_popgym_best_covers_every_episode(task):
    window = make_config("popgym-best", memory="gpt2").network.memory_options["window"]
    assert envs.make(f"popgym/{task}", num_envs=1).episode_steps <= window
