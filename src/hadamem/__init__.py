"""hadamem: memory for reinforcement-learning agents, built around Stable Hadamard Memory."""

from __future__ import annotations

import os
import sys

if sys.argv[:1] == ["-m"] and not getattr(sys.flags, "safe_path", False) and sys.path[:1] in ([""], [os.getcwd()]) \
        and any(one == "-m" and two.partition(".")[0] == __name__ for one, two in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)):
    sys.path.pop(0)      # `python -m hadamem`: files in the current folder must not replace the modules that are imported below

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
    from . import agents, bench, diagnostics, envs, experiments, reference, reports, runs, statistics, testing, training, view
    from .api import train
    from .training.policy import load_policy

_TRAINING = ("gymnasium", "safetensors", "scipy", "yaml")
__getattr__, __dir__ = _lazy.attach(
    __name__,
    {**{name: name for name in ("agents", "bench", "diagnostics", "envs", "experiments", "reference", "reports", "runs", "statistics",
                                "testing", "training", "view")},
     "load_policy": "training.policy", "train": "api"},
    needs={"load_policy": _TRAINING, "train": _TRAINING}, extra="train",
)

__all__ = ["DNC", "FFM", "FWP", "GPT2", "GRU", "LSTM", "MLSTM", "S6", "SHM", "Calibration", "Factors", "FastWeights", "Hebbian",
           "LinearAttention", "Memory", "NoMemory",
           "__version__", "agents", "bench", "diagnostics", "envs", "experiments",
           "kernels", "list_memories", "load_policy", "make_memory", "random", "reference", "register_memory", "reports", "runs", "states",
           "statistics", "testing", "train", "training", "view"]
