"""Calibrations: what C is worth. The six of the paper and ours on Autoencode-Easy, with a memory of 72 x 72."""

from __future__ import annotations

from collections.abc import Sequence

from ..sections import run_sections
from ..study import Study, TrainTask
from .popgym_table import run_settings, square_options, title
from .runs import count

# Label: memory and its options. The read is normalised in none of the paper's six, as in the paper.
VARIANTS = {
    "C = 1": ("shm-paper", {"calibration": "none"}),
    "random C": ("shm-paper", {"calibration": "random"}),
    "fixed C": ("shm-paper", {"calibration": "fixed"}),
    "fixed theta": ("shm-release", {}),
    "neural theta": ("shm-paper", {"calibration": "neural_theta"}),
    "random theta (the paper's SHM)": ("shm-paper", {}),
    "shm (default)": ("shm", {}),
    "exp: no drift (ours)": ("shm", {"calibration": "exp"}),
    "drift: learned (ours)": ("shm", {"calibration": "drift"}),
}
QUICK = ("C = 1", "random theta (the paper's SHM)", "shm (default)")


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seeds: int | None = None, task: str = "AutoencodeEasy",
         variants: Sequence[str] = ()) -> Study:
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown:
        raise ValueError(f"unknown calibration {unknown[0]!r}; choose from {', '.join(VARIANTS)}")
    runs = []
    for seed in count(seeds, quick, 3):
        for number, (label, (memory, options)) in enumerate(VARIANTS.items()):
            if label not in (tuple(variants) or (QUICK if quick else VARIANTS)):
                continue
            settings = run_settings(f"popgym-{protocol}", task, memory, seed, quick, budget)
            size = {} if quick else {"network.memory_size": 72}
            chosen = {**(square_options(settings) if protocol == "best" else {}), **options}
            runs.append(TrainTask(f"{protocol}-{task}-calibration-{number}-{seed}", {"task": title(task), "memory": label},
                                  {**settings, **size, "network.memory_options": chosen}))
    return Study("calibration", "Calibrations", runs, __doc__ or "", "return", 100.0, sections=run_sections)
