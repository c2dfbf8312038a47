"""Meta-learning: success on winds and goals that were not trained on, after training on 50 or 10 of 200 tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..sections import run_sections
from ..study import Study, TrainTask
from .runs import QUICK_SAC, count, scale_steps

PRESETS = {"wind-50-150": "Wind, 50/150", "wind-10-190": "Wind, 10/190", "pointrobot-50-150": "Point Robot, 50/150",
           "pointrobot-10-190": "Point Robot, 10/190"}
MEMORIES = ("shm", "gru", "ffm", "fwp", "mlstm", "s6", "gpt2")
RELEASED = {"shm": "shm-paper"}      # the form that the published code trains here


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seeds: int | None = None, memories: Sequence[str] = ()) -> Study:
    memories = tuple(memories) or (("shm", "gru") if quick else MEMORIES)
    presets = ("wind-50-150", "pointrobot-50-150") if quick else tuple(PRESETS)
    form = "" if protocol == "fair" else "-release"
    runs = [TrainTask(f"{preset}{form}-{memory}-{seed}", {"task": PRESETS[preset], "memory": memory},
                      _settings(f"{preset}{form}", memory, seed, quick, budget, protocol))
            for seed in count(seeds, quick, 5) for preset in presets for memory in memories]
    return Study("meta-rl", "Meta-learning", runs, __doc__ or "", "eval_success", 100.0, sections=run_sections)


def _settings(preset: str, memory: str, seed: int, quick: bool, budget: float, protocol: str) -> dict[str, Any]:
    memory = RELEASED.get(memory, memory) if protocol == "release" else memory
    settings = {"preset": preset, "memory": memory, "seed": seed, "log": ()}
    if not quick:
        return scale_steps(settings, budget)
    return {**settings, **QUICK_SAC, "total_steps": 3000, "sac.learning_starts": 2000, "sac.updates_per_step": 0.02, "eval_every": 1500,
            "num_envs": 5}
