"""hadamem: memory for reinforcement-learning agents, built around Stable Hadamard Memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _lazy, kernels, random, states
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
    from . import agents, bench, diagnostics, envs, reference, runs, testing, training, view
    from .api import train
    from .training.policy import load_policy

_TRAINING = ("gymnasium", "safetensors", "scipy", "yaml")
__getattr__, __dir__ = _lazy.attach(
    __name__,
    {"agents": "agents", "bench": "bench", "diagnostics": "diagnostics", "envs": "envs", "load_policy": "training.policy",
     "reference": "reference", "runs": "runs", "view": "view", "testing": "testing", "train": "api", "training": "training"},
    needs={"load_policy": _TRAINING, "train": _TRAINING}, extra="train",
)

__all__ = ["DNC", "FFM", "FWP", "GPT2", "GRU", "LSTM", "MLSTM", "S6", "SHM", "Calibration", "Factors", "FastWeights", "Hebbian",
           "LinearAttention", "Memory", "NoMemory",
           "__version__", "agents", "bench", "diagnostics", "envs",
           "kernels", "list_memories", "load_policy", "make_memory", "random", "reference", "register_memory", "runs", "states", "testing",
           "train", "training", "view"]
