"""Triton kernels of a GRU too large for one processor: a launch per step, over units and batch rows. `steps.py` launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from .._gates import by_gate, numbers, parts, place, products
from .._tiles import tanh


@triton.jit(do_not_specialize=["t", "T", "rows"])
def forward_step(GI, WW, BB, START, RESET, HH, SAVED, t, T, rows, H: tl.constexpr, R: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
                 C: tl.constexpr, DOT: tl.constexpr, OVERLAP: tl.constexpr, FIRST: tl.constexpr, HAS_START: tl.constexpr,
                 HAS_RESET: tl.constexpr, SAVE: tl.constexpr):
    """Step t. Tensors as in `triton_kernels.forward_kernel`, but WW [G, 3H, H]."""
    b, b_ok, i, i_ok, group = place(rows, H, R, N)
    W = WW + group * (3 * H * H)
    ok = b_ok[:, None] & i_ok[None, :]
    fresh = tl.zeros((R,), tl.int32)
    if HAS_RESET:
        fresh = tl.load(RESET + b * T + t, mask=b_ok, other=0).to(tl.int32)
    bias = BB + group * (3 * H) + i
    gi = GI + (b * T + t)[:, None] * (3 * H) + i[None, :]
    r = tl.load(gi, mask=ok, other=0.0) + tl.load(bias, mask=i_ok, other=0.0)[None, :]
    z = tl.load(gi + H, mask=ok, other=0.0) + tl.load(bias + H, mask=i_ok, other=0.0)[None, :]
    x_n = tl.load(gi + 2 * H, mask=ok, other=0.0)
    a = tl.zeros((R, N), tl.float32) + tl.load(bias + 2 * H, mask=i_ok, other=0.0)[None, :]
    h = tl.zeros((R, N), tl.float32)
    if not FIRST or HAS_START:
        BEFORE = START
        at = b * H
        if not FIRST:
            BEFORE = HH
            at = (b * T + t - 1) * H
        total = products(BEFORE, at[None, :], W, i, i_ok, b_ok, fresh, H, R, N, S, C, DOT, 3, False, OVERLAP)
        h = numbers(BEFORE, at[:, None] + i[None, :], ok, fresh)
        h_r, h_z, h_n, _ = by_gate(total, S, R, N)
        r += h_r
        z += h_z
        a += h_n
    r = tl.sigmoid(r)
    z = tl.sigmoid(z)
    n = tanh(x_n + r * a)
    if SAVE:
        saved = SAVED + (b * T + t)[:, None] * (5 * H) + i[None, :]
        tl.store(saved, r, mask=ok)
        tl.store(saved + H, z, mask=ok)
        tl.store(saved + 2 * H, n, mask=ok)
        tl.store(saved + 3 * H, a, mask=ok)
        tl.store(saved + 4 * H, h, mask=ok)
    tl.store(HH + (b * T + t)[:, None] * H + i[None, :], n + z * (h - n), mask=ok)


@triton.jit(do_not_specialize=["t", "T", "rows"])
def backward_step(WW, RESET, SAVED, DH, DG, CARRY, t, T, rows, H: tl.constexpr, R: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
                  C: tl.constexpr, DOT: tl.constexpr, OVERLAP: tl.constexpr, LAST: tl.constexpr, FINAL: tl.constexpr,
                  HAS_RESET: tl.constexpr):
    """Step t, after step t + 1. Tensors as in `triton_kernels.backward_kernel`, but WW [G, 3H, H]. FINAL: t = -1, the state at the start.

    CARRY [B, H] takes the part of h's gradient that bypasses the gates from step to step, and is the gradient of h0 at the end.
    """
    b, b_ok, i, i_ok, group = place(rows, H, R, N)
    W = WW + group * (3 * H * H)
    ok = b_ok[:, None] & i_ok[None, :]
    own = b[:, None] * H + i[None, :]
    g = tl.zeros((R, N), tl.float32)
    if not FINAL:
        g = tl.load(DH + (b * T + t)[:, None] * H + i[None, :], mask=ok, other=0.0)
        saved = SAVED + (b * T + t)[:, None] * (5 * H) + i[None, :]
        r = tl.load(saved, mask=ok, other=0.0)
        z = tl.load(saved + H, mask=ok, other=0.0)
        n = tl.load(saved + 2 * H, mask=ok, other=0.0)
        a = tl.load(saved + 3 * H, mask=ok, other=0.0)
        before = tl.load(saved + 4 * H, mask=ok, other=0.0)
    if not LAST:
        fresh = tl.zeros((R,), tl.int32)
        if HAS_RESET:
            fresh = tl.load(RESET + b * T + t + 1, mask=b_ok, other=0).to(tl.int32)
        gate = parts(S, C)[0]
        at = ((b * T + t + 1) * (4 * H))[None, :] + (tl.where(gate == 2, 3, gate) * H)[:, None]     # r, z, and the gradient of a
        total = products(DG, at, W, i, i_ok, b_ok, fresh, H, R, N, S, C, DOT, 3, True, OVERLAP)
        g += tl.sum(total, axis=0) + numbers(CARRY, own, ok, fresh)
    if FINAL:
        tl.store(CARRY + own, g, mask=ok)
    else:
        d_n = g * (1.0 - z) * (1.0 - n * n)
        to = DG + (b * T + t)[:, None] * (4 * H) + i[None, :]
        tl.store(to, d_n * a * (r * (1.0 - r)), mask=ok)
        tl.store(to + H, g * (z * (1.0 - z)) * (before - n), mask=ok)
        tl.store(to + 2 * H, d_n, mask=ok)
        tl.store(to + 3 * H, d_n * r, mask=ok)
        tl.store(CARRY + own, g * z, mask=ok)
