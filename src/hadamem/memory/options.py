"""The options that a memory is built with, defaults included, as plain values for a config file."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
MISSING = object()


def resolve(factory: Any, options: dict[str, Any]) -> dict[str, Any]:
    """See `hadamem.memory.resolve_options`; factory: the class or function behind the memory's name."""
    kind, form = behind(factory)
    found = {**defaults(kind), **form, **options}
    chosen = getattr(kind, "choose_options", None)
    return found if chosen is None else chosen(found)


def behind(factory: Any) -> tuple[Any, dict[str, Any]]:
    """What takes the options, and those in place of its defaults: the class of a method marked with `form`, or the factory itself."""
    form = getattr(factory, "_form", None) if inspect.ismethod(factory) else None
    return (factory, {}) if form is None else (factory.__self__, form)


def defaults(factory: Any) -> dict[str, Any]:
    """The options of a class or function that have a default which JSON can hold; the sizes of input and output are not options."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):      # a builtin without a signature
        return {}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = {p.name: plain(p.default) for p in parameters
             if p.kind in named and p.default is not p.empty and p.name not in ("input_size", "output_size")}
    return {name: value for name, value in found.items() if value is not MISSING}


def plain(value: Any) -> Any:
    """The value as JSON gives it back, or MISSING if that is another one: a tuple, nan, an object."""
    try:
        same = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return MISSING
    return same if same == value else MISSING


def form(options: dict[str, Any]) -> Callable[[F], F]:
    """Marks a classmethod that builds its class with these options in place of the class's defaults, and passes all others on."""

    def mark(build: F) -> F:
        build._form = options   # type: ignore[attr-defined]
        return build

    return mark
