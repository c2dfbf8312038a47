"""Trainers of POPGym tasks for the scripts that time or profile them."""

from __future__ import annotations

import contextlib
import fcntl

from hadamem import list_memories
from hadamem.runs.config import make_config
from hadamem.training.trainer import Trainer

MEMORIES = {      # name in the records: memory and its options
    "shm": ("shm", {}),                                                              # first row, theta from 0, normalised read
    "shm-clip-none": ("shm", {"clip": None}),
    "shm-clip-1e4": ("shm", {"clip": 1e4}),
    "shm-random-rows": ("shm-paper", {}),                                            # as in the paper: a random row at every step
    "shm-first-row": ("shm-release", {}),                                            # as released: row 0, Xavier start, no norm on the read
    "shm-random-rows-norm": ("shm-paper", {"read_norm": True}),
    **{name: (name, {}) for name in list_memories() if not name.startswith("shm")},   # default sizes
    "gpt2": ("gpt2", {"window": 128}),                                               # covers the longest episode
}


@contextlib.contextmanager
def hold(lock):
    """Hold the file lock, if there is one."""
    if lock is None:
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_trainer(preset, task, memory, **settings):
    """Build the trainer of a POPGym task; `memory` is a name of MEMORIES."""
    memory, options = MEMORIES[memory]
    if options:
        settings["network.memory_options"] = options
    return Trainer(make_config(preset, env=f"popgym/{task}", memory=memory, **settings))
