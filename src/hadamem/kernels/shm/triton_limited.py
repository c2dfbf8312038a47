"""The Triton kernel that sums up a segment of the adjoint where writes are limited to ±clip. Tiles and loads as in `triton_kernels.py`.

Where a write was limited no gradient passes, and only a replay from the checkpoints tells where that was. Mostly it was nowhere: a bound
for the interval, from its checkpoint and the largest numbers written, says so first, and the replay is left out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_kernels import _advance, _fold, _limit, _load, _load_rows, _load_step, _tile_columns


@triton.jit
def _larger(x, y):
    return tl.maximum(x, tl.abs(y), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _fold_interval(
    P, Q, TH, VC, VV, KK, QQ, RESET, CK, DH, t0, row_ok, col_ok,
    V: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_RESET: tl.constexpr, CLIP: tl.constexpr, REACH: tl.constexpr, CALIBRATED: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, FAST: tl.constexpr, count, N: tl.constexpr, WHOLE: tl.constexpr, PACK: tl.constexpr,
):
    """Fold the `count` steps from t0 on, the last one first; a checkpoint lies at t0, N divides count."""
    M = _load(CK, row_ok & col_ok, WHOLE)
    v = _load_rows(VV + t0 * V_S, row_ok, WHOLE, PACK)
    k = _load(KK + t0 * K_S, col_ok, WHOLE)
    v_most = tl.abs(v)
    k_most = tl.abs(k)
    for i in range(1, count):
        v_most = _larger(v_most, _load_rows(VV + (t0 + i) * V_S, row_ok, WHOLE, PACK))
        k_most = _larger(k_most, _load(KK + (t0 + i) * K_S, col_ok, WHOLE))
    inside = REACH * (tl.abs(M) + v_most * k_most) <= CLIP                       # false for nan
    if tl.min(tl.min(tl.min(inside.to(tl.int32), axis=2), axis=1), axis=0) != 0:
        for i in range(count // N):
            steps = ()
            for n in tl.static_range(N):
                t = t0 + count - 1 - i * N - n
                steps = steps + (_load_step(TH, DH, VC, QQ, RESET, t, row_ok, col_ok, TH_S, V, VC_S, Q_S,
                                            HAS_RESET, CALIBRATED, WHOLE, PACK),)
            for n in tl.static_range(N):
                P, Q = _fold(P, Q, steps[n], None, True, HAS_RESET, CALIBRATED, RATE, PART, FAST)
    else:
        free = tl.zeros(M.shape, tl.int32)
        for i in range(count):
            step = _load_step(TH, VV, VC, KK, RESET, t0 + i, row_ok, col_ok, TH_S, V_S, VC_S, K_S, HAS_RESET, CALIBRATED, WHOLE, PACK)
            M, C = _advance(M, step, HAS_RESET, None, CALIBRATED, RATE, PART, FAST)
            free |= (tl.abs(M) <= CLIP).to(tl.int32) << i
            M = _limit(M, CLIP)
        for i in range(count):
            n = count - 1 - i
            step = _load_step(TH, DH, VC, QQ, RESET, t0 + n, row_ok, col_ok, TH_S, V, VC_S, Q_S, HAS_RESET, CALIBRATED, WHOLE, PACK)
            P, Q = _fold(P, Q, step, ((free >> n) & 1) != 0, True, HAS_RESET, CALIBRATED, RATE, PART, FAST)
    return P, Q


@triton.jit
def limited_summary_kernel(
    TH, VC, VV, KK, QQ, RESET, CK, DH, PP, SUM, CUT,
    th_b, vc_b, v_b, k_b, q_b, T, length, segments,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_RESET: tl.constexpr, CLIP: tl.constexpr, REACH: tl.constexpr, CALIBRATED: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, G: tl.constexpr, R: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr, PACK: tl.constexpr,
):
    """What one segment does to the gradient of M that enters it from the right: A -> P A + Q, and whether a reset cuts A off.

    Grid as `summary_kernel`. REACH: how far entries of one can get in S steps, if C and what is written are as large as they may be.
    """
    pid = tl.program_id(0)
    b = (pid // segments).to(tl.int64)
    segment = pid % segments
    first_row = tl.program_id(1) * R
    rows = first_row + tl.arange(0, R)[:, None, None]
    cols = _tile_columns(0, G, R, W)
    row_ok = rows < V
    col_ok = cols < K
    TH += b * th_b + first_row
    VV += b * v_b + first_row
    VC += b * vc_b + cols
    KK += b * k_b + cols
    QQ += b * q_b + cols
    RESET += b * T
    DH += b * T * V + first_row
    tile = rows * K + cols
    CK += b * ((T + S - 1) // S) * (V * K) + tile
    first = segment * length
    last = tl.minimum(first + length, T)
    full = (last - first) // S
    even = first + full * S
    P = tl.full((R, G, W), 1.0, PP.dtype.element_ty)
    Q = tl.zeros((R, G, W), PP.dtype.element_ty)
    cut = 0
    if HAS_RESET:
        for t in range(first, last):
            cut |= tl.load(RESET + t)
    if even < last:
        P, Q = _fold_interval(P, Q, TH, VC, VV, KK, QQ, RESET, CK + (even // S) * (V * K), DH, even, row_ok, col_ok,
                              V, TH_S, VC_S, V_S, K_S, Q_S, HAS_RESET, CLIP, REACH, CALIBRATED, RATE, PART, FAST,
                              last - even, 1, WHOLE, PACK)
    for i in range(full):
        t0 = even - (i + 1) * S
        P, Q = _fold_interval(P, Q, TH, VC, VV, KK, QQ, RESET, CK + (t0 // S) * (V * K), DH, t0, row_ok, col_ok,
                              V, TH_S, VC_S, V_S, K_S, Q_S, HAS_RESET, CLIP, REACH, CALIBRATED, RATE, PART, FAST,
                              S, N, WHOLE, PACK)
    tile += (b * segments + segment) * (V * K)
    tl.store(PP + tile, P, mask=row_ok & col_ok)
    tl.store(SUM + tile, Q, mask=row_ok & col_ok)
    if tl.program_id(1) == 0:
        tl.store(CUT + b * segments + segment, cut)
