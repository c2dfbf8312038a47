"""`hadamem bench memory`: time memories on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..names import did_you_mean
from .errors import UsageError
from .options import given_options


def arguments(parser: argparse.ArgumentParser) -> None:
    add: Callable[..., Any] = parser.add_argument   # defaults are in bench.memory.Settings and bench.zoo.Settings
    add("--all", action="store_true", default=None, help="compare all memories in one table instead, at the paper's sizes and at equal "
        "state size; allows --only, --state, --device, --batch and --time (one value each), --input-size, --peer-size, --repeats, "
        "--limit-seconds, --seed and --out")
    add("--only", nargs="+", metavar="NAME", help="with --all: only these memories")
    add("--state", type=int, metavar="N", help="with --all: numbers in the state for the second table (default: 1024)")
    add("--config", metavar="FILE", help="settings from a .json or .yaml file, with the names of the options; options override them")
    add("--device", help="auto, cpu, cuda, cuda:1, ... (default: auto, the GPU if there is one)")
    add("--batch", type=int, nargs="+", metavar="B", help="batch sizes")
    add("--time", type=int, nargs="+", metavar="T", help="sequence lengths")
    add("--memory-size", type=int, nargs="+", metavar="H", help="SHM memory sizes: M is H x H")
    add("--input-size", type=int, metavar="D", help="features per step (default: 64)")
    add("--peer-size", type=int, metavar="N", help="hidden size of nn.GRU and nn.LSTM (default: 256)")
    add("--dtype", help="float32 (default), float64, bfloat16 or float16")
    add("--what", nargs="+", metavar="PART", help="op (hm.kernels.shm), module (hm.SHM), step (acting), all (default)")
    add("--backends", nargs="+", metavar="NAME", help="backends of SHM to time (default: all usable on the device)")
    add("--repeats", type=int, metavar="N", help="most timed calls per case")
    add("--limit-seconds", type=float, metavar="S", help="time limit per case; cases with longer calls are skipped (with --all: run once)")
    add("--seed", type=int, help="seed of weights and inputs (default: 0)")
    add("--quick", action="store_true", default=None, help="a small grid without the scan backend, about a minute on two CPU cores")
    add("--out", metavar="DIR", help="folder for results.json and the plots (default: bench/memory, with --all bench/memories)")
    add("--no-plots", action="store_false", dest="plots", default=None, help="do not draw plots")


def run(args: argparse.Namespace) -> int:
    from ..bench import memory, zoo

    given = given_options(args)
    every, config = given.pop("all", False), given.pop("config", None)
    fields = [f.name for f in dataclasses.fields(zoo.Settings if every else memory.Settings)]
    values = {**({} if config is None else _read_config(config, fields)), **given}
    try:
        foreign = [key for key in given if key not in fields]
        if foreign:
            raise ValueError(f"--{foreign[0].replace('_', '-')} works only {'without' if every else 'with'} --all")
        if every:
            zoo.run(zoo.Settings(**{key: _single(key, value) for key, value in values.items()}))
        else:
            memory.run(memory.Settings.make(**values))
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    return 0


def _single(key: str, value: Any) -> Any:
    """The value of an option that takes several values without --all."""
    if not isinstance(value, list):
        return value
    if key == "only":
        return tuple(value)
    if len(value) != 1:
        raise ValueError(f"--{key} takes one value with --all, got {len(value)}")
    return value[0]


def _read_config(path: str, known: Sequence[str]) -> dict[str, Any]:
    """Read settings from a JSON or YAML file; keys may be written with dashes."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:      # the latter: a name that no path may have, or no text
        raise UsageError(f"--config {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    values = _parse(path, text)
    if not isinstance(values, dict):
        raise UsageError(f"--config {path} must hold a mapping of option names to values, got {type(values).__name__}")
    values = {str(key).replace("-", "_"): value for key, value in values.items()}
    for key in values:
        if key not in known:
            raise UsageError(f"--config {path} has the unknown key {key!r};{did_you_mean(key, known)} choose from {', '.join(known)}")
    return values


def _parse(path: str, text: str) -> Any:
    try:
        if Path(path).suffix.lower() not in (".yaml", ".yml"):
            return json.loads(text)
        try:
            import yaml
        except ImportError as error:
            raise UsageError(f"--config {path} is YAML and needs pyyaml; install it or use a .json file") from error
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
    except ValueError as error:      # json.JSONDecodeError is one
        raise UsageError(f"--config {path} cannot be parsed: {' '.join(str(error).split())}") from error
