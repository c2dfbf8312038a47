"""Presets: named starting points for the settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..agents import DEFAULT_AGENT
from ..memory import find_memory

SHM_NAMES = ("shm", "shm-paper", "shm-release")


class Preset(NamedTuple):
    """Changes of the defaults, by dotted name. Those of other agents' sections do not apply."""

    settings: Mapping[str, Any]
    memories: Mapping[str, Mapping[str, Any]] = {}      # further changes for some memories, by their name
    agent: str = DEFAULT_AGENT
    agents: Mapping[str, Any] = {}                      # further changes for some agents, by their section: a Preset each

    def resolve(self, memory: str, section: str) -> dict[str, Any]:
        """The changes for a run with that memory, and the agent whose settings are that section."""
        found = {**self.settings, **self.for_memory(memory, section)}
        if section in self.agents:
            found = {**self.settings, **self.agents[section].settings, **self.for_memory(memory, section)}
        return found

    def for_memory(self, memory: str, section: str) -> dict[str, Any]:
        """Those that are for this memory alone. A subclass of a memory that is named counts as that one."""
        inner = self.agents[section].for_memory(memory, section) if section in self.agents else {}
        if memory in self.memories:
            return {**self.memories[memory], **inner}
        kind = _class_of(memory)
        same = (changes for name, changes in self.memories.items() if issubclass(kind, _class_of(name)))
        changes = dict(next(same, {}))
        changes.pop("network.memory_options", None)      # its constructor may not take them
        return {**changes, **inner}


def _class_of(memory: str) -> type:
    """The class behind a name, also if the name is a classmethod such as SHM.paper; object if it is a function."""
    factory = find_memory(memory)
    factory = getattr(factory, "__self__", factory)
    return factory if isinstance(factory, type) else object


# The sizes of the POPGym experiments of the paper, where it has them; other memories have their own defaults.
POPGYM = {"total_steps": 15_000_000, "steps_per_iteration": 65_536, "max_num_steps": 1024, "compile": True}
POPGYM_LONGEST = 311      # steps of the longest episode of the paper's 12 tasks: Autoencode-Hard's
POPGYM_SIZES: dict[str, dict[str, Any]] = {
    **{name: {"network.memory_size": 128, "network.memory_output_size": 1024} for name in SHM_NAMES},
    **{name: {"network.memory_size": 256} for name in ("gru", "lstm")},
    "ffm": {"network.memory_size": 128, "network.memory_output_size": 1024},
}

# PPO's settings of the presets that do not follow the paper.
TUNED_PPO = {
    "ppo.num_epochs": 8, "ppo.lr_schedule": "linear", "ppo.gae_lambda": 0.95, "ppo.clip_range": 0.2, "ppo.target_kl": 0.02,
    "ppo.min_kl_coef": 0.05, "ppo.vf_loss_clip": None, "ppo.normalize_values": True, "ppo.ent_coef": 0.003,
}

# What popgym-best and popgym-gae share: the steps of the paper, other settings of PPO, a wider input of the memory, a shot in Battleship as
# one choice.
POPGYM_TUNED = {
    **POPGYM, **TUNED_PPO, "steps_per_iteration": 16_384, "network.encoder_size": 256, "network.layer_size": 128, "ppo.num_minibatches": 8,
    "ppo.learning_rate": 5e-4, "ppo.joint_actions": "auto", "ppo.gae_lambda": 0.3, "ppo.ent_coef": 0.02,
}
POPGYM_WINDOW = {"network.memory_options": {"window": POPGYM_LONGEST}}

SAC_STEPS = {"max_num_steps": 1024, "compile": True, "sac.learning_rate": 3e-4, "sac.tau": 0.005, "network.hidden_sizes": (128, 128)}


def _meta(task: str, train: int, release: bool) -> Preset:
    """Meta-learning with SAC: Wind or Point Robot, evaluated on held-out tasks."""
    wind = task == "Wind"
    width = 64 if wind else 128
    split = {"num_train": train, "num_eval": 200 - train, **({"task_seed": "release"} if release else {})}
    settings: dict[str, Any] = {
        **SAC_STEPS, "env": task, "env_options": split, "eval_env_options": {"tasks": "eval", "cycle": True}, "eval_episodes": 200 - train,
        "network.memory_size": 24, "network.memory_output_size": width, "sac.gamma": 0.9,
        **({"total_steps": 510_000, "num_envs": 10, "eval_every": 4_000, "sac.batch_size": 64, "sac.updates_per_step": 0.5,
            "sac.learning_starts": 10_000, "sac.replay_size": 1_000_000} if wind else
           {"total_steps": 1_080_000, "num_envs": 25, "eval_every": 20_000, "sac.batch_size": 32, "sac.updates_per_step": 0.2,
            "sac.learning_starts": 80_000, "sac.replay_size": 4_000_000}),
    }
    if release:
        settings |= {"previous_action": wind, "previous_reward": not wind, "first_step": False, "sac.random_scale": 0.1, **_released(width)}
    else:
        settings |= {"previous_reward": True, "sac.max_grad_norm": 0.5}
    return Preset(settings, _sac_sizes(width, release), "sac")


