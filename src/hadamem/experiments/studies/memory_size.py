"""The size of the memory: H from 24 to 156, as in the paper, and beyond it to 512, on Autoencode-Easy and Battleship-Easy."""

from __future__ import annotations

from collections.abc import Sequence

from ..sections import run_sections
from ..study import Study, TrainTask
from .popgym_table import run_settings, square_options, title
from .runs import count

SIZES = (24, 72, 128, 156, 256, 512)
TASKS = ("AutoencodeEasy", "BattleshipEasy")


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seeds: int | None = None, sizes: Sequence[int] = ()) -> Study:
    memory = "shm-release" if protocol == "release" else "shm"
    runs = []
    for seed in count(seeds, quick, 3):
        for task in TASKS:
            settings = run_settings(f"popgym-{protocol}", task, memory, seed, quick, budget)
            square = {"network.memory_options": square_options(settings)} if protocol == "best" else {}
            runs += [TrainTask(f"{protocol}-{task}-{memory}-H{size}-{seed}", {"task": title(task), "memory": f"{memory}, H = {size}"},
                               {**settings, **square, "network.memory_size": size})
                     for size in (tuple(sizes) or ((8, 16) if quick else SIZES))]
    return Study("memory-size", "Memory sizes", runs, __doc__ or "", "return", 100.0, sections=run_sections)
