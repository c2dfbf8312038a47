"""C in numba loops: C = floor + part, part = scale / (low + 2^y), which is the form's C for y = -log2(e) gain z.

A form is a tuple of numbers here, its curve: (scale, low, bits), or (scale, low, bits, floor, top, drift) if it has a floor; drift is 1
where theta brings one, else 0. numba knows which tuple it is when it compiles, so forms without a floor pay nothing for the others. A
backward keeps `part` rather than C: dC/dz is gain part (1 - part low / scale), and C - floor would lose digits where C is near its floor.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba.extending import overload

from .._exp2 import curve as curve_of
from .._exp2 import exp2
from .forms import find_form

# Reassociation lets sums vectorise. `nnan` and `ninf` stay off: nan and inf must come out as such, and `_replay` counts on nan * 0.
FAST = {"contract", "reassoc", "nsz"}
EXACT: Any = {"fastmath": {"contract", "nsz"}, "error_model": "numpy"}
WITH_FLOOR = 6   # numbers in a curve


def make_curve(calibration: str, number: Any) -> tuple[Any, ...] | None:
    """The curve of a form, in the dtype `number`; None for C = 1. Arguments stay in registers, constants would not."""
    if calibration == "none":
        return None
    form = find_form(calibration)
    curve = number(form.scale), number(form.low), curve_of(number)
    return (*curve, number(form.floor), number(form.top), np.intp(form.drift)) if form.floor else curve


@functools.cache
def acting_curve(form: str) -> tuple[Any, ...] | None:
    """What `act_cpu` needs of a form: rate, scale, low - 1 and floor in float32; None for 1 + tanh(z), which needs less."""
    numbers = find_form(form)
    found = -numbers.gain * math.log2(math.e), numbers.scale, numbers.low - 1, numbers.floor
    return None if form == "tanh" else tuple(np.float32(x) for x in found)


def squash(y: Any, curve: tuple[Any, ...]) -> Any:
    """C - floor; nan for nan. At most 6e-8 of C's upper bound off in float32; for z = 0 exact."""
    return curve[0] / (curve[1] + 2 ** y)


@overload(squash, jit_options=EXACT)
def _squash(y, curve):
    def compute(y, curve):
        return curve[0] / (curve[1] + exp2(y, curve[2]))
    return compute


def lift(part: Any, curve: tuple[Any, ...]) -> Any:
    """C from what `squash` gives."""
    return curve[3] + part if len(curve) == WITH_FLOOR else part


@overload(lift, jit_options=EXACT)
def _lift(part, curve):
    if len(curve) == WITH_FLOOR:
        return lambda part, curve: curve[3] + part
    return lambda part, curve: part


def top(curve: tuple[Any, ...]) -> Any:
    """The upper bound of C."""
    return curve[4] if len(curve) == WITH_FLOOR else curve[0]


@overload(top)
def _top(curve):
    if len(curve) == WITH_FLOOR:
        return lambda curve: curve[4]
    return lambda curve: curve[0]


def has_drift(curve: tuple[Any, ...]) -> bool:
    """Whether the second half of theta is added to z."""
    return len(curve) == WITH_FLOOR and curve[5] != 0


@overload(has_drift)
def _has_drift(curve):
    if len(curve) == WITH_FLOOR:
        return lambda curve: curve[5] != 0
    return lambda curve: False


def shift(theta: Any, b: int, t: int, i: int, rate: Any, curve: tuple[Any, ...]) -> Any:
    """What the drift adds to y in row i; 0 without one."""
    return theta[b, t, theta.shape[2] // 2 + i] * rate if has_drift(curve) else theta.dtype.type(0)


@overload(shift)
def _shift(theta, b, t, i, rate, curve):
    if len(curve) == WITH_FLOOR:
        return lambda theta, b, t, i, rate, curve: (theta[b, t, theta.shape[2] // 2 + i] * rate if curve[5] != 0 else theta.dtype.type(0))
    return lambda theta, b, t, i, rate, curve: theta.dtype.type(0)
