"""Triton code of `random.mix` and `random.integers`, for launches here and for use inside other kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix_word(counter):
    """`random.mix` of int64 counters."""
    x = counter.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def integer_below(counter, high):
    """`random.integers` [0, high)."""
    return (((mix_word(counter) >> 32) * high.to(tl.uint64)) >> 32).to(tl.int64)


@triton.jit
def draw_kernel(COUNTER, HIGH, OUT, high, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """KIND 0: words; 1: integers below `high`; 2: integers below HIGH."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    counter = tl.load(COUNTER + at, mask=ok, other=0)
    if KIND == 0:
        tl.store(OUT + at, mix_word(counter).to(tl.int64, bitcast=True), mask=ok)
    elif KIND == 1:
        tl.store(OUT + at, integer_below(counter, tl.zeros((BLOCK,), tl.int64) + high), mask=ok)
    else:
        tl.store(OUT + at, integer_below(counter, tl.load(HIGH + at, mask=ok, other=1)), mask=ok)
