"""The preset popgym-best: what each of its settings is worth, on one task of each POPGym game.

With the protocol "small", memory, batches and training are small enough to compare settings on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..sections import own_sections, run_sections
from ..study import Study, TrainTask
from .popgym_table import run_settings, title
from .runs import count, scale_steps

TASKS = ("RepeatPreviousHard", "AutoencodeMedium", "ConcentrationEasy", "BattleshipEasy")
BEST = "popgym-best"
PLAIN = {"network.memory_options": {"rotary": False}}
SOFT = {"network.memory_options": {"rotary": True, "soft_keys": 0.1}}
SIGNED = {"network.memory_options": {"rotary": True, "normalize_keys": False}}      # keys and queries of either sign
SHORT = {"ppo.actor_gamma": 0.0, "joint_previous_action": True}      # a short horizon for the actor
LINEAR = {"network.memory_activation": "none"}      # actor and critic see a linear map of what the memory reads
WIDE_HEAD = {"network.head_size": 256}      # logits of up to 144 actions have more directions than the 64 of the preset
# 256 x 64 holds as many numbers as the 128 x 128 of the preset, and twice as many are read at a step.
TALL_OPTIONS = {**SIGNED["network.memory_options"], "key_size": 64}
TALL: dict[str, Any] = {**SHORT, **LINEAR, **WIDE_HEAD, "network.memory_size": 256, "network.memory_options": TALL_OPTIONS}
SMALL = {      # a few minutes on two cores
    "total_steps": 600_000, "steps_per_iteration": 4096, "network.memory_size": 64, "network.memory_output_size": 256,
}
SHM_ALONE = ("network.memory_size", "network.memory_options")      # changes that are not for other memories
UNDONE: dict[str, dict[str, Any]] = {           # one setting back to what popgym-fair has; all of them together are popgym-fair
    "no-rotary": PLAIN,
    "narrow-input": {"network.encoder_size": 128, "network.layer_size": 64},
    "separate-actions": {"ppo.joint_actions": "never"},
    "fair-batch": {"steps_per_iteration": 65_536, "ppo.num_epochs": 30},
    "fair-lr": {"ppo.learning_rate": 5e-5, "ppo.lr_schedule": "constant"},
    "fair-lambda": {"ppo.gae_lambda": 1.0},
    "fair-entropy": {"ppo.ent_coef": 0.0},
    "fair-limits": {"ppo.clip_range": 0.3, "ppo.target_kl": 0.01, "ppo.min_kl_coef": 0.0, "ppo.vf_loss_clip": 10.0,
                    "ppo.normalize_values": False},
}
VARIANTS: dict[str, dict[str, Any]] = {         # changes of popgym-best
    BEST: {},
    **UNDONE,
    **{name: {"network.memory_options": {"rotary": True, option: value}} for name, option, value in (
        ("rotary-keys", "rotary_keys", True), ("calibration-none", "calibration", "none"), ("rows-per-step", "row_mode", "step"),
        ("neural-theta", "calibration", "neural_theta"))},
    **{name: {"network.memory_options": {"rotary": False, option: value}} for name, option, value in (      # compare with no-rotary
        ("rows-per-episode", "row_mode", "episode"), ("no-rotary-calibration-none", "calibration", "none"),
        ("no-rotary-rows-per-step", "row_mode", "step"))},
    **{f"lambda-{gae_lambda}": {"ppo.gae_lambda": gae_lambda} for gae_lambda in (0.0, 0.6, 0.95)},
    "rotary-gamma-0.8": {"ppo.gamma": 0.8, "ppo.gae_lambda": 0.8},
    **{f"entropy-{ent_coef}": {"ppo.ent_coef": ent_coef} for ent_coef in (0.003, 0.1)},
    "gamma-0.8-entropy-0.02": {"ppo.gamma": 0.8, "ppo.gae_lambda": 0.8, **PLAIN},      # what the preset was before rotary rows
    **{f"gamma-{gamma}": {"ppo.gamma": gamma, "ppo.gae_lambda": gae_lambda, "ppo.ent_coef": 0.003, **PLAIN}
       for gamma, gae_lambda in ((0.99, 0.95), (0.8, 0.8), (0.5, 0.5))},
    **{f"gamma-{gamma}-lr-1e-3": {"ppo.gamma": gamma, "ppo.gae_lambda": gamma, "ppo.ent_coef": 0.003, "ppo.learning_rate": 1e-3, **PLAIN}
       for gamma in (0.8, 0.5)},
    **{f"actor-gamma-{gamma:g}": {"ppo.actor_gamma": gamma} for gamma in (0.0, 0.5)},
    "joint-previous-action": {"joint_previous_action": True},
    "actor-gamma-0-joint-previous-action": SHORT,
    "actor-gamma-0-learned-baseline": {**SHORT, "ppo.actor_baseline": "learned", "ppo.advantage_floor": 0.02},
    "actor-gamma-0-kl-0.005": {**SHORT, "ppo.target_kl": 0.005},
    "actor-gamma-0-calibration-none": {**SHORT, "network.memory_options": {"rotary": True, "calibration": "none"}},
    "soft-keys": SOFT,
    "actor-gamma-0-soft-keys": {**SHORT, **SOFT},
    "actor-gamma-0-soft-keys-kl-0.005": {**SHORT, **SOFT, "ppo.target_kl": 0.005},
    "actor-gamma-0.5-soft-keys": {**SHORT, **SOFT, "ppo.actor_gamma": 0.5},
    "linear-output": LINEAR,
    "signed-keys-linear-output": {**SIGNED, **LINEAR},
    "actor-gamma-0-linear-output": {**SHORT, **LINEAR},
    "actor-gamma-0-soft-keys-linear-output": {**SHORT, **SOFT, **LINEAR},
    "actor-gamma-0-signed-keys": {**SHORT, **SIGNED},
    "actor-gamma-0-signed-keys-linear-output": {**SHORT, **SIGNED, **LINEAR},
    "actor-gamma-0-signed-keys-linear-output-wide-head": {**SHORT, **SIGNED, **LINEAR, **WIDE_HEAD},
    "tall": TALL,
    "tall-tied": {**TALL, "network.memory_options": {**TALL_OPTIONS, "tied_start": True}},
    "tall-actor-init-0.1": {**TALL, "network.actor_init": 0.1},
    "lr-2e-4": {"ppo.learning_rate": 2e-4},
    "time-features": {"network.time_features": 32},
    "shortcut": {"network.shortcut": True},
}


def make(protocol: str = "best", quick: bool = False, budget: float = 1.0, seeds: int | None = None, memories: Sequence[str] = ("shm",),
         tasks: Sequence[str] = (), variants: Sequence[str] = ()) -> Study:
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown:
        raise ValueError(f"unknown variant {unknown[0]!r}; choose from {', '.join(VARIANTS)}")
    small = protocol == "small"
    prefix = "popgym-small" if small else BEST
    runs = []
    for seed in count(seeds, quick, 1):
        for task in tuple(tasks) or (TASKS[-1:] if quick else TASKS):
            for variant in tuple(variants) or ((BEST, "gamma-0.99") if quick else VARIANTS):
                for memory in memories:
                    name = prefix if variant == BEST else f"{prefix}-{variant}"      # the preset itself: as popgym-table does
                    changes = {name: x for name, x in VARIANTS[variant].items() if memory == "shm" or name not in SHM_ALONE}
                    if small and not quick and "network.memory_size" in changes:
                        changes["network.memory_size"] //= 2      # as SMALL halves it
                    settings = run_settings(BEST, task, memory, seed, quick, 1.0)
                    settings = scale_steps({**settings, **(SMALL if small and not quick else {})}, budget)
                    label = variant if len(memories) == 1 else f"{variant}, {memory}"
                    runs.append(TrainTask(f"{name}-{task}-{memory}-{seed}", {"task": title(task), "memory": label},
                                          {**settings, **changes}))
    return Study("popgym-ablation", "The preset popgym-best", runs, __doc__ or "", "return", 100.0,
                 sections=own_sections if small else run_sections)
