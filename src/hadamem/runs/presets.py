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

    def resolve(self, memory: str) -> dict[str, Any]:
        """The changes for a run with that memory. A subclass of a memory that is named here counts as that one."""
        if memory in self.memories:
            return {**self.settings, **self.memories[memory]}
        kind = _class_of(memory)
        same = (changes for name, changes in self.memories.items() if issubclass(kind, _class_of(name)))
        return {**self.settings, **next(same, {})}


def _class_of(memory: str) -> type:
    """The class behind a name, also if the name is a classmethod such as SHM.paper; object if it is a function."""
    factory = find_memory(memory)
    factory = getattr(factory, "__self__", factory)
    return factory if isinstance(factory, type) else object


# The sizes of the POPGym experiments of the paper, where it has them; other memories have their own defaults.
POPGYM = {"total_steps": 15_000_000, "steps_per_iteration": 65_536, "max_num_steps": 1024, "compile": True}
POPGYM_SIZES: dict[str, dict[str, Any]] = {
    **{name: {"network.memory_size": 128, "network.memory_output_size": 1024} for name in SHM_NAMES},
    **{name: {"network.memory_size": 256} for name in ("gru", "lstm")},
}

PRESETS: dict[str, Preset] = {
    # Suits a laptop and tasks of any kind.
    "default": Preset({
        "network.memory_size": 64, "network.memory_output_size": 128,
        "ppo.num_epochs": 8, "ppo.num_minibatches": 4, "ppo.learning_rate": 1e-3, "ppo.lr_schedule": "linear", "ppo.gae_lambda": 0.95,
        "ppo.clip_range": 0.2, "ppo.target_kl": 0.02, "ppo.min_kl_coef": 0.05, "ppo.vf_loss_clip": None, "ppo.normalize_values": True,
        "ppo.ent_coef": 0.003,
    }),
    # The POPGym experiments of the paper, with equal terms for all memories.
    "popgym-fair": Preset(POPGYM, POPGYM_SIZES),
    # The same as released: bare observations, time encoding for SHM alone, no gradient clipping, fixed minibatches.
    "popgym-release": Preset(
        {**POPGYM, "previous_action": False, "first_step": False, "network.memory": "shm-release", "network.time_encoding": "none",
         "ppo.max_grad_norm": None, "ppo.reshuffle": False},
        {**POPGYM_SIZES, **{name: {**POPGYM_SIZES[name], "network.time_encoding": "sine"} for name in SHM_NAMES}},
    ),
}
