"""Finding a user's classes and functions by import path: "package.module:Class"."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any


def find(spec: str) -> Any:
    """The object at "package.module:Class" (more attributes may follow, with dots); a ValueError says which part is missing."""
    where, _, path = spec.partition(":")
    if not where or not path:
        raise ValueError(f"{spec!r} must be written package.module:Class")
    try:
        found: Any = importlib.import_module(where)
    except (ImportError, TypeError, ValueError) as error:      # the last two: not a valid module name
        raise ValueError(f"cannot import module {where!r} of {spec!r}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"is the name in {spec!r} right?"
            raise ValueError(f"module {where!r} has no {path!r}; {hint}")
        found = getattr(found, part)
    return found


def import_from_here() -> None:
    """Make modules in the current folder importable, as `python -m` does; a console script has its own folder first on the path."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
