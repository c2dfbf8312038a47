"""Memories behind one interface, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from .. import lookup
from ..names import did_you_mean
from . import options as _options
from . import own
from .base import Memory
from .calibration import Calibration, Factors
from .dnc import DNC
from .fast_weights import FastWeights
from .ffm import FFM
from .fwp import FWP
from .gpt2 import GPT2
from .hebbian import Hebbian
from .linear_attention import LinearAttention
from .mlstm import MLSTM
from .none import NoMemory
from .rnn import GRU, LSTM
from .s6 import S6
from .shm import SHM

MEMORIES: dict[str, Callable[..., Memory]] = {
    "shm": SHM,
    "shm-paper": SHM.paper,
    "shm-release": SHM.release,
    "hebbian": Hebbian,
    "linear_attention": LinearAttention,
    "fast_weights": FastWeights,
    "fwp": FWP,
    "mlstm": MLSTM,
    "ffm": FFM,
    "s6": S6,
    "gru": GRU,
    "lstm": LSTM,
    "gpt2": GPT2,
    "dnc": DNC,
    "none": NoMemory,
}


def list_memories() -> list[str]:
    """Names that `make_memory` knows."""
    return list(MEMORIES)


def make_memory(name: str, input_size: int, output_size: int | None = None, **options: Any) -> Memory:
    """Build a memory by name. `options` are its keyword arguments; `memory_size`, which all of them take, means what is natural to each.

    Your own memory has the name given to `register_memory`, or "package.module:Class".
    """
    return own.build_memory(name, find_memory(name), input_size, output_size, options)


def resolve_options(name: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All options that `make_memory(name, ..., **options)` builds with: defaults spelled out, "auto" replaced by its value.

    `make_memory(name, ..., **resolve_options(name, options))` builds the same memory, also after a default has changed. The values are
    plain ones for a config file. `backend` may still be "auto", because it depends on the machine. For classes and functions registered by
    users, the result holds the defaults in their signatures that JSON can hold, and every option that was given.
    """
    return _options.resolve(find_memory(name), dict(options or {}))


def find_memory(name: str) -> Callable[..., Memory]:
    """The class or function behind a name of `make_memory`; a ValueError says what is wrong with the name."""
    if isinstance(name, str) and name in MEMORIES:
        return MEMORIES[name]
    if isinstance(name, str) and ":" in name:
        return lookup.find(name, (Memory,), "hm.Memory")
    raise ValueError(f"unknown memory {name!r};{did_you_mean(name, MEMORIES)} choose from {', '.join(MEMORIES)}; for your own, write "
                     "package.module:Class, or register it with hm.register_memory in a module that is imported")


def register_memory(name: str, factory: Callable[..., Memory] | None = None, *, overwrite: bool = False) -> Any:
    """Give your own memory a name for `make_memory` and everything that calls it: `hm.train(env, memory="mine")`.

        hm.register_memory("mine", MyMemory)      # or above the class: @hm.register_memory("mine")

    factory: a `hm.Memory` class, or a function (input_size, output_size, **options) that makes one. Returns it. Registering the same class
    again is allowed, for notebook cells that run twice. A name lasts as long as the process: code that loads a run later has to register
    it again, or the run uses "package.module:Class" as its memory instead.
    """
    if factory is None and isinstance(name, str):
        return functools.partial(register_memory, name, overwrite=overwrite)
    own.check_entry(name, factory, MEMORIES, overwrite)
    MEMORIES[name] = factory
    return factory


__all__ = ["DNC", "FFM", "FWP", "GPT2", "GRU", "LSTM", "MLSTM", "S6", "SHM", "Calibration", "Factors", "FastWeights", "Hebbian",
           "LinearAttention", "Memory", "NoMemory", "find_memory", "list_memories", "make_memory", "register_memory",
           "resolve_options"]
