"""Triton kernels of the GRU: one program walks one batch row through all steps (`_tiles.py`). `triton.py` plans and launches them.

What a step needs from memory is loaded one step ahead: a load takes about as long as a step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .._tiles import tanh, tile, times
from ..shm.triton_kernels import _store_rows


@triton.jit(do_not_specialize=["T", "rows"])
def forward_kernel(GI, WW, BB, START, RESET, HH, SAVED, T, rows, H: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
                   HAS_START: tl.constexpr, HAS_RESET: tl.constexpr, SAVE: tl.constexpr, FAST: tl.constexpr):
    """Grid (B,). GI [B, T, 3H], WW [G, 3, P, P], BB [G, 3H], START [B, H], RESET [B, T] -> HH [B, T, H], SAVED [B, T, 5H].

    `rows` consecutive batch rows share weights. SAVED: r, z, n, a = W_n h + b_n, and the h that the step started from.
    """
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, P)
    ok = i < H
    WW += b // rows * (3 * P * P)
    BB += b // rows * (3 * H)
    GI += b * T * (3 * H)
    HH += b * T * H
    SAVED += b * T * (5 * H)
    RESET += b * T
    W_r = tile(WW, P, K)
    W_z = tile(WW + P * P, P, K)
    W_n = tile(WW + 2 * P * P, P, K)
    b_r = tl.load(BB + i, mask=ok, other=0.0)
    b_z = tl.load(BB + H + i, mask=ok, other=0.0)
    b_n = tl.load(BB + 2 * H + i, mask=ok, other=0.0)
    h = tl.zeros((P,), tl.float32)
    if HAS_START:
        h = tl.load(START + b * H + i, mask=ok, other=0.0)
    x_r = tl.load(GI + i, mask=ok, other=0.0)
    x_z = tl.load(GI + H + i, mask=ok, other=0.0)
    x_n = tl.load(GI + 2 * H + i, mask=ok, other=0.0)
    fresh = 0
    if HAS_RESET:
        fresh = tl.load(RESET).to(tl.int32)
    for t in range(T):
        GI += 3 * H
        more = ok & (t + 1 < T)
        next_r = tl.load(GI + i, mask=more, other=0.0)
        next_z = tl.load(GI + H + i, mask=more, other=0.0)
        next_n = tl.load(GI + 2 * H + i, mask=more, other=0.0)
        if HAS_RESET:
            next_fresh = tl.load(RESET + t + 1, mask=t + 1 < T, other=0).to(tl.int32)
            h = tl.where(fresh != 0, 0.0, h)
            fresh = next_fresh
        r = tl.sigmoid(times(W_r, h) + (x_r + b_r))
        z = tl.sigmoid(times(W_z, h) + (x_z + b_z))
        a = times(W_n, h) + b_n
        n = tanh(x_n + r * a)
        if SAVE:
            _store_rows(SAVED + i, r, ok, FAST)
            _store_rows(SAVED + H + i, z, ok, FAST)
            _store_rows(SAVED + 2 * H + i, n, ok, FAST)
            _store_rows(SAVED + 3 * H + i, a, ok, FAST)
            _store_rows(SAVED + 4 * H + i, h, ok, FAST)
            SAVED += 5 * H
        h = n + z * (h - n)
        _store_rows(HH + i, h, ok, FAST)
        HH += H
        x_r, x_z, x_n = next_r, next_z, next_n


@triton.jit
def _load_step(SAVED, DH, RESET, t, i, ok, H: tl.constexpr, HAS_RESET: tl.constexpr):
    """What the backward needs of step t; zeros for t < 0."""
    there = ok & (t >= 0)
    at = SAVED + t * (5 * H) + i
    r = tl.load(at, mask=there, other=0.0)
    z = tl.load(at + H, mask=there, other=0.0)
    n = tl.load(at + 2 * H, mask=there, other=0.0)
    a = tl.load(at + 3 * H, mask=there, other=0.0)
    before = tl.load(at + 4 * H, mask=there, other=0.0)
    dh = tl.load(DH + t * H + i, mask=there, other=0.0)
    fresh = 0
    if HAS_RESET:
        fresh = tl.load(RESET + t, mask=t >= 0, other=0).to(tl.int32)
    return r, z, n, a, before, dh, fresh


@triton.jit(do_not_specialize=["T", "rows"])
def backward_kernel(WT, RESET, SAVED, DH, DG, D0, T, rows, H: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
                    HAS_RESET: tl.constexpr, FAST: tl.constexpr):
    """Grid (B,). WT [G, 3, P, P] (transposed), SAVED [B, T, 5H], DH [B, T, H] -> DG [B, T, 4H], D0 [B, H].

    DG: the gradients of what goes into the sigmoids of r and z and into the tanh of n, and of a.
    """
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, P)
    ok = i < H
    WT += b // rows * (3 * P * P)
    RESET += b * T
    DH += b * T * H
    SAVED += b * T * (5 * H)
    DG += b * T * (4 * H)
    W_r = tile(WT, P, K)
    W_z = tile(WT + P * P, P, K)
    W_n = tile(WT + 2 * P * P, P, K)
    g = tl.zeros((P,), tl.float32)
    r, z, n, a, before, dh, fresh = _load_step(SAVED, DH, RESET, T - 1, i, ok, H, HAS_RESET)
    for back in range(T):
        t = T - 1 - back
        next_r, next_z, next_n, next_a, next_before, next_dh, next_fresh = _load_step(SAVED, DH, RESET, t - 1, i, ok, H, HAS_RESET)
        g += dh
        d_n = g * (1.0 - z) * (1.0 - n * n)
        slope = g * (z * (1.0 - z))
        d_z = slope * before - slope * n     # not (before - n): Triton would compute that in the layout of a load, and convert it
        d_r = d_n * a * (r * (1.0 - r))
        d_a = d_n * r
        at = DG + t * (4 * H) + i
        _store_rows(at, d_r, ok, FAST)
        _store_rows(at + H, d_z, ok, FAST)
        _store_rows(at + 2 * H, d_n, ok, FAST)
        _store_rows(at + 3 * H, d_a, ok, FAST)
        g = g * z + (times(W_r, d_r) + times(W_z, d_z) + times(W_n, d_a))
        if HAS_RESET:
            g = tl.where(fresh != 0, 0.0, g)
            fresh = next_fresh
        r, z, n, a, before, dh = next_r, next_z, next_n, next_a, next_before, next_dh
    _store_rows(D0 + b * H + i, g, ok, FAST)
