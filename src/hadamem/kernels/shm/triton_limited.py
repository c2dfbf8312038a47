"""The Triton kernel that sums up a segment of the adjoint where writes were limited to ±clip. Tiles and loads as in `triton_kernels.py`.

Where a write was limited no gradient passes, and only a replay from the checkpoints shows where that was.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_kernels import _advance, _fold, _load, _load_step, _not_mine, _tile_columns, _within


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
