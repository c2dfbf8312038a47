"""A sweep as data: the runs, the settings to search and their ranges, from Python or a YAML file. Nothing runs here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..names import did_you_mean
from ..runs.config import TrainConfig, make_config, read_values, settings_table
from ..runs.presets import PRESETS
from ..runs.settings import Setting
from .own import read_keys, seed_list, settings_of
from .study import SCORES, TrainTask, check_evaluated, check_name

KEYS = {      # of the YAML file, with what they mean
    "name": "of the sweep, and of its folder in sweeps/ (default: the file's name)",
    "env": "what to train on",
    "memory": "the memory (default: shm, or the preset's)",
    "agent": "the algorithm (default: the preset's)",
    "preset": "which preset the settings start from (default: default)",
    "steps": "env steps of each run",
    "seeds": "runs of a trial: how many, or a list of seeds (default: 1); its value is their mean score",
    "settings": "settings of all runs, by the names of `hadamem train --help`",
    "score": f"what is compared: {', '.join(SCORES)} (default: return)",
    "search": "a mapping from settings to ranges: {low: 1e-5, high: 1e-2, log: true} or {choices: [32, 64]}",
    "trials": "how many settings are tried (default: 30)",
    "direction": "maximize (default) or minimize the score",
    "pruning": "median (default): stop a trial that does worse than half of the finished ones at the same step; none: never",
    "warmup_trials": "trials that must have finished before one is pruned (default: 5)",
    "warmup_steps": "env steps of a run before it is pruned (default: a quarter of its steps)",
    "sampler": "tpe (default) or random",
    "seed": "of the sampler (default: 0)",
}
RANGE_KEYS = ("low", "high", "log", "choices")
WORDS = {"direction": ("maximize", "minimize"), "pruning": ("median", "none"), "sampler": ("tpe", "random"), "score": SCORES}
FIXED = {      # settings that cannot be searched, and why
    "env": "returns of different envs cannot be compared", "agent": "it decides what other settings there are; make a sweep for each",
    "preset": "it decides where the other settings start; make a sweep for each", "seed": "use the key seeds",
    "total_steps": "longer runs are better anyway; use the key steps", "env_options": "returns of different envs cannot be compared",
}


@dataclass(frozen=True)
class Range:
    """Where a setting is searched: low .. high (inclusive, `whole` numbers or not), or one of the choices."""

    name: str                                # of the setting, in full: "ppo.learning_rate"
    low: float | None = None
    high: float | None = None
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that must all be possible."""
        return self.choices or (self.low, self.high)

    @property
    def keys(self) -> list[Any]:
        """The choices as Optuna can hold them: lists and mappings as JSON."""
        return [x if x is None or isinstance(x, (bool, int, float, str)) else json.dumps(x) for x in self.choices]

    def value(self, key: Any) -> Any:
        """What Optuna holds as a value of the setting."""
        return self.choices[self.keys.index(key)] if self.choices else key


