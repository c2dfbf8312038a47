"""Gradient clipping, the remedy for instability that the paper names: norms from 0.1 to none at all."""

from __future__ import annotations

from collections.abc import Sequence

from ..sections import run_sections
from ..study import Study, TrainTask
from .popgym_table import run_settings, title
from .runs import count

NORMS = (0.1, 0.5, 2.0, None)
TASKS = ("RepeatPreviousEasy", "AutoencodeEasy")
MEMORIES = ("shm", "shm-paper", "gru")


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seeds: int | None = None, memories: Sequence[str] = ()) -> Study:
    memories = tuple(memories) or (("shm-paper",) if quick else MEMORIES)
    runs = []
    for seed in count(seeds, quick, 3):
        for task in TASKS[:1] if quick else TASKS:
            for memory in memories:
                for norm in (0.5, None) if quick else NORMS:
                    label = f"{memory}, {'no clipping' if norm is None else f'norm {norm:g}'}"
                    settings = run_settings(f"popgym-{protocol}", task, memory, seed, quick, budget)
                    runs.append(TrainTask(f"{protocol}-{task}-{memory}-clip-{'none' if norm is None else f'{norm:g}'}-{seed}",
                                          {"task": title(task), "memory": label}, {**settings, "ppo.max_grad_norm": norm}))
    return Study("clipping", "Gradient clipping", runs, __doc__ or "", "return", 100.0, sections=run_sections)
