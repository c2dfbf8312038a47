"""Memories behind one interface, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from .base import Memory
from .calibration import Calibration, Factors
from .none import NoMemory
from .rnn import GRU, LSTM
from .shm import SHM

MEMORIES: dict[str, Callable[..., Memory]] = {
    "shm": SHM,
    "shm-paper": SHM.paper,
    "shm-release": SHM.release,
    "gru": GRU,
    "lstm": LSTM,
    "none": NoMemory,
}


def list_memories() -> list[str]:
    """Names that `make_memory` knows."""
    return list(MEMORIES)


def make_memory(name: str, input_size: int, output_size: int | None = None, **options: Any) -> Memory:
    """Build a memory by name. `options` are its own keywords; `memory_size`, which all of them take, is the natural width of each."""
    if not isinstance(name, str) or name not in MEMORIES:
        near = difflib.get_close_matches(str(name).lower(), MEMORIES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown memory {name!r}; {hint}choose from {', '.join(MEMORIES)}")
    return MEMORIES[name](input_size, output_size, **options)


__all__ = ["GRU", "LSTM", "SHM", "Calibration", "Factors", "Memory", "NoMemory", "list_memories", "make_memory"]
