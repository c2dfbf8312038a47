"""Triton kernels of an LSTM too large for one processor: a launch per step, over units and batch rows. `steps.py` launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from .._gates import by_gate, numbers, parts, place, products
from .._tiles import tanh


@triton.jit(do_not_specialize=["t", "T", "rows"])
def forward_step(GI, WW, H0, C0, RESET, HH, CC, SAVED, t, T, rows, H: tl.constexpr, R: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
                 C: tl.constexpr, DOT: tl.constexpr, OVERLAP: tl.constexpr, FIRST: tl.constexpr, HAS_H: tl.constexpr, HAS_C: tl.constexpr,
                 HAS_RESET: tl.constexpr, SAVE: tl.constexpr):
    """Step t. GI [B, T, 4H], WW [G, 4H, H], H0 and C0 [B, H], RESET [B, T] -> HH [B, T, H], CC [B, H], SAVED [B, T, 6H].

    `rows` consecutive batch rows share weights. SAVED: i, f, g, o, and the c and h that the step started from. CC carries c.
    """
    b, b_ok, u, u_ok, group = place(rows, H, R, N)
    W = WW + group * (4 * H * H)
    ok = b_ok[:, None] & u_ok[None, :]
    fresh = tl.zeros((R,), tl.int32)
    if HAS_RESET:
        fresh = tl.load(RESET + b * T + t, mask=b_ok, other=0).to(tl.int32)
    gi = GI + (b * T + t)[:, None] * (4 * H) + u[None, :]
    i = tl.load(gi, mask=ok, other=0.0)
    f = tl.load(gi + H, mask=ok, other=0.0)
    g = tl.load(gi + 2 * H, mask=ok, other=0.0)
    o = tl.load(gi + 3 * H, mask=ok, other=0.0)
    h = tl.zeros((R, N), tl.float32)
    if not FIRST or HAS_H:
        BEFORE = H0
        at = b * H
        if not FIRST:
            BEFORE = HH
            at = (b * T + t - 1) * H
        total = products(BEFORE, at[None, :], W, u, u_ok, b_ok, fresh, H, R, N, S, C, DOT, 4, False, OVERLAP)
        h = numbers(BEFORE, at[:, None] + u[None, :], ok, fresh)
        h_i, h_f, h_g, h_o = by_gate(total, S, R, N)
        i += h_i
        f += h_f
        g += h_g
        o += h_o
    own = b[:, None] * H + u[None, :]
    c = tl.zeros((R, N), tl.float32)
    if FIRST:
        if HAS_C:
            c = numbers(C0, own, ok, fresh)
    else:
        c = numbers(CC, own, ok, fresh)
    i = tl.sigmoid(i)
    f = tl.sigmoid(f)
    g = tanh(g)
    o = tl.sigmoid(o)
    if SAVE:
        saved = SAVED + (b * T + t)[:, None] * (6 * H) + u[None, :]
        tl.store(saved, i, mask=ok)
        tl.store(saved + H, f, mask=ok)
        tl.store(saved + 2 * H, g, mask=ok)
        tl.store(saved + 3 * H, o, mask=ok)
        tl.store(saved + 4 * H, c, mask=ok)
        tl.store(saved + 5 * H, h, mask=ok)
    c = f * c + i * g
    tl.store(CC + own, c, mask=ok)
    tl.store(HH + (b * T + t)[:, None] * H + u[None, :], o * tanh(c), mask=ok)


@triton.jit(do_not_specialize=["t", "T", "rows"])
def backward_step(WW, RESET, SAVED, DH, DC, DG, D_H0, CARRY, t, T, rows, H: tl.constexpr, R: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
                  C: tl.constexpr, DOT: tl.constexpr, OVERLAP: tl.constexpr, LAST: tl.constexpr, FINAL: tl.constexpr, HAS_C: tl.constexpr,
                  HAS_RESET: tl.constexpr):
    """Step t, after step t + 1. DH [B, T, H], DC [B, H] -> DG [B, T, 4H], D_H0 [B, H]. FINAL: t = -1, the state at the start.

    DG: the gradients of what goes into the gates. CARRY [B, H] takes c's gradient from step to step, and is that of c0 at the end.
    """
    b, b_ok, u, u_ok, group = place(rows, H, R, N)
    W = WW + group * (4 * H * H)
    ok = b_ok[:, None] & u_ok[None, :]
    own = b[:, None] * H + u[None, :]
    dh = tl.zeros((R, N), tl.float32)
    dc = tl.zeros((R, N), tl.float32)
    if not FINAL:
        dh = tl.load(DH + (b * T + t)[:, None] * H + u[None, :], mask=ok, other=0.0)
        saved = SAVED + (b * T + t)[:, None] * (6 * H) + u[None, :]
        i = tl.load(saved, mask=ok, other=0.0)
        f = tl.load(saved + H, mask=ok, other=0.0)
        g = tl.load(saved + 2 * H, mask=ok, other=0.0)
        o = tl.load(saved + 3 * H, mask=ok, other=0.0)
        before = tl.load(saved + 4 * H, mask=ok, other=0.0)
    if LAST:
        if HAS_C:
            dc = tl.load(DC + own, mask=ok, other=0.0)
    else:
        fresh = tl.zeros((R,), tl.int32)
        if HAS_RESET:
            fresh = tl.load(RESET + b * T + t + 1, mask=b_ok, other=0).to(tl.int32)
        gate = parts(S, C)[0]
        at = ((b * T + t + 1) * (4 * H))[None, :] + (gate * H)[:, None]
        total = products(DG, at, W, u, u_ok, b_ok, fresh, H, R, N, S, C, DOT, 4, True, OVERLAP)
        dh += tl.sum(total, axis=0)
        dc = numbers(CARRY, own, ok, fresh)
    if FINAL:
        tl.store(D_H0 + own, dh, mask=ok)
    else:
        out = tanh(f * before + i * g)
        dc += dh * o * (1.0 - out * out)
        to = DG + (b * T + t)[:, None] * (4 * H) + u[None, :]
        tl.store(to, dc * g * (i * (1.0 - i)), mask=ok)
        tl.store(to + H, dc * before * (f * (1.0 - f)), mask=ok)
        tl.store(to + 2 * H, dc * i * (1.0 - g * g), mask=ok)
        tl.store(to + 3 * H, dh * out * (o * (1.0 - o)), mask=ok)
        dc = dc * f
    tl.store(CARRY + own, dc, mask=ok)
