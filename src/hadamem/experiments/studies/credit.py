"""Credit assignment: success in Visual Match and Key-to-Door after 250 and 500 steps of picking apples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..sections import run_sections
from ..study import Study, TrainTask
from .runs import QUICK_SAC, count, scale_steps

PRESETS = {"visualmatch-250": "Visual Match, 250", "visualmatch-500": "Visual Match, 500", "keytodoor-250": "Key-to-Door, 250",
           "keytodoor-500": "Key-to-Door, 500"}
MEMORIES = ("shm", "gru", "ffm", "fwp", "mlstm", "s6", "gpt2")


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seeds: int | None = None, memories: Sequence[str] = ()) -> Study:
    memories = tuple(memories) or (("shm", "gru") if quick else MEMORIES)
    presets = ("visualmatch-250", "keytodoor-250") if quick else tuple(PRESETS)
    form = "" if protocol == "fair" else "-release"
    runs = [TrainTask(f"{preset}{form}-{memory}-{seed}", {"task": PRESETS[preset], "memory": memory},
                      _settings(f"{preset}{form}", memory, seed, quick, budget))
            for seed in count(seeds, quick, 3) for preset in presets for memory in memories]
    about = f"{__doc__} Of SHM in Visual Match the paper says near-perfect, without a number, so there is none beside ours."
    return Study("credit", "Credit assignment", runs, about, "eval_success", 100.0, sections=run_sections)


def _settings(preset: str, memory: str, seed: int, quick: bool, budget: float) -> dict[str, Any]:
    settings = {"preset": preset, "memory": memory, "seed": seed, "log": ()}
    if not quick:
        return scale_steps(settings, budget)
    options = {"preset": "release", "distractor": 20}
    return {**settings, **QUICK_SAC, "env_options": options, "total_steps": 2400, "sac.learning_starts": 800, "sac.updates_per_step": 0.02,
            "eval_every": 1200, "eval_episodes": 5, "num_envs": 4}
