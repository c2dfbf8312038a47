"""What studies that train have in common: short runs for --quick, and --budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runs.config import make_config

# Settings of runs that take seconds on a CPU. They show that everything works, not what is learned.
_QUICK = {"device": "cpu", "compile": False, "network.memory_size": 8}
QUICK_PPO = {**_QUICK, "total_steps": 8192, "steps_per_iteration": 2048, "network.memory_output_size": 16, "ppo.num_epochs": 2,
             "ppo.num_minibatches": 2}
QUICK_SAC = {**_QUICK, "network.memory_output_size": 8, "sac.batch_size": 4, "sac.replay_size": 20_000, "network.hidden_sizes": (16, 16)}


def scale_steps(settings: Mapping[str, Any], budget: float) -> dict[str, Any]:
    """The same settings with `budget` times as many env steps."""
    if budget == 1.0:
        return dict(settings)
    return {**settings, "total_steps": max(1, round(budget * make_config(**settings).total_steps))}


def count(seeds: int | None, quick: bool, default: int) -> list[int]:
    """The seeds of a study: as many as asked for; None: its default, or one if quick."""
    return list(range((1 if quick else default) if seeds is None else seeds))
