"""Triton kernels for sequences that are cut into segments: each is summed up as x -> P x + Q, then the summaries are chained.

Tiles and loads are those of `triton_kernels.py`. Where writes were limited to ±clip no gradient passes, and only a replay from the
checkpoints shows where that was, so the adjoint has a second kernel for calls in which it happened.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_kernels import _STEEPEST, _advance, _calibrate, _lift, _limit, _load, _load_step, _not_mine, _tile_columns, _within


@triton.jit
def _fold(P, Q, step, free, REVERSE: tl.constexpr, HAS_RESET: tl.constexpr, CALIBRATED: tl.constexpr,
          RATE: tl.constexpr, PART: tl.constexpr, FLOOR: tl.constexpr, DRIFT: tl.constexpr, FAST: tl.constexpr):
    """Append a step to x -> P x + Q: forward in time Q C + x ⊗ y after a reset, in reverse (Q + x ⊗ y) C before it.

    `free`, in reverse only: where the write was not limited, so that a gradient passes; None: everywhere.
    """
    theta, x, vc, y, reset = step
    if HAS_RESET and not REVERSE:
        P = tl.where(reset, 0.0, P)
        Q = tl.where(reset, 0.0, Q)
    if REVERSE:
        Q = Q + x * y
        if free is not None:
            P = tl.where(free, P, 0.0)
            Q = tl.where(free, Q, 0.0)
    if CALIBRATED:
        C = _lift(_calibrate(theta, vc, RATE, PART, FLOOR, DRIFT, FAST), FLOOR)
        P = P * C
        Q = Q * C
    if not REVERSE:
        Q = Q + x * y
    if HAS_RESET and REVERSE:
        P = tl.where(reset, 0.0, P)
        Q = tl.where(reset, 0.0, Q)
    return P, Q


@triton.jit
def summary_kernel(
    TH, VC, XX, YY, RESET, PP, QQ, CUT, LARGEST,
    th_b, vc_b, x_b, y_b, T, length, segments,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, X_S: tl.constexpr, Y_S: tl.constexpr,
    REVERSE: tl.constexpr, HAS_RESET: tl.constexpr, CALIBRATED: tl.constexpr, RATE: tl.constexpr, PART: tl.constexpr,
    FLOOR: tl.constexpr, DRIFT: tl.constexpr, FAST: tl.constexpr, CLIP: tl.constexpr,
    N: tl.constexpr, G: tl.constexpr, R: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr, PACK: tl.constexpr,
):
    """What one segment does to the tile that enters it: x -> P x + Q, and whether a reset cuts x off. Grid as `forward_kernel`.

    Forward in time it gathers the writes (x, y) = (v, k); in REVERSE the adjoint's (dh, q). With CLIP it is one of a pair.
    """
    pid = tl.program_id(0)
    b = (pid // segments).to(tl.int64)
    segment = pid % segments
    first_row = tl.program_id(1) * R
    if CLIP is not None:
        if _not_mine(LARGEST, CLIP, False):
            return
    rows = first_row + tl.arange(0, R)[:, None, None]
    cols = _tile_columns(0, G, R, W)
    row_ok = rows < V
    col_ok = cols < K
    TH += b * th_b + first_row
    XX += b * x_b + first_row
    VC += b * vc_b + cols
    YY += b * y_b + cols
    RESET += b * T
    first = segment * length
    last = tl.minimum(first + length, T)
    blocks = (last - first) // N
    even = first + blocks * N
    P = tl.full((R, G, W), 1.0, PP.dtype.element_ty)
    Q = tl.zeros((R, G, W), PP.dtype.element_ty)
    cut = 0
    if HAS_RESET:
        for t in range(first, last):
            cut |= tl.load(RESET + t)
    if REVERSE:
        for i in range(last - even):
            step = _load_step(TH, XX, VC, YY, RESET, last - 1 - i, row_ok, col_ok, TH_S, X_S, VC_S, Y_S,
                              HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
            P, Q = _fold(P, Q, step, None, REVERSE, HAS_RESET, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
    for i in range(blocks):
        steps = ()
        for n in tl.static_range(N):
            t = first + i * N + n
            if REVERSE:
                t = even - 1 - i * N - n
            steps = steps + (_load_step(TH, XX, VC, YY, RESET, t, row_ok, col_ok, TH_S, X_S, VC_S, Y_S,
                                        HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK),)
        for n in tl.static_range(N):
            P, Q = _fold(P, Q, steps[n], None, REVERSE, HAS_RESET, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
    if not REVERSE:
        for t in range(even, last):
            step = _load_step(TH, XX, VC, YY, RESET, t, row_ok, col_ok, TH_S, X_S, VC_S, Y_S, HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
            P, Q = _fold(P, Q, step, None, REVERSE, HAS_RESET, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
    tile = (b * segments + segment) * (V * K) + rows * K + cols
    tl.store(PP + tile, P, mask=row_ok & col_ok)
    tl.store(QQ + tile, Q, mask=row_ok & col_ok)
    if tl.program_id(1) == 0:
        tl.store(CUT + b * segments + segment, cut)


@triton.jit
def limited_summary_kernel(
    TH, VC, VV, KK, QQ, RESET, CK, DH, PP, SUM, CUT, LARGEST,
    th_b, vc_b, v_b, k_b, q_b, T, length, segments,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_RESET: tl.constexpr, CLIP: tl.constexpr, CALIBRATED: tl.constexpr, RATE: tl.constexpr, PART: tl.constexpr,
    FLOOR: tl.constexpr, DRIFT: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, G: tl.constexpr, R: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr, PACK: tl.constexpr,
):
    """What one segment does to the gradient of M that enters it from the right: A -> P A + Q, and whether a reset cuts A off.

    Grid as `summary_kernel`, with which it makes a pair. Per interval: replay from the checkpoint and note where no limit was met, in a bit
    for each step, then fold the steps from the last to the first.
    """
    if _not_mine(LARGEST, CLIP, True):
        return
    pid = tl.program_id(0)
    b = (pid // segments).to(tl.int64)
    segment = pid % segments
    first_row = tl.program_id(1) * R
    rows = first_row + tl.arange(0, R)[:, None, None]
    cols = _tile_columns(0, G, R, W)
    row_ok = rows < V
    col_ok = cols < K
    tile = rows * K + cols
    tile_ok = row_ok & col_ok
    TH += b * th_b + first_row
    VV += b * v_b + first_row
    VC += b * vc_b + cols
    KK += b * k_b + cols
    QQ += b * q_b + cols
    RESET += b * T
    DH += b * T * V + first_row
    saved = b * ((T + S - 1) // S + 1)
    CK += tile
    first = segment * length
    last = tl.minimum(first + length, T)
    P = tl.full((R, G, W), 1.0, PP.dtype.element_ty)
    Q = tl.zeros((R, G, W), PP.dtype.element_ty)
    cut = 0
    if HAS_RESET:
        for t in range(first, last):
            cut |= tl.load(RESET + t)
    intervals = (last - first + S - 1) // S
    for i in range(intervals):
        t0 = first + (intervals - 1 - i) * S
        count = tl.minimum(last - t0, S)
        M = _load(CK + (saved + t0 // S) * (V * K), tile_ok, WHOLE)
        free = tl.zeros((R, G, W), tl.int32)
        for n in range(count):
            step = _load_step(TH, VV, VC, KK, RESET, t0 + n, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                              HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
            M, C, written = _advance(M, step, HAS_RESET, CLIP, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
            free |= _within(written, CLIP).to(tl.int32) << n
        for m in range(count):
            n = count - 1 - m
            step = _load_step(TH, DH, VC, QQ, RESET, t0 + n, row_ok, col_ok, TH_S, V, VC_S, Q_S,
                              HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
            P, Q = _fold(P, Q, step, ((free >> n) & 1) != 0, True, HAS_RESET, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
    tile += (b * segments + segment) * (V * K)
    tl.store(PP + tile, P, mask=tile_ok)
    tl.store(SUM + tile, Q, mask=tile_ok)
    if tl.program_id(1) == 0:
        tl.store(CUT + b * segments + segment, cut)


@triton.jit
def combine_kernel(PP, QQ, CUT, ENTRY, LARGEST, segments, cells, REVERSE: tl.constexpr, HAS_ENTRY: tl.constexpr, CLIP: tl.constexpr,
                   BLOCK: tl.constexpr):
    """Run the summaries one after the other and replace P by what enters each segment. Grid (B, blocks of cells).

    Where CLIP was passed, P may be 0 because of it, and then nothing passes, inf and nan neither.
    """
    b = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = cell < cells
    if HAS_ENTRY:
        x = tl.load(ENTRY + b * cells + cell, mask=ok, other=0.0)
    else:
        x = tl.zeros((BLOCK,), PP.dtype.element_ty)
    limited = False
    if CLIP is not None:
        limited = _within(tl.load(LARGEST), CLIP) == 0
    s = 0
    if REVERSE:
        s = segments - 1
    P = tl.load(PP + (b * segments + s) * cells + cell, mask=ok, other=0.0)
    Q = tl.load(QQ + (b * segments + s) * cells + cell, mask=ok, other=0.0)
    for i in range(segments):
        s = i
        then = tl.minimum(i + 1, segments - 1)
        if REVERSE:
            s = segments - 1 - i
            then = tl.maximum(s - 1, 0)
        at = (b * segments + then) * cells + cell
        next_P = tl.load(PP + at, mask=ok, other=0.0)      # fetched ahead; the very last is not used
        next_Q = tl.load(QQ + at, mask=ok, other=0.0)
        cut = tl.load(CUT + b * segments + s) != 0
        tl.store(PP + (b * segments + s) * cells + cell, x, mask=ok)
        if CLIP is not None:
            cut = cut | (limited & (P == 0.0))
        x = P * tl.where(cut, 0.0, x) + Q                  # masked before the product: 0 * inf is nan
        if CLIP is not None:
            x = _limit(x, _STEEPEST)                       # a gradient: forward in time there are no segments with a clip
        P = next_P
        Q = next_Q
