"""Options of the command line, one for each field of a run's configuration: `--ppo.learning-rate 3e-4`, `--set ppo.epochs=4`."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .cli.options import NameValue, read_value
from .training.config import ELSEWHERE, TrainConfig

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping", tuple: "names"}
SHORT = {"network.memory": "--memory", "env_options": "--env-option", "network.memory_options": "--memory-option"}


class Setting(NamedTuple):
    """A field by its dotted name: what it takes, and the comment beside it."""

    name: str
    kind: type
    optional: bool
    help: str

    @property
    def flag(self) -> str:
        return SHORT.get(self.name, "--" + self.name.replace("_", "-"))

    def read(self, value: Any) -> Any:
        """A value from a file or the command line, where all is text; ValueError if it does not fit."""
        if isinstance(value, str) and self.optional and value.lower() in ("none", "null"):
            return None
        if value is None and self.optional:
            return None
        if isinstance(value, str) and self.kind is not str:
            value = _read_text(value, self.kind)
        if self.kind is tuple and isinstance(value, list):
            return tuple(value)
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if self.kind is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if not isinstance(value, self.kind) or (self.kind is not bool and isinstance(value, bool)):
            raise ValueError(f"{self.name} must be {WORDS[self.kind]}{' or none' if self.optional else ''}, got {value!r}")
        return value


def find_settings(kind: Any = TrainConfig, path: str = "") -> dict[str, Setting]:
    """All fields of a configuration by dotted name, those of its parts included."""
    found: dict[str, Setting] = {}
    hints, comments = typing.get_type_hints(kind), _comments(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            found |= find_settings(hint, f"{path}{field.name}.")
            continue
        union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        inner = next(h for h in typing.get_args(hint) if h is not type(None)) if union else hint
        name = path + field.name
        found[name] = Setting(name, typing.get_origin(inner) or inner, union, comments.get(field.name, ""))
    return found


def add_option(add: Callable[..., Any], setting: Setting, help: str) -> None:
    """One option for a setting; what was not given does not appear among the arguments."""
    common: dict[str, Any] = {"dest": setting.name, "default": argparse.SUPPRESS, "help": help.replace("%", "%%")}
    if setting.kind is dict:
        add(setting.flag, action=NameValue, metavar="NAME=VALUE", **common)
    elif setting.kind is bool:
        add(setting.flag, nargs="?", const=True, type=_typed(setting), metavar="BOOL", **common)
    else:
        add(setting.flag, type=_typed(setting), metavar={int: "N", float: "X", tuple: "NAME,NAME"}.get(setting.kind, "NAME"), **common)


def read_assignments(texts: list[str], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """`--set ppo.epochs=4 env_options.k=3`: values by dotted name; ValueError if a text says something else."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ValueError(f"--set takes NAME=VALUE, got {text!r}")
        outer, _, key = name.rpartition(".")
        if outer in settings and settings[outer].kind is dict:
            found.setdefault(outer, {})[key] = read_value(value)
        else:
            found[known(name, settings).name] = known(name, settings).read(value)
    return found


def known(name: str, settings: Mapping[str, Setting]) -> Setting:
    """The setting of a dotted name; `memory` is short for `network.memory`."""
    name = "network.memory" if name == "memory" else name
    if name not in settings:
        ends = {other.rpartition(".")[2]: other for other in settings} | ELSEWHERE
        near = difflib.get_close_matches(name, settings, n=1) if name.rpartition(".")[2] not in ELSEWHERE else []
        near = near or [ends[end] for end in difflib.get_close_matches(name.rpartition(".")[2], ends, n=1)]
        hint = f" did you mean {near[0]!r}?" if near else f" known are {', '.join(settings)}"
        raise ValueError(f"unknown setting {name!r};{hint}")
    return settings[name]


def flag_elsewhere(option: str) -> str | None:
    """The option that other libraries call `option`; None if it is not known."""
    name = ELSEWHERE.get(option.lstrip("-").rpartition(".")[2].replace("-", "_"))
    return None if name is None else find_settings()[name].flag


def flatten(values: Mapping[str, Any], settings: Mapping[str, Setting], path: str = "") -> dict[str, Any]:
    """Nested values, as in config.yaml, by dotted name and checked."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        full = path + str(name).replace("-", "_")
        inner = [other for other in settings if other.startswith(full + ".")]
        if value is None and (inner or (full in settings and settings[full].kind is dict)):
            continue      # a section with nothing in it
        if inner and not isinstance(value, Mapping):
            raise ValueError(f"{full} is a section with settings such as {inner[0]}, got {value!r}")
        if inner:
            found |= flatten(value, settings, full + ".")
        else:
            setting = known(full, settings)
            found[setting.name] = setting.read(value)
    return found


def _typed(setting: Setting) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return setting.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return read


def _read_text(text: str, kind: type) -> Any:
    """A number, truth value or mapping from text; the text itself if it is none."""
    if kind is bool:
        return True if text.lower() in TRUE else False if text.lower() in FALSE else text
    if kind is dict:
        return read_value(text)
    if kind is tuple:
        return tuple(word for word in re.split(r"[,\s]+", text) if word and word.lower() != "none")
    try:
        return int(text) if kind is int and not re.search(r"[.eE]", text) else float(text)
    except ValueError:
        return text


def _comments(kind: Any) -> dict[str, str]:
    """The comments beside the fields of a class; none where its source is not at hand."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return {}
    return {name: words.strip() for name, words in re.findall(r"^    (\w+): [^#\n]*#(.*)$", source, flags=re.MULTILINE)}
