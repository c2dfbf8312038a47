"""Import a user's classes and functions by name: "package.module:Class"."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from .names import did_you_mean


def find(spec: str) -> Any:
    """Import "package.module:Class" (or "package.module:Outer.Inner"). Raises a ValueError that names the missing part."""
    module, _, path = spec.partition(":")
    if not module or not path:
        raise ValueError(f"{spec!r} must be written package.module:Class")
    try:
        found: Any = importlib.import_module(module)
    except (ImportError, TypeError, ValueError) as error:      # the last two: not a valid module name
        raise ValueError(f"cannot import module {module!r} of {spec!r}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, dir(found)) or f" is the name in {spec!r} right?"
            raise ValueError(f"module {module!r} has no {path!r};{hint}")
        found = getattr(found, part)
    return found


def import_from_here() -> None:
    """Put the current folder on sys.path, as `python -m` does. Console scripts have their own folder there instead."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
