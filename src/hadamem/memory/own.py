"""Building memories from classes and functions, which may be a user's: checks of what they accept and return, with clear errors."""

from __future__ import annotations

import inspect
import re
from typing import Any

from ..names import did_you_mean
from .base import Memory
from .options import behind


def build(name: str, make: Any, input_size: int, output_size: int | None, options: dict[str, Any]) -> Any:
    """Call the class or function `make`, known as `name`, with sizes and options; a ValueError says why it cannot be built."""
    if not callable(make):
        raise ValueError(f"{name!r} must be a class, a function or a torch.nn.Module, got {type(make).__name__}")
    sizes = {"input_size": input_size, "output_size": output_size, **options}
    try:
        signature = inspect.signature(behind(make)[0])
    except ValueError as error:
        raise ValueError(f"{name!r} cannot be built from sizes and options: {error}") from error
    try:
        signature.bind(**sizes)
    except TypeError as error:
        taken = [p for p in signature.parameters if p not in ("input_size", "output_size")]
        wrong = [option for option in options if option not in taken]
        if wrong and taken and wrong != ["memory_size"]:
            hint = did_you_mean(wrong[0], taken)
            raise ValueError(f"{name!r} cannot be built with the option {wrong[0]!r};{hint} it takes {', '.join(taken)}") from error
        unset = "; let it take memory_size, or set network.memory_size to none in a run" if "memory_size" in wrong else ""
        raise ValueError(f"{name!r} cannot be built with input_size, output_size and options {options}: {error}{unset}") from error
    return make(**sizes)


def build_memory(name: str, make: Any, input_size: int, output_size: int | None, options: dict[str, Any]) -> Memory:
    """`build`, and check that the result is a `hm.Memory` of the sizes asked for."""
    if isinstance(make, Memory):
        raise ValueError(f"{name!r} is a ready-made {type(make).__name__}; name its class, or a function that makes a new one at each call")
    memory = build(name, make, input_size, output_size, options)
    if not isinstance(memory, Memory):
        raise ValueError(f"{name!r} must build a hm.Memory, got {type(memory).__name__}; make it a subclass")
    for size, wanted in (("input_size", input_size), ("output_size", output_size)):
        if getattr(memory, size, None) != wanted and wanted is not None:
            raise ValueError(f"{name!r} was asked for {size}={wanted} and has {getattr(memory, size, 'none')}; set self.{size} in __init__")
    return memory


def check_entry(name: Any, factory: Any, known: Any, overwrite: bool) -> None:
    """Raise unless `factory` can be registered as `name`."""
    if not isinstance(name, str):
        raise TypeError(f"name must be text, got {name!r}; as a decorator it is written @hm.register_memory(\"my-memory\")")
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"name may hold letters, digits, '_', '-' and '.' only, got {name!r}")
    if not callable(factory):
        raise TypeError("factory must be a hm.Memory class or a function (input_size, output_size, **options) that makes one, "
                        f"got {factory!r}")
    if isinstance(factory, type) and not issubclass(factory, Memory):
        raise TypeError(f"factory must be a subclass of hm.Memory or a function that makes one, got the class {factory.__name__}")
    if isinstance(factory, Memory):
        raise TypeError(f"factory must be a class or a function, got a ready-made {type(factory).__name__}; pass its class")
    if name in known and not overwrite and describe(known[name]) != describe(factory):
        raise ValueError(f"there is already a memory {name!r} ({describe(known[name])}); choose another name, or pass overwrite=True")


def describe(factory: Any) -> str:
    return f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', type(factory).__name__)}"
