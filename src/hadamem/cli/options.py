"""Options that several commands share: NAME=VALUE pairs, settings of a run, and what was given on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ..runs.settings import ALIASES, Setting, Table, parse_value

INTERNAL = ("command", "parser", "debug")   # set by the command line itself, not settings of a command
RESERVED = ("name", "out", "resume", "config", "set", "plain", "seeds", "jobs", "debug", "help", "trust")      # options of `train` itself
PAIRS = {"env_options": "--env-option", "eval_env_options": "--eval-env-option", "network.memory_options": "--memory-option",
         "network.actor_memory_options": "--actor-memory-option"}


def add_trust(parser: argparse.ArgumentParser) -> None:
    """The option that lets names in files be imported; `hadamem.cli` looks at it."""
    parser.add_argument("--trust", action="store_true", help="import classes that the files name as package.module:Class, which runs their "
                                                             "code; those that you name on the command line need no --trust")


class NameValue(argparse.Action):
    """Collect repeated NAME=VALUE options in a dict."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        name, equals, value = str(values).partition("=")
        if not equals or not name.isidentifier():
            parser.error(f"{option} must look like NAME=VALUE, got {values!r}")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), name: parse_value(value)})


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options given on the command line: those that are neither None nor empty."""
    return {name: value for name, value in vars(args).items() if name not in INTERNAL and value not in (None, [])}


def setting_flags(setting: Setting, table: Table) -> list[str]:
    """How a setting is written: the short form first, e.g. --lr, --learning-rate, --ppo.learning-rate."""
    if setting.name in PAIRS:
        return [PAIRS[setting.name]]
    names = [alias for alias, field in ALIASES.items() if table.bare.get(field) == setting.name]
    names += [setting.field] if table.bare.get(setting.field) == setting.name and setting.field not in RESERVED else []
    return ["--" + name.replace("_", "-") for name in dict.fromkeys([*names, setting.name])]


def add_setting(add: Callable[..., Any], setting: Setting, table: Table, help: str) -> None:
    """Add the option of a setting. If it is not given, it does not appear among the arguments."""
    flags = setting_flags(setting, table)
    how: dict[str, Any] = {"dest": setting.name, "default": argparse.SUPPRESS}
    if setting.kind is dict:
        how |= {"action": NameValue, "metavar": "NAME=VALUE"}
    else:
        metavar = {int: "N", float: "X", bool: "BOOL", tuple: "N,N" if setting.item is int else "NAME,NAME"}.get(setting.kind, "NAME")
        how |= {"type": _parser(setting), "metavar": metavar, **({"nargs": "?", "const": True} if setting.kind is bool else {})}
    shown = [flag for flag in flags if "." not in flag] or flags
    add(*shown, help=help.replace("%", "%%"), **how)
    for flag in flags:
        if flag not in shown:
            add(flag, help=argparse.SUPPRESS, **how)      # --ppo.gamma works as well, and would only fill the help
    if setting.kind is bool:                              # so does --no-compile
        off = {"dest": setting.name, "default": argparse.SUPPRESS, "action": "store_const", "const": False}
        add(*(f"--no-{flag[2:]}" for flag in flags), help=argparse.SUPPRESS, **off)


def parse_assignments(texts: list[str], table: Table) -> dict[str, Any]:
    """`--set ppo.gamma=0.9 env_options.k=3`: values by dotted name."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ValueError(f"--set takes NAME=VALUE, got {text!r}")
        outer, _, key = name.rpartition(".")
        outer = table.bare.get(outer, outer)
        if outer in table.settings and table.settings[outer].kind is dict:
            found.setdefault(outer, {})[key] = parse_value(value)
        else:
            setting = table.find(name)
            found[setting.name] = setting.parse(value)
    return found


def _parser(setting: Setting) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return setting.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return parse
