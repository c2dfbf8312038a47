"""Triton kernels of the LSTM: one program walks one batch row through all steps (`_tiles.py`). `triton.py` plans and launches them.

What a step needs from memory is loaded one step ahead: a load takes about as long as a step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .._tiles import tanh, tile, times
from ..shm.triton_kernels import _store_rows


@triton.jit
def _load_gates(GI, j, ok, H: tl.constexpr):
    """The input's part of the four gates of a step."""
    i = tl.load(GI + j, mask=ok, other=0.0)
    f = tl.load(GI + H + j, mask=ok, other=0.0)
    g = tl.load(GI + 2 * H + j, mask=ok, other=0.0)
    o = tl.load(GI + 3 * H + j, mask=ok, other=0.0)
    return i, f, g, o


@triton.jit(do_not_specialize=["T", "rows"])
def forward_kernel(GI, WW, H0, C0, RESET, HH, CC, SAVED, T, rows, H: tl.constexpr, P: tl.constexpr, K: tl.constexpr, HAS_H: tl.constexpr,
                   HAS_C: tl.constexpr, HAS_RESET: tl.constexpr, SAVE: tl.constexpr, FAST: tl.constexpr):
    """Grid (B,). GI [B, T, 4H], WW [G, 4, P, P], H0 and C0 [B, H], RESET [B, T] -> HH [B, T, H], CC [B, H], SAVED [B, T, 6H].

    `rows` consecutive batch rows share weights. SAVED: i, f, g, o, and the c and h that the step started from. CC: the last c.
    """
    b = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, P)
    ok = j < H
    WW += b // rows * (4 * P * P)
    GI += b * T * (4 * H)
    HH += b * T * H
    SAVED += b * T * (6 * H)
    RESET += b * T
    W_i = tile(WW, P, K)
    W_f = tile(WW + P * P, P, K)
    W_g = tile(WW + 2 * P * P, P, K)
    W_o = tile(WW + 3 * P * P, P, K)
    h = tl.zeros((P,), tl.float32)
    c = tl.zeros((P,), tl.float32)
    if HAS_H:
        h = tl.load(H0 + b * H + j, mask=ok, other=0.0)
    if HAS_C:
        c = tl.load(C0 + b * H + j, mask=ok, other=0.0)
    x_i, x_f, x_g, x_o = _load_gates(GI, j, ok, H)
    fresh = 0
    if HAS_RESET:
        fresh = tl.load(RESET).to(tl.int32)
    for t in range(T):
        GI += 4 * H
        next_i, next_f, next_g, next_o = _load_gates(GI, j, ok & (t + 1 < T), H)
        if HAS_RESET:
            next_fresh = tl.load(RESET + t + 1, mask=t + 1 < T, other=0).to(tl.int32)
            h = tl.where(fresh != 0, 0.0, h)
            c = tl.where(fresh != 0, 0.0, c)
            fresh = next_fresh
        i = tl.sigmoid(times(W_i, h) + x_i)
        f = tl.sigmoid(times(W_f, h) + x_f)
        g = tanh(times(W_g, h) + x_g)
        o = tl.sigmoid(times(W_o, h) + x_o)
        if SAVE:
            _store_rows(SAVED + j, i, ok, FAST)
            _store_rows(SAVED + H + j, f, ok, FAST)
            _store_rows(SAVED + 2 * H + j, g, ok, FAST)
            _store_rows(SAVED + 3 * H + j, o, ok, FAST)
            _store_rows(SAVED + 4 * H + j, c, ok, FAST)
            _store_rows(SAVED + 5 * H + j, h, ok, FAST)
            SAVED += 6 * H
        c = f * c + i * g
        h = o * tanh(c)
        _store_rows(HH + j, h, ok, FAST)
        HH += H
        x_i, x_f, x_g, x_o = next_i, next_f, next_g, next_o
    _store_rows(CC + b * H + j, c, ok, FAST)


@triton.jit
def _load_step(SAVED, DH, RESET, t, j, ok, H: tl.constexpr, HAS_RESET: tl.constexpr):
    """What the backward needs of step t; zeros for t < 0."""
    there = ok & (t >= 0)
    at = SAVED + t * (6 * H)
    i, f, g, o = _load_gates(at, j, there, H)
    before = tl.load(at + 4 * H + j, mask=there, other=0.0)
    dh = tl.load(DH + t * H + j, mask=there, other=0.0)
    fresh = 0
    if HAS_RESET:
        fresh = tl.load(RESET + t, mask=t >= 0, other=0).to(tl.int32)
    return i, f, g, o, before, dh, fresh


@triton.jit(do_not_specialize=["T", "rows"])
def backward_kernel(WT, RESET, SAVED, DH, DC, DG, D_H0, D_C0, T, rows, H: tl.constexpr, P: tl.constexpr, K: tl.constexpr,
                    HAS_C: tl.constexpr, HAS_RESET: tl.constexpr, FAST: tl.constexpr):
    """Grid (B,). WT [G, 4, P, P] (transposed), SAVED [B, T, 6H], DH [B, T, H], DC [B, H] -> DG [B, T, 4H], D_H0 and D_C0 [B, H].

    DG: the gradients of what goes into the gates.
    """
    b = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, P)
    ok = j < H
    WT += b // rows * (4 * P * P)
    RESET += b * T
    DH += b * T * H
    SAVED += b * T * (6 * H)
    DG += b * T * (4 * H)
    W_i = tile(WT, P, K)
    W_f = tile(WT + P * P, P, K)
    W_g = tile(WT + 2 * P * P, P, K)
    W_o = tile(WT + 3 * P * P, P, K)
    to_h = tl.zeros((P,), tl.float32)      # the gradients of h and c
    to_c = tl.zeros((P,), tl.float32)
    if HAS_C:
        to_c = tl.load(DC + b * H + j, mask=ok, other=0.0)
    i, f, g, o, before, dh, fresh = _load_step(SAVED, DH, RESET, T - 1, j, ok, H, HAS_RESET)
    for back in range(T):
        t = T - 1 - back
        next_i, next_f, next_g, next_o, next_before, next_dh, next_fresh = _load_step(SAVED, DH, RESET, t - 1, j, ok, H, HAS_RESET)
        to_h += dh
        out = tanh(f * before + i * g)
        to_c += to_h * o * (1.0 - out * out)
        d_i = to_c * g * (i * (1.0 - i))
        d_f = to_c * before * (f * (1.0 - f))
        d_g = to_c * i * (1.0 - g * g)
        d_o = to_h * out * (o * (1.0 - o))
        at = DG + t * (4 * H) + j
        _store_rows(at, d_i, ok, FAST)
        _store_rows(at + H, d_f, ok, FAST)
        _store_rows(at + 2 * H, d_g, ok, FAST)
        _store_rows(at + 3 * H, d_o, ok, FAST)
        to_h = times(W_i, d_i) + times(W_f, d_f) + times(W_g, d_g) + times(W_o, d_o)
        to_c = to_c * f
        if HAS_RESET:
            to_h = tl.where(fresh != 0, 0.0, to_h)
            to_c = tl.where(fresh != 0, 0.0, to_c)
            fresh = next_fresh
        i, f, g, o, before, dh = next_i, next_f, next_g, next_o, next_before, next_dh
    _store_rows(D_H0 + b * H + j, to_h, ok, FAST)
    _store_rows(D_C0 + b * H + j, to_c, ok, FAST)
