"""Studies of your own: envs x agents x memories x variants x seeds, from Python or a YAML file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..names import did_you_mean, shorten
from ..runs.config import read_values
from ..runs.folder import read_config
from .study import MOST_SEEDS, SCORES, Study, TrainTask, check_evaluated

KEYS = {      # of the YAML file, with what they mean
    "name": "of the study, and of its folder in studies/ (default: the file's name)",
    "title": "shown on top of the report",
    "about": "what the study asks, in a paragraph",
    "envs": "a list of env names; or of mappings: {env: NAME, label: TEXT, settings of the run ...}",
    "memories": "a list of memory names; or a mapping from labels to settings: {big: {memory: shm, memory_size: 128}}",
    "agents": "a list of agents (default: the preset's)",
    "variants": "a mapping from labels to settings: each is run with every env, memory and seed",
    "seeds": "how many, or a list of them (default: 3)",
    "steps": "env steps of each run",
    "preset": "which preset the settings start from (default: default)",
    "settings": "settings of all runs, by the names of `hadamem train --help`",
    "score": f"what is compared: {', '.join(SCORES)} (default: return)",
    "scale": "scores are multiplied by it (default: 1)",
}


def grid(name: str, envs: Any, memories: Any = ("shm",), *, agents: Sequence[str] | None = None, variants: Mapping[str, Any] | None = None,
         seeds: int | Sequence[int] = 3, steps: int | None = None, preset: str = "default", settings: Mapping[str, Any] | None = None,
         title: str = "", about: str = "", score: str = "return", scale: float = 1.0) -> Study:
    """A study that compares memories on envs: `grid("mine", ["CartPole-v1"], ["shm", "gru"], seeds=3, steps=100_000)`.

    The arguments are the keys of a study's YAML file, see KEYS. Every run is checked before anything is trained.
    """
    for key, value in (("name", name), ("title", title), ("about", about)):
        if not isinstance(value, str | None):
            raise ValueError(f"{key} must be text, got {value!r}")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < float("inf"):
        raise ValueError(f"scale must be a positive number, got {scale!r}")
    if variants is not None and not isinstance(variants, Mapping):
        raise ValueError(f"variants must be a mapping from labels to settings, got {variants!r}")
    numbers = seed_list(seeds)
    shared = {**({} if steps is None else {"total_steps": steps}), **settings_of("settings", settings)}
    axes = {      # label of the table: its values, each with settings
        "task": _labelled("envs", envs, "env"),
        "agent": _labelled("agents", agents, "agent") if agents else {"": {}},
        "memory": _labelled("memories", memories, "memory"),
        "variant": {str(label): settings_of(f"variants: {label}", changes) for label, changes in variants.items()}
        if variants else {"": {}},
    }
    tasks = []
    for chosen in itertools.product(*(axis.items() for axis in axes.values())):
        labels = {axis: label for axis, (label, _) in zip(axes, chosen, strict=True) if label}
        changes = {key: value for _, part in chosen for key, value in part.items()}
        for seed in numbers:
            text = "-".join([*labels.values(), str(seed)])
            try:
                whole = {"preset": preset, **read_values({**shared, **changes}, preset), "seed": seed}
                task = TrainTask(re.sub(r"[^A-Za-z0-9._+=-]+", "-", text).strip("-"), labels, whole)
                check_evaluated(score, task.config())
            except (ValueError, TypeError) as error:
                raise ValueError(f"{text}: {error}") from error
            tasks.append(task)
    return Study(name, title or name, tasks, about or "", score, float(scale))


def read_study(file: Path) -> Study:
    """The study in a YAML file."""
    content = read_keys(file, KEYS, "study", needed=("envs", "memories"))
    try:
        study = grid(**{"name": re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-"), **content})
        return replace(study, source={"file": str(file)})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error


def read_keys(file: Path, keys: Mapping[str, str], what: str, needed: Sequence[str]) -> dict[str, Any]:
    """The content of a YAML file that describes a study or sweep. keys: what it may have, with what they mean; needed: what it must."""
    if not file.exists():
        raise ValueError(f"there is no file {file}")
    content = read_config(file, written=True)
    for key in content:
        if key not in keys:
            raise ValueError(f"{file}: unknown key {key!r};{did_you_mean(str(key), keys)} a {what} has {', '.join(keys)}")
    for key in needed:
        if not content.get(key):
            raise ValueError(f"{file}: {key} is missing: {keys[key]}")
    return content


def seed_list(seeds: Any) -> list[int]:
    """The seeds of a study: how many, or a list of them."""
    if isinstance(seeds, int) and seeds > MOST_SEEDS:
        raise ValueError(f"seeds must be at most {MOST_SEEDS}, got {shorten(seeds)}")
    numbers = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    if not isinstance(numbers, Sequence) or not numbers or any(not isinstance(n, int) or isinstance(n, bool) for n in numbers):
        raise ValueError(f"seeds must be how many (at least 1) or a list of integers, got {seeds!r}")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"seeds has a number twice: {list(numbers)}")
    return list(numbers)


def _labelled(key: str, entries: Any, setting: str) -> dict[str, dict[str, Any]]:
    """Labels and settings of one axis. An entry is a name, or a mapping with that setting."""
    if isinstance(entries, str):
        entries = [entries]
    if isinstance(entries, Mapping):
        entries = [{"label": label, **settings_of(f"{key}: {label}", changes)} for label, changes in entries.items()]
    if not isinstance(entries, Sequence) or not entries:
        raise ValueError(f"{key} must be a list, got {entries!r}: {KEYS[key]}")
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        changes = {setting: entry} if isinstance(entry, str) else settings_of(key, entry)
        if setting not in changes:
            raise ValueError(f"{key}: {entry!r} must be a name, or have {setting!r}")
        label = str(changes.pop("label", changes[setting]))
        if label in found:
            raise ValueError(f"{key} has {label!r} twice; give one of them another label")
        found[label] = changes
    return found


def settings_of(key: str, value: Any) -> dict[str, Any]:
    """A mapping of settings, checked for what is not one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} must be a mapping of settings, got {value!r}")
    for name in ("seed", "preset"):
        if name in value:
            raise ValueError(f"{key} has {name!r}, which is a key of the study itself")
    return {str(name): x for name, x in value.items()}
