"""The studies of the paper, and a bench, by name: files of `studies` with `make(protocol, quick, budget, ...)`, imported when used."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from typing import Any, NamedTuple

from ..names import did_you_mean, shorten
from .study import MOST_SEEDS, Study


class Entry(NamedTuple):
    module: str
    text: str                # for lists
    trains: bool             # trains agents, so that the whole of it needs a GPU
    protocols: tuple[str, ...] = ("fair", "release")


PRESETS = ("fair", "release", "best")      # popgym-fair and so on
PROTOCOLS = (*PRESETS, "gae", "best-small", "gae-small")
PAPER = {
    "popgym-table": Entry("popgym_table", "Table 2: POPGym returns of 12 tasks and every memory", True, (*PRESETS, "gae")),
    "meta-rl": Entry("meta_rl", "Wind and Point Robot: success on tasks that were not trained on", True),
    "credit": Entry("credit", "Visual Match and Key-to-Door: success after 250 and 500 distracting steps", True),
    "calibration": Entry("calibration", "six calibrations and ours on Autoencode-Easy", True, PRESETS),
    "popgym-ablation": Entry("ablation", "what the settings of the presets popgym-best and popgym-gae are worth", True,
                             ("best", "gae", "best-small", "gae-small")),
    "memory-size": Entry("memory_size", "returns for memories from 24 x 24 to 512 x 512", True, PRESETS),
    "clipping": Entry("clipping", "gradient clipping, the remedy for instability that the paper names", True, PRESETS),
    "vanishing": Entry("vanishing", "products of calibrations over 100 episodes", False),
    "inference-time": Entry("inference_time", "milliseconds per acting step, memory by memory and size by size", False),
    "memory-elements": Entry("memory_elements", "numbers in a state, parameters and checkpoint sizes", False),
    "recall-limit": Entry("recall_limit", "Remark 1: what a memory of H x H recalls without calibration", False),
    "forgetting": Entry("forgetting", "M and C over the phases of Visual Match", False),
    "theory": Entry("theory", "Algorithm 1, Propositions 3, 4 and 5 and the closed form, checked with numbers", False),
}
BENCH = {"learning": Entry("learning", "everyday tasks: the default settings beside sb3-contrib's RecurrentPPO", True, ("fair",))}


def make_study(name: str, *, protocol: str | None = None, quick: bool = False, budget: float = 1.0, **options: Any) -> Study:
    """A study of PAPER or BENCH. protocol: None for its first. options: of that study, such as seeds or memories; None: its own choice."""
    entries = {**PAPER, **BENCH}
    if name not in entries:
        raise ValueError(f"unknown study {name!r};{did_you_mean(name, PAPER)} choose from {', '.join(PAPER)}")
    usual = entries[name].protocols[0]
    protocol = usual if protocol is None else protocol
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
    if protocol not in entries[name].protocols:
        have = ", ".join(other for other, entry in PAPER.items() if protocol in entry.protocols)
        raise ValueError(f"study {name!r} has no protocol {protocol!r}, only {' and '.join(entries[name].protocols)}; {have} have it")
    if not 0 < budget < float("inf"):
        raise ValueError(f"budget must be a positive factor, got {budget}")
    seeds = options.get("seeds")
    if seeds is not None and not 1 <= seeds <= MOST_SEEDS:
        raise ValueError(f"seeds must be 1 to {MOST_SEEDS}, got {shorten(seeds)}")
    if quick and budget != 1.0:
        raise ValueError("--quick has a size of its own; leave out --budget")
    make = importlib.import_module(f".studies.{entries[name].module}", __package__).make
    given = {key: value for key, value in options.items() if value is not None}
    known = inspect.signature(make).parameters
    unknown = next((key for key in given if key not in known), None)
    if unknown is not None:
        raise ValueError(f"study {name!r} has no option {unknown!r}")
    study = make(protocol=protocol, quick=quick, budget=budget, **given)
    source = {"paper" if name in PAPER else "bench": name, "protocol": protocol, "quick": quick, "budget": budget, **given}
    return replace(study, name=f"{name}{'' if protocol == usual else '-' + protocol}{'-quick' if quick else ''}", source=source)