def _credit(task: str, distractor: int, release: bool) -> Preset:
    """Credit assignment with SAC-Discrete: Visual Match or Key-to-Door, with this many distractor frames."""
    steps = distractor + (25 if task == "VisualMatch" else 13)
    settings: dict[str, Any] = {
        **SAC_STEPS, "env": task, "env_options": {"preset": "release", "distractor": distractor}, "total_steps": 2_000_000, "num_envs": 8,
        "eval_every": 50 * steps, "eval_episodes": 20, "network.memory_size": 24, "network.memory_output_size": 128, "sac.gamma": 0.99,
        "sac.batch_size": 32, "sac.updates_per_step": 0.25, "sac.learning_starts": 5 * steps, "sac.catch_up": True, "sac.ent_coef": 0.1,
        "sac.replay_size": 1_000_000,
    }
    if release:
        settings |= {"previous_action": False, "first_step": False, **_released(128)}
    else:
        settings |= {"sac.max_grad_norm": 0.5}
    sizes = _sac_sizes(128, release)
    sizes["gpt2"] = {**sizes["gpt2"], "network.memory_options": {**sizes["gpt2"].get("network.memory_options", {}), "window": steps + 1}}
    return Preset(settings, sizes, "sac-discrete")


def _released(width: int) -> dict[str, Any]:
    """What the published code does differently in all its SAC runs: the actor's memory is a GRU whatever the critics' is."""
    return {"network.memory": "shm-paper", "network.actor_memory": "gru", "network.actor_memory_size": width,
            "network.released_init": True, "sac.max_grad_norm": None}


def _sac_sizes(width: int, release: bool) -> dict[str, dict[str, Any]]:
    """The sizes of the paper's SAC experiments, where its code has them; in S6, 512 numbers per channel."""
    rnn = {"network.memory_size": width, "network.memory_output_size": None}
    return {
        **({"shm-paper": {"network.memory_options": {"clip": 100.0}}} if release else {}), "gru": rnn, "lstm": rnn,
        "gpt2": {**rnn, **({"network.memory_options": {"dropout": 0.1}} if release else {})},
        "ffm": {"network.memory_size": 128}, "fwp": {"network.memory_size": 64}, "s6": {"network.memory_size": 512 if release else None},
        "dnc": {"network.memory_size": None}, "none": {"network.memory_size": None},
    }


SAC_PRESETS = {
    **{f"{task.lower()}-{train}-{200 - train}": (_meta, task, train) for task in ("Wind", "PointRobot") for train in (50, 10)},
    **{f"{task.lower()}-{frames}": (_credit, task, frames) for task in ("VisualMatch", "KeyToDoor") for frames in (250, 500)},
}

PRESETS: dict[str, Preset] = {
    # Suits a laptop and tasks of any kind: chosen by `hadamem bench learning`.
    "default": Preset({
        "steps_per_iteration": None, "network.memory_size": 64, "network.memory_output_size": 128, "network.frame_stack": 4,
        "network.time_encoding": "none", "network.normalize_observations": True, **TUNED_PPO, "ppo.num_minibatches": 4,
        "ppo.learning_rate": 1e-3, "ppo.gamma_schedule": "auto", "ppo.advantage_floor": 0.05,
    }, {
        "none": {"network.frame_stack": 1}, **{name: {"network.shortcut": True} for name in SHM_NAMES},
        "shm": {"network.shortcut": True, "network.memory_options": {"rotary": True, "rotary_gain": 0.1}},
    }, agents={"sac": Preset(
        {"steps_per_iteration": 64, "network.memory_size": 32, "network.memory_output_size": 64, "network.hidden_sizes": (256, 256),
         "sac.batch_size": 16, "sac.initial_ent_coef": 0.1, "sac.max_grad_norm": 10.0},
        {"none": {"previous_action": False, "first_step": False, "sac.sequence_length": 1, "sac.batch_size": 256,
                  "sac.updates_per_step": 1.0, "sac.max_grad_norm": None}, "shm": {"network.memory_options": {"rotary": True}}},
    )}),
    # The POPGym experiments of the paper, with equal terms for all memories.
    "popgym-fair": Preset(POPGYM, POPGYM_SIZES),
    # The same as released: bare observations, time encoding for SHM alone, no gradient clipping, fixed minibatches.
    "popgym-release": Preset(
        {**POPGYM, "previous_action": False, "first_step": False, "network.memory": "shm-release", "network.time_encoding": "none",
         "ppo.max_grad_norm": None, "ppo.reshuffle": False},
        {**POPGYM_SIZES, **{name: {**POPGYM_SIZES[name], "network.time_encoding": "sine"} for name in SHM_NAMES}},
    ),
    # The same tasks and steps with settings that were chosen for them: the actor learns from the reward of each step alone.
    "popgym-best": Preset(
        {**POPGYM_TUNED, "ppo.actor_gamma": 0.0, "joint_previous_action": True, "network.memory_activation": "none",
         "network.head_size": 256, "network.actor_init": 0.1},
        {**POPGYM_SIZES, "gpt2": POPGYM_WINDOW,
         "shm": {**POPGYM_SIZES["shm"], "network.memory_size": 256,      # 256 x 64 has as many numbers as 128 x 128
                 "network.memory_options": {"rotary": True, "normalize_keys": False, "key_size": 64}}},
    ),
    # What it came from: the actor learns from generalized advantages (GAE), which also count what is paid for later.
    "popgym-gae": Preset(
        POPGYM_TUNED,
        {**POPGYM_SIZES, "gpt2": POPGYM_WINDOW, "shm": {**POPGYM_SIZES["shm"], "network.memory_options": {"rotary": True}}},
    ),
    # The SAC experiments of the paper: with equal terms for all memories (the plain name means the same), and as released.
    **{f"{name}{form}": make(task, size, form == "-release") for name, (make, task, size) in SAC_PRESETS.items()
       for form in ("", "-fair", "-release")},
}
