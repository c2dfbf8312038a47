"""The presets popgym-best and popgym-gae: what each of their settings is worth, on one task of each POPGym game.

With the protocols "best-small" and "gae-small", memory, batches and training are small enough to compare settings on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...runs.presets import PRESETS
from ..sections import own_sections, run_sections
from ..study import Study, TrainTask
from .popgym_table import run_settings, title
from .runs import count, scale_steps

TASKS = ("RepeatPreviousHard", "AutoencodeMedium", "ConcentrationEasy", "BattleshipEasy")
PROTOCOLS = ("best", "gae", "best-small", "gae-small")
SHM_ALONE = ("network.memory_size", "network.memory_options")      # changes that are not for other memories
OPTIONS = "network.memory_options"
Changes = dict[str, dict[str, Any]]


def options(changes: Changes, usual: dict[str, Any]) -> Changes:
    """Changes of SHM's options, which are added to those that the preset has."""
    return {name: {OPTIONS: {**usual, **given}} for name, given in changes.items()}


# One setting back to what popgym-fair has.
UNDONE: Changes = {
    "narrow-input": {"network.encoder_size": 128, "network.layer_size": 64},
    "separate-actions": {"ppo.joint_actions": "never"},
    "fair-batch": {"steps_per_iteration": 65_536, "ppo.num_epochs": 30},
    "fair-lr": {"ppo.learning_rate": 5e-5, "ppo.lr_schedule": "constant"},
    "fair-lambda": {"ppo.gae_lambda": 1.0},
    "fair-entropy": {"ppo.ent_coef": 0.0},
    "fair-limits": {"ppo.clip_range": 0.3, "ppo.target_kl": 0.01, "ppo.min_kl_coef": 0.0, "ppo.vf_loss_clip": 10.0,
                    "ppo.normalize_values": False},
}

BEST_OPTIONS = dict(PRESETS["popgym-best"].memories["shm"][OPTIONS])
BEST_UNDONE: Changes = {      # all of them together are popgym-fair
    **UNDONE,
    "gae": {"ppo.actor_gamma": None},      # the actor learns from generalized advantages
    "split-previous-action": {"joint_previous_action": False},
    "relu-output": {"network.memory_activation": "relu"},
    "narrow-head": {"network.head_size": 64},
    "actor-init-0.01": {"network.actor_init": 0.01},
    "square": {"network.memory_size": 128, OPTIONS: {**BEST_OPTIONS, "key_size": None}},
    **options({"relu-keys": {"normalize_keys": True}, "no-rotary": {"rotary": False}}, BEST_OPTIONS),
}
BEST: Changes = {
    **BEST_UNDONE,
    **options({
        "calibration-none": {"calibration": "none"}, "rows-per-step": {"row_mode": "step"}, "neural-theta": {"calibration": "neural_theta"},
    }, BEST_OPTIONS),
    **options({      # compare with no-rotary
        "rows-per-episode": {"row_mode": "episode"}, "no-rotary-calibration-none": {"calibration": "none"},
    }, {**BEST_OPTIONS, "rotary": False}),
    "entropy-0.08": {"ppo.ent_coef": 0.08},
    "tied-actor-init-0.01": {"network.actor_init": 0.01, OPTIONS: {**BEST_OPTIONS, "tied_start": True}},
}

ROTARY: dict[str, Any] = {"rotary": True}
SHORT: dict[str, Any] = {"ppo.actor_gamma": 0.0, "joint_previous_action": True}      # a short horizon for the actor
LINEAR = {"network.memory_activation": "none"}      # actor and critic see a linear map of what the memory reads
WIDE_HEAD = {"network.head_size": 256}      # logits of up to 144 actions have more directions than the 64 of the preset
SIGNED = {OPTIONS: {"rotary": True, "normalize_keys": False}}      # keys and queries of either sign
SOFT = {OPTIONS: {"rotary": True, "soft_keys": 0.1}}
PLAIN = {OPTIONS: {"rotary": False}}
GAE_UNDONE: Changes = {"no-rotary": PLAIN, **UNDONE}      # all of them together are popgym-fair
GAE: Changes = {
    **GAE_UNDONE,
    **options({
        "rotary-keys": {"rotary_keys": True}, "calibration-none": {"calibration": "none"}, "rows-per-step": {"row_mode": "step"},
        "neural-theta": {"calibration": "neural_theta"}, "soft-keys": {"soft_keys": 0.1},
    }, ROTARY),
    **options({      # compare with no-rotary
        "rows-per-episode": {"row_mode": "episode"}, "no-rotary-calibration-none": {"calibration": "none"},
        "no-rotary-rows-per-step": {"row_mode": "step"},
    }, PLAIN[OPTIONS]),
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
    "actor-gamma-0-calibration-none": {**SHORT, OPTIONS: {"rotary": True, "calibration": "none"}},
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
    "lr-2e-4": {"ppo.learning_rate": 2e-4},
    "time-features": {"network.time_features": 32},
    "shortcut": {"network.shortcut": True},
}
VARIANTS = {"best": BEST, "gae": GAE}      # changes of the preset
SMALL = {"total_steps": 600_000, "steps_per_iteration": 4096, "network.memory_output_size": 256}      # a few minutes on two cores
SMALL_SIZE = {"best": 128, "gae": 64}      # half of the preset's memory_size


def make(protocol: str = "best", quick: bool = False, budget: float = 1.0, seeds: int | None = None, memories: Sequence[str] = ("shm",),
         tasks: Sequence[str] = (), variants: Sequence[str] = ()) -> Study:
    kind = protocol.removesuffix("-small")
    small, preset = protocol != kind and not quick, f"popgym-{kind}"
    known: Changes = {preset: {}, **VARIANTS[kind]}
    unknown = [name for name in variants if name not in known]
    if unknown:
        raise ValueError(f"unknown variant {unknown[0]!r}; choose from {', '.join(known)}")
    runs = []
    for seed in count(seeds, quick, 1):
        for task in tuple(tasks) or (TASKS[-1:] if quick else TASKS):
            for variant in tuple(variants) or (tuple(known)[:2] if quick else known):
                for memory in memories:
                    name = f"popgym-{protocol}" if variant == preset else f"popgym-{protocol}-{variant}"      # as popgym-table names them
                    changes = {name: x for name, x in known[variant].items() if memory == "shm" or name not in SHM_ALONE}
                    settings = run_settings(preset, task, memory, seed, quick, 1.0)
                    if small:
                        settings |= {**SMALL, "network.memory_size": SMALL_SIZE[kind]}
                        if "network.memory_size" in changes:
                            changes["network.memory_size"] //= 2
                    label = variant if len(memories) == 1 else f"{variant}, {memory}"
                    runs.append(TrainTask(f"{name}-{task}-{memory}-{seed}", {"task": title(task), "memory": label},
                                          {**scale_steps(settings, budget), **changes}))
    return Study("popgym-ablation", f"The preset {preset}", runs, __doc__ or "", "return", 100.0,
                 sections=own_sections if protocol != kind else run_sections)
