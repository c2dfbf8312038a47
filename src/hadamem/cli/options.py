"""Options that several commands share: NAME=VALUE pairs, and what was given on the command line."""

from __future__ import annotations

import argparse
import json
from typing import Any

INTERNAL = ("command", "parser", "debug")   # set by the command line itself, not settings of a command


class NameValue(argparse.Action):
    """Collect repeated NAME=VALUE options in a dict."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        name, equals, value = str(values).partition("=")
        if not equals or not name.isidentifier():
            parser.error(f"{option} must look like NAME=VALUE, got {values!r}")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), name: read_value(value)})


def read_value(text: str) -> Any:
    """Read a value of unknown type: JSON, or true, false or none in any case, or else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options given on the command line: those that are neither None nor empty."""
    return {name: value for name, value in vars(args).items() if name not in INTERNAL and value not in (None, [])}
