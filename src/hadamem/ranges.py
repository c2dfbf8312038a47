"""Which numbers settings and options may be: those that float32 and int64 can hold."""

from __future__ import annotations

import dataclasses
from typing import Any

from .names import shorten

SMALLEST, LARGEST = 1e-38, 3e38      # of float32, rounded towards 1
LARGEST_INT = 2**63 - 1


def fits_float32(value: Any) -> bool:
    """Whether float32 can hold a number: it is finite, and neither overflows nor becomes 0."""
    return bool(value == 0 or SMALLEST <= abs(value) <= LARGEST)


def check_float(name: str, value: Any) -> float:
    """The number as a float; a ValueError names one that float32 cannot hold."""
    if not fits_float32(value):
        raise ValueError(f"{name} must be finite, and 0 or {SMALLEST:g} to {LARGEST:g} in size (a float32), got {shorten(value)}")
    return float(value)


def check_int(name: str, value: Any) -> int:
    """The number as an int; a ValueError names one that int64 cannot hold."""
    if not -LARGEST_INT <= value <= LARGEST_INT:
        raise ValueError(f"{name} must be in -2**63 + 1 .. 2**63 - 1, got {shorten(value)}")
    return int(value)


def check_floats(config: Any) -> None:
    """`check_float` every float in a dataclass."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, float):
            check_float(field.name, value)
