"""hadamem: memory for reinforcement-learning agents, built around Stable Hadamard Memory."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from . import kernels, random, states
from ._version import __version__
from .memory import (
    DNC,
    FFM,
    FWP,
    GPT2,
    GRU,
    LSTM,
    MLSTM,
    S6,
    SHM,
    Calibration,
    Factors,
    FastWeights,
    Hebbian,
    LinearAttention,
    Memory,
    NoMemory,
    list_memories,
    make_memory,
    register_memory,
)

if TYPE_CHECKING:
    from . import bench, diagnostics, envs, reference, testing, training
    from .training.api import train
    from .training.policy import load_policy

_LAZY = ("bench", "diagnostics", "envs", "reference", "testing", "training")   # imported on first use, to keep `import hadamem` light
_TRAINING = {"train": "api", "load_policy": "policy"}                          # and these from `training`


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _TRAINING:
        for needed in ("gymnasium", "safetensors", "yaml"):
            if importlib.util.find_spec(needed) is None:
                raise ImportError(f"hm.{name} needs {needed}: pip install 'hadamem[train]'")
        return getattr(importlib.import_module(f"{__name__}.training.{_TRAINING[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_TRAINING})


__all__ = ["DNC", "FFM", "FWP", "GPT2", "GRU", "LSTM", "MLSTM", "S6", "SHM", "Calibration", "Factors", "FastWeights", "Hebbian",
           "LinearAttention", "Memory", "NoMemory",
           "__version__", "bench", "diagnostics", "envs",
           "kernels", "list_memories", "load_policy", "make_memory", "random", "reference", "register_memory", "states", "testing", "train",
           "training"]