@dataclass(frozen=True)
class Sweep:
    """Made by `make_sweep`, which checks everything."""

    name: str
    settings: Mapping[str, Any]              # of all runs, for `make_config`: preset, env, memory, total_steps, ...
    search: Mapping[str, Range]
    seeds: tuple[int, ...] = (0,)
    score: str = "return"
    trials: int = 30
    direction: str = "maximize"
    pruning: str = "median"
    warmup_trials: int = 5
    warmup_steps: int = 0
    sampler: str = "tpe"
    seed: int = 0

    def config(self, values: Mapping[str, Any], seed: int | None = None) -> TrainConfig:
        """The settings of a run. values: those that are searched."""
        return make_config(**{**self.settings, **values, "seed": self.seeds[0] if seed is None else seed})

    def extremes(self) -> list[dict[str, Any]]:
        """Values at the ends of every range, one range at a time: each must be a possible run."""
        first = {name: found.ends[0] for name, found in self.search.items()}
        return [first, *({**first, name: end} for name, found in self.search.items() for end in found.ends[1:])]

    def tasks(self) -> list[TrainTask]:
        """Runs at the ends of the ranges, for `running.check`."""
        return [TrainTask(f"a run with {json.dumps(values)}", {}, {**self.settings, **values}) for values in self.extremes()]

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it, for `from_plain`."""
        return json.loads(json.dumps(asdict(self)))


def from_plain(values: Mapping[str, Any]) -> Sweep:
    ranges = {name: Range(**{**part, "choices": tuple(part["choices"])}) for name, part in values["search"].items()}
    return Sweep(**{**values, "seeds": tuple(values["seeds"]), "search": ranges})


def read_sweep(file: Path) -> Sweep:
    """The sweep in a YAML file."""
    content = read_keys(file, KEYS, "sweep", needed=("search",))
    try:
        return make_sweep(**{"name": re.sub(r"[^A-Za-z0-9._+=-]+", "-", file.stem), **content})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error


def make_sweep(name: str, search: Any, *, env: str | None = None, memory: str | None = None, agent: str | None = None,
               preset: str = "default", steps: int | None = None, seeds: Any = 1, settings: Mapping[str, Any] | None = None,
               score: str = "return", trials: int = 30, direction: str = "maximize", pruning: str | None = "median",
               warmup_trials: int = 5, warmup_steps: int | None = None, sampler: str = "tpe", seed: int = 0) -> Sweep:
    """A sweep; the arguments are the keys of its YAML file, see KEYS. Every range is checked at its ends."""
    pruning = "none" if pruning is None or pruning is False else pruning
    check_name("sweep", name)
    for key, value in (("score", score), ("direction", direction), ("pruning", pruning), ("sampler", sampler)):
        if value not in WORDS[key]:
            raise ValueError(f"{key} must be one of {', '.join(WORDS[key])}, got {value!r}")
    for key, number, least in (("trials", trials, 1), ("warmup_trials", warmup_trials, 0), ("warmup_steps", warmup_steps, 0),
                               ("seed", seed, 0)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < least):
            raise ValueError(f"{key} must be a whole number of at least {least}, got {number!r}")
    given = {"env": env, "memory": memory, "agent": agent, "total_steps": steps}
    shared = settings_of("settings", settings)
    whole = {"preset": preset, **read_values({**{key: value for key, value in given.items() if value is not None}, **shared}, preset)}
    found = PRESETS.get(preset)
    if "env" not in whole and (found is None or "env" not in found.settings):
        raise ValueError(f"env is missing: {KEYS['env']}")
    base = make_config(**whole)
    table = settings_table(base.agent)
    if not isinstance(search, Mapping) or not search:
        raise ValueError(f"search must be {KEYS['search']}; got {search!r}")
    ranges = dict[str, Range]()
    set_already = set(table.flatten(shared, read=True)) | ({"network.memory"} if memory else set())
    for key, spec in search.items():
        try:
            setting = table.find(key)
            if setting.name in set_already | set(ranges):
                raise ValueError("it is set twice; leave one out")
            ranges[setting.name] = _range(setting, spec)
        except ValueError as error:
            raise ValueError(f"search: {key}: {error}") from error
    check_evaluated(score, base)
    warmup = base.total_steps // 4 if warmup_steps is None else warmup_steps
    sweep = Sweep(name, whole, ranges, tuple(seed_list(seeds)), score, trials, direction, pruning, warmup_trials, warmup, sampler, seed)
    for values in sweep.extremes():
        try:
            sweep.config(values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"search: with {', '.join(f'{key} {value}' for key, value in values.items())}: {error}") from error
    return sweep


def _range(setting: Setting, spec: Any) -> Range:
    if setting.name in FIXED:
        raise ValueError(f"it cannot be searched: {FIXED[setting.name]}")
    if not isinstance(spec, Mapping):
        raise ValueError(f"a range is {{low: X, high: Y}} or {{choices: [X, Y]}}, got {spec!r}; what is fixed belongs in settings")
    for key in spec:
        if key not in RANGE_KEYS:
            raise ValueError(f"unknown key {key!r};{did_you_mean(str(key), RANGE_KEYS)} a range has {', '.join(RANGE_KEYS)}")
    if "choices" in spec:
        choices = spec["choices"]
        if len(spec) > 1:
            raise ValueError("a range has low and high, or choices, not both")
        if not isinstance(choices, list) or len(choices) < 2:
            raise ValueError(f"choices must be a list of at least two values, got {choices!r}; what is fixed belongs in settings")
        found = [setting.read(choice) for choice in choices]
        if any(found.count(choice) > 1 for choice in found):
            raise ValueError(f"choices has a value twice: {choices}; leave one out")
        return Range(setting.name, choices=tuple(found))
    if "low" not in spec or "high" not in spec:
        raise ValueError(f"a range has low and high, or choices, got {dict(spec)}; add {'high' if 'low' in spec else 'low'}")
    if setting.kind not in (int, float):
        raise ValueError("it is not a number, so it has no low and high; use {choices: [...]}")
    low, high, log = setting.check(spec["low"]), setting.check(spec["high"]), spec.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"log must be true or false, got {log!r}")
    if low is None or high is None or not low < high:
        fix = "what is fixed belongs in settings" if low == high else "swap them"
        raise ValueError(f"low must be below high, got low {low} and high {high}; {fix}")
    if log and low <= 0:
        raise ValueError(f"low must be above 0 with log: true, got {low}; raise it, or leave out log")
    return Range(setting.name, low, high, log, setting.kind is int)
