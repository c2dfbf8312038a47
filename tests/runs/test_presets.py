"""Presets as data: what a protocol promises."""

import pytest

import hadamem as hm
from hadamem import envs
from hadamem.experiments.studies.popgym_table import BEST, TASKS
from hadamem.runs.config import complete, make_config, override, to_flat
from hadamem.runs.presets import PRESETS

MEMORY = ("network.memory", "network.memory_size", "network.memory_output_size", "network.memory_options")


GAE_SETTINGS = {
    "steps_per_iteration": 16_384, "network.encoder_size": 256, "network.layer_size": 128, "ppo.learning_rate": 5e-4,
    "ppo.lr_schedule": "linear", "ppo.gae_lambda": 0.3, "ppo.num_epochs": 8, "ppo.clip_range": 0.2, "ppo.target_kl": 0.02,
    "ppo.min_kl_coef": 0.05, "ppo.vf_loss_clip": None, "ppo.normalize_values": True, "ppo.ent_coef": 0.02, "ppo.joint_actions": "auto",
}
BEST_SETTINGS = {
    **GAE_SETTINGS, "ppo.actor_gamma": 0.0, "joint_previous_action": True, "network.memory_activation": "none", "network.head_size": 256,
    "network.actor_init": 0.1, "network.memory_size": 256,
}


@pytest.mark.parametrize(("preset", "expected", "shm"), [
    ("popgym-best", BEST_SETTINGS, {"rotary": True, "normalize_keys": False, "key_size": 64}),
    ("popgym-gae", GAE_SETTINGS, {"rotary": True}),
])
def test_tuned_presets(preset, expected, shm):
    """Settings of PPO and the network, the same for all memories, and some options of SHM."""
    flat = {memory: to_flat(make_config(preset, memory=memory)) for memory in BEST}
    fair = to_flat(make_config("popgym-fair"))
    for memory, values in flat.items():
        assert {name for name in values if values[name] != flat["gru"][name]} <= {*MEMORY}, memory
    options, usual = (values.pop("network.memory_options") for values in (flat["shm"], fair))
    assert options == {**usual, **shm}
    changed = {name: x for name, x in flat["shm"].items() if x != fair[name]}
    assert changed == {"preset": preset, **expected}
    size = 256 if preset == "popgym-best" else 128      # 256 x 64 and 128 x 128
    assert [flat[memory]["network.memory_size"] for memory in ("shm", "gru", "lstm")] == [size, 256, 256]
    assert flat["shm"]["network.memory_output_size"] == 1024


@pytest.mark.parametrize("task", TASKS)
def test_the_window_of_gpt2_covers_every_episode(task):
    steps = envs.make(f"popgym/{task}", num_envs=1).episode_steps
    for preset in ("popgym-best", "popgym-gae"):
        assert steps <= make_config(preset, memory="gpt2").network.memory_options["window"]


ROTARY = {"rotary": True, "rotary_gain": 0.1}


class Mine(hm.SHM):
    """A memory of a user, which takes no options."""

    def __init__(self, input_size, output_size=None, memory_size=8):
        super().__init__(input_size, output_size, memory_size)


def test_the_default_preset_has_rotary_rows():
    assert make_config().network.memory_options.items() >= ROTARY.items()
    for agent in ("sac", "sac-discrete"):
        assert make_config(agent=agent, env="Wind" if agent == "sac" else "TMaze").network.memory_options["rotary"], agent
    for other in ({"memory": "shm-paper"}, {"memory": "shm-release"}, {"memory": "shm-paper", "agent": "sac", "env": "Wind"},
                  {"preset": "wind-50-150"}, {"preset": "popgym-fair"}, {"preset": "popgym-release", "memory": "shm"}):
        assert not make_config(**other).network.memory_options["rotary"], other


def test_options_are_added_to_those_that_the_preset_has_for_the_memory():
    assert override({}, {"network.memory_options": {"clip": 5.0}})["network.memory_options"] == {**ROTARY, "clip": 5.0}
    changes = {"preset": "popgym-best", "network.memory": "gpt2", "network.memory_options": {"dropout": 0.1}}
    assert override({}, changes)["network.memory_options"] == {"window": 311, "dropout": 0.1}
    assert override({}, {"network.memory": "gru", "network.memory_options": {"layers": 2}})["network.memory_options"] == {"layers": 2}


def test_a_subclass_of_shm_gets_settings_but_no_options(monkeypatch):
    monkeypatch.setitem(hm.memory.MEMORIES, "mine", Mine)
    assert PRESETS["default"].for_memory("mine", "ppo") == {"network.shortcut": True}
    assert "rotary" not in make_config(memory="mine").network.memory_options


@pytest.mark.parametrize("agent", ["ppo", "sac-discrete"])
def test_a_run_from_before_rotary_rows_goes_on_without_them(agent):
    saved = to_flat(make_config(env="TMaze", agent=agent))
    saved["network.memory_options"] = {name: x for name, x in saved["network.memory_options"].items() if name not in ROTARY}
    resumed = make_config(**override(complete(saved, agent), {"total_steps": 10_000}))
    assert resumed.network.memory_options["rotary"] is False
