"""POPGym returns: 12 tasks, every memory, under the fair or the released protocol, or with the presets popgym-best and popgym-gae."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...runs.config import make_config
from ..sections import run_sections
from ..study import Study, TrainTask
from .runs import QUICK_PPO, count, scale_steps

LEVELS = ("Easy", "Medium", "Hard")
GAMES = ("Autoencode", "Battleship", "Concentration", "RepeatPrevious")
TASKS = tuple(f"{game}{level}" for game in GAMES for level in LEVELS)
MEMORIES = ("shm", "shm-paper", "shm-release", "gru", "ffm", "none")
BEST = ("shm", "gru", "lstm", "ffm", "linear_attention", "fwp", "mlstm", "s6", "gpt2", "none")      # memories of TUNED
TUNED = ("best", "gae")      # protocols whose presets do not follow the paper
QUICK = ("RepeatPreviousEasy", "AutoencodeEasy")


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seeds: int | None = None, memories: Sequence[str] = (),
         tasks: Sequence[str] = ()) -> Study:
    chosen = tuple(tasks) or (QUICK if quick else TASKS)
    unknown = [task for task in chosen if task not in TASKS]
    if unknown:
        raise ValueError(f"unknown task {unknown[0]!r}; choose from {', '.join(TASKS)}")
    memories = tuple(memories) or (("shm", "gru") if quick else BEST if protocol in TUNED else MEMORIES)
    preset = f"popgym-{protocol}"
    runs = [TrainTask(f"{preset}-{task}-{memory}-{seed}", {"task": title(task), "memory": memory},
                      run_settings(preset, task, memory, seed, quick, budget))
            for seed in count(seeds, quick, 3) for task in chosen for memory in memories]
    return Study("popgym-table", "POPGym", runs, __doc__ or "", "return", 100.0, sections=run_sections)


def run_settings(preset: str, task: str, memory: str, seed: int, quick: bool, budget: float) -> dict[str, Any]:
    """Settings of one cell."""
    # The window of the runs so far; the presets of TUNED have their own.
    own = preset in [f"popgym-{protocol}" for protocol in TUNED]
    window = {"network.memory_options": {"window": 128}} if memory == "gpt2" and not own else {}
    settings = {"preset": preset, "env": f"popgym/{task}", "memory": memory, "seed": seed, "log": (), **window}
    return {**settings, **QUICK_PPO} if quick else scale_steps(settings, budget)


def square_options(settings: dict[str, Any]) -> dict[str, Any]:
    """The options of SHM in such settings that are for a memory of any size, without a key_size."""
    usual = make_config(**settings).network.memory_options
    return {name: usual[name] for name in ("rotary", "normalize_keys")}


def title(task: str) -> str:
    """RepeatPreviousEasy: RepeatPrevious-Easy."""
    level = next(level for level in LEVELS if task.endswith(level))
    return f"{task.removesuffix(level)}-{level}"
