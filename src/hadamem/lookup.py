"""Import a user's classes and functions by name, "package.module:Class", and decide which names may be imported.

A name that the user wrote, as a Python argument or on the command line, is imported. A name that comes from a file of a run, a study or
a saved policy is a `FileName`. It is imported only inside `trusting()`, or if the user wrote the same name in this process.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from .names import did_you_mean

DEVICE = re.compile(r"[a-z]+:\d+")      # "cuda:0" names nothing to import
_trusted: ContextVar[bool] = ContextVar("trusted", default=False)      # names from files may be imported
_here: ContextVar[bool] = ContextVar("here", default=False)            # modules in the current folder may be imported
_written: set[str] = set()                                             # names that the user wrote in this process


class UntrustedName(ValueError):
    """A file names something to import, and nobody has said that the file can be trusted."""


class FileName(str):
    """Text with a colon from a file. It may name something to import, see `check`."""

    file = ""


def from_file(values: Any, file: Path | str) -> Any:
    """Plain values as a file has them, with every text that could name something to import as a `FileName`."""
    if isinstance(values, dict):
        return {name: from_file(value, file) for name, value in values.items()}
    if isinstance(values, (list, tuple, set)):
        return type(values)(from_file(value, file) for value in values)
    if isinstance(values, str) and ":" in values:
        values = FileName(values)
        values.file = str(file)
    return values


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Within this context names from files are imported, if `trust`; otherwise nothing changes."""
    before = _trusted.set(_trusted.get() or bool(trust))
    try:
        yield
    finally:
        _trusted.reset(before)


def trust_names(names: Iterable[str]) -> None:
    """Treat these names as written by the user, in this process. A parent process passes them on to its children."""
    _written.update(map(str, names))


def trusted_names(values: Any) -> list[str]:
    """All texts in nested plain values that could name something to import, if they may be, for `trust_names` in a child process."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return list(dict.fromkeys(name for value in values for name in trusted_names(value)))
    return [str(values)] if isinstance(values, str) and ":" in values and not DEVICE.fullmatch(values) and is_allowed(values) else []


def is_allowed(spec: str) -> bool:
    return not isinstance(spec, FileName) or spec in _written or _trusted.get()


def check(spec: str) -> None:
    """Raise an UntrustedName if a name comes from a file that is not trusted."""
    if isinstance(spec, FileName) and not is_allowed(spec):
        raise UntrustedName(f"{spec.file} names {str(spec)!r}, which would import and run the module {spec.partition(':')[0]!r}; "
                            "if you trust whoever made it, add --trust (trust=True in Python), or name it yourself")


def check_all(values: Any) -> None:
    """`check` every text in nested plain values."""
    if isinstance(values, str):
        check(values)
    elif isinstance(values, Mapping):
        check_all([*values.keys(), *values.values()])
    elif isinstance(values, (list, tuple, set)):
        for value in values:
            check_all(value)


def find(spec: str, kinds: tuple[type, ...], what: str) -> Any:
    """Import "package.module:Class" (or "package.module:Outer.Inner"). A ValueError names the missing part.

    A class must be a subclass of one of `kinds`, called `what` in the error. Other callables are for the caller to judge: only a name
    that the user wrote may be one. kinds (): anything.
    """
    found = load(spec)
    require(spec, found, kinds, what)
    return found


def load(spec: str) -> Any:
    """What a name means, before `require` has looked at it."""
    check(spec)
    module, _, path = spec.partition(":")
    if not module or not path:
        raise ValueError(f"{spec!r} must be written package.module:Class")
    try:
        found: Any = import_module(module)
    except (ImportError, TypeError, ValueError) as error:      # the last two: not a valid module name
        raise ValueError(f"cannot import module {module!r} of {spec!r}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, dir(found)) or f" is the name in {spec!r} right?"
            raise ValueError(f"module {module!r} has no {path!r};{hint}")
        found = getattr(found, part)
    return found


def require(spec: str, found: Any, kinds: tuple[type, ...], what: str) -> None:
    """Raise a ValueError unless `found` may be called: a subclass of one of `kinds`, or a function whose name the user wrote."""
    is_class = isinstance(found, type)
    if kinds and is_class and not issubclass(found, kinds):
        raise ValueError(f"{str(spec)!r} must be a subclass of {what}, got the class {found.__qualname__}")
    if kinds and not is_class and isinstance(spec, FileName) and spec not in _written:
        raise ValueError(f"{spec.file} names {str(spec)!r}, which is no subclass of {what} but a {type(found).__name__}; "
                         "if that is meant, name it yourself")
    _written.add(str(spec))      # its module has run; asking again would protect nothing


def import_module(name: str) -> Any:
    """Import a module that the user named. On the command line it may lie in the current folder, which comes last."""
    if _here.get() and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def import_from_here() -> None:
    """Let `find` see modules in the current folder: for commands, which have no script whose folder Python would look in."""
    _here.set(True)


def option_names(make: Callable[..., Any]) -> tuple[list[str], bool]:
    """The names that a class or function takes as keywords, and whether it may take others: any, or it does not tell."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):      # a builtin without a signature
        return [], True
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def check_options(name: str, make: Callable[..., Any], options: Mapping[str, Any], always: Iterable[str] = ()) -> None:
    """Raise a ValueError that names an option which `make` does not take. always: options that someone else takes."""
    known, others = option_names(make)
    if others:
        return
    wrong = next((option for option in options if option not in {*known, *always}), None)
    if wrong is not None:
        raise ValueError(f"{name} has no option {wrong!r};{did_you_mean(wrong, known)} it takes {', '.join(known) or 'none'}")
