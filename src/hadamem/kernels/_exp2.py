"""2^y for numba loops that must vectorise: a polynomial, and the exponent set by its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

# 2^f = 1 + f (c1 + f (c2 + ...)) on [-1/2, 1/2]: minimax fits of the relative error (Lawson's and Remez' iterations),
# the value at 0 held so that it is 1 exactly. Five terms: 1.1e-7 once rounded to float32; eleven terms: 1.8e-17.
EXP2 = {
    np.float32: (0.6931469775951143, 0.24022242077091435, 0.055507337444780314, 0.009671513183102396,
                 0.0013264728768937798),
    np.float64: (0.69314718055994569675, 0.24022650695910098007, 0.055504108664790394552, 0.0096181291076070023796,
                 0.0013333558153439964747, 0.0001540353044157213033, 0.000015252727385193868197,
                 1.3215442675329822143e-6, 1.0180647659234138888e-7, 7.0725704128144235096e-9,
                 4.078071929588336665e-10),
}
# Adding this rounds to an integer n and leaves n plus the exponent's bias in the low bits. Up to the limit these are the exponent of a
# number: the largest power of 2 there is, and below the smallest normal one 0.
ROUNDER = {np.float32: 1.5 * 2 ** 23 + 127, np.float64: 1.5 * 2 ** 52 + 1023}
LIMIT = {np.float32: 127, np.float64: 1023}


def curve(dtype: Any) -> tuple[Any, ...]:
    """What `exp2` needs, in the dtype of its numbers. Arguments stay in registers, constants would not."""
    number = np.dtype(dtype).type
    return tuple(number(x) for x in (1, LIMIT[number], ROUNDER[number], *EXP2[number]))


def exp2(y: Any, curve: tuple[Any, ...]) -> Any:
    """2^y, but 0 from 2^-(limit - 1/2) down and 2^limit from there up; nan for nan."""
    return 2 ** y


@overload(exp2, jit_options={"fastmath": {"contract", "nsz"}, "error_model": "numpy"})   # `reassoc` undoes rounding
def _exp2_compiled(y, curve):
    if y == types.float32:
        def compute(y, curve):
            one, limit, rounder, c1, c2, c3, c4, c5 = curve
            y = -limit if y < -limit else y   # written so that nan stays
            y = limit if y > limit else y
            t = y + rounder
            f = y - (t - rounder)
            p = one + f * (c1 + f * (c2 + f * (c3 + f * (c4 + f * c5))))
            return p * np.int32(np.float32(t).view(np.int32) << 23).view(np.float32)
    else:
        def compute(y, curve):
            one, limit, rounder, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 = curve
            y = -limit if y < -limit else y
            y = limit if y > limit else y
            t = y + rounder
            f = y - (t - rounder)
            p = c6 + f * (c7 + f * (c8 + f * (c9 + f * (c10 + f * c11))))
            p = one + f * (c1 + f * (c2 + f * (c3 + f * (c4 + f * (c5 + f * p)))))
            return p * np.int64(np.float64(t).view(np.int64) << 52).view(np.float64)
    return compute
