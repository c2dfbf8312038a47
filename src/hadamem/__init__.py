"""hadamem: memory for reinforcement-learning agents, built around Stable Hadamard Memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import kernels, random, states
from ._version import __version__
from .memory import GRU, LSTM, SHM, Calibration, Factors, Memory, NoMemory, list_memories, make_memory

if TYPE_CHECKING:
    from . import bench, diagnostics, envs, reference, testing

_LAZY = ("bench", "diagnostics", "envs", "reference", "testing")   # imported on first use, to keep `import hadamem` light


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = ["GRU", "LSTM", "SHM", "Calibration", "Factors", "Memory", "NoMemory", "__version__", "bench", "diagnostics", "envs", "kernels",
           "list_memories", "make_memory", "random", "reference", "states", "testing"]
