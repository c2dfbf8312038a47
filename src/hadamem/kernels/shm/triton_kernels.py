"""Triton kernels of SHM's recurrence. `triton.py` plans and launches them; the equations are in `reference.py`.

A program is one warp that owns a tile of M: R rows (values) times G * W columns (keys), kept in registers while it walks through time. The
tile has the shape [R, G, W]. With G = 1 and W >= 128 all lanes lie along the columns and each holds some of R rows; with G = 2 Triton gives
every lane one row and two runs of four columns. So a sum over columns (h, dv, dtheta) is mostly done inside the lane, and a sum over rows
(dq, dk, dvc) waits in the lane until the end. Vectors of the key side are loaded in the tile's own layout (each lane its columns; lanes of
other rows hit the same cache line), anything else would pass through shared memory at every step. Only speed depends on that layout, not
the results.

C = floor + scale / (low + e^(-gain z)) is floor + 1 / (part * 2^(rate * z) + part * low) with part = 1 / scale, rate = -gain * log2(e): two
special-function instructions, right in both tails without a clamp (2^x = inf gives C = floor), and nan stays nan. low is FLOOR, or 1 where
that is 0. A step keeps C - floor, of which the slope is a polynomial. With a drift, theta is a pair of tiles, and DRIFT is V, otherwise 0.

Sizes and time strides are compile-time constants, so that masks vanish where tiles are WHOLE and addresses fold into the loads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .._steepness import STEEPEST

_STEEPEST = tl.constexpr(STEEPEST)


@triton.jit
def _calibrate(theta, vc, RATE: tl.constexpr, PART: tl.constexpr, FLOOR: tl.constexpr, DRIFT: tl.constexpr, FAST: tl.constexpr):
    """C - FLOOR of a tile from theta [R, 1, 1], vc [R, G, W]. FAST: the hardware's reciprocal, at most one unit in the last place off."""
    LOW: tl.constexpr = PART if FLOOR == 0 else PART * FLOOR
    if DRIFT > 0:
        d = tl.exp2((theta[0] * RATE) * vc + theta[1] * RATE) * PART + LOW
    else:
        d = tl.exp2((theta * RATE) * vc) * PART + LOW
    if FAST:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [d], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / d


@triton.jit
def _lift(part, FLOOR: tl.constexpr):
    """C from what `_calibrate` gives."""
    return part if FLOOR == 0 else part + FLOOR


@triton.jit
def _within(x, CLIP: tl.constexpr):
    """|x| <= CLIP, not for nan. A bare CLIP would be rounded to float32 beside a float64 x, and M rests at exactly CLIP."""
    return tl.abs(x) <= tl.full(x.shape, CLIP, x.dtype)


@triton.jit
def _limit(M, CLIP: tl.constexpr):
    """M within ±CLIP; nan stays nan."""
    if M.dtype == tl.float32:              # one instruction from compute capability 9.0 on
        return tl.clamp(M, -CLIP, CLIP, propagate_nan=tl.PropagateNan.ALL)
    else:                                  # which Triton 3.6 also tries for float64, where there is none
        most = tl.full(M.shape, CLIP, M.dtype)
        return tl.where(_within(M, CLIP) | (M != M), M, tl.where(M > 0.0, most, -most))


@triton.jit
def _larger(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _not_mine(LARGEST, CLIP: tl.constexpr, LIMITED: tl.constexpr):
    """Whether the work is for the other kernel of a pair: LARGEST points at the largest |entry| that was ever written, before its limit.

    One of them (LIMITED) knows the limit ±CLIP. The other works as if there were none, with fewer registers, where it was never passed.
    """
    inside = _within(tl.load(LARGEST), CLIP)
    return inside if LIMITED else inside == 0


@triton.jit
def _advance(M, step, HAS_RESET: tl.constexpr, CLIP: tl.constexpr, CALIBRATED: tl.constexpr,
             RATE: tl.constexpr, PART: tl.constexpr, FLOOR: tl.constexpr, DRIFT: tl.constexpr, FAST: tl.constexpr):
    """One write: reset, then M C + v ⊗ k, limited to ±clip (eqs. 8, 9, 14). Returns the new M, C - FLOOR, and M before the limit."""
    theta, v, vc, k, reset = step
    if HAS_RESET:
        M = tl.where(reset, 0.0, M)
    if CALIBRATED:
        C = _calibrate(theta, vc, RATE, PART, FLOOR, DRIFT, FAST)
        M = M * _lift(C, FLOOR) + v * k
    else:
        C = M                       # not used
        M = M + v * k
    P = M
    if CLIP is not None:
        M = _limit(P, CLIP)
    return M, C, P


@triton.jit
def _over_columns(x):
    """[R, G, W] -> [R]: inside the lane first, then across lanes."""
    return tl.sum(tl.sum(x, axis=1), axis=1)


@triton.jit
def _store_rows(X, x, mask, FAST: tl.constexpr):
    """Store x [R]. FAST: by every lane that holds a row, as it is; tl.store would first gather the rows through shared memory.

    The predicate stays even where it always holds: with it the assembler keeps the loads of later steps ahead of the store.
    """
    if FAST:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.f32 [$1], $2; mov.b32 $0, 0; }", "=r,l,f,r",
            [X.to(tl.int64), x, mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.store(X, x, mask=mask)


@triton.jit
def _prefetch(X, FAST: tl.constexpr):
    """Bring what X points to into the L1 cache, without waiting and without a register. Four cells at a time: they share a cache line."""
    if FAST:
        tl.inline_asm_elementwise("prefetch.global.L1 [$4]; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;",
                                  "=r,=r,=r,=r,l,l,l,l", [X.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=4)


@triton.jit
def _load(X, mask, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(X)
    else:
        return tl.load(X, mask=mask, other=0.0)


@triton.jit
def _load_rows(X, mask, WHOLE: tl.constexpr, PACK: tl.constexpr):
    """A scalar for each row [R, 1, 1]; X points at that of the first. PACK: rows that one aligned load brings, 4 or 1."""
    i = tl.arange(0, mask.shape[0])[:, None, None]
    if PACK == 4:
        a, b, c, d = tl.inline_asm_elementwise("ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", [X.to(tl.int64)],
                                               dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1)
        return tl.where(i < 2, tl.where(i == 0, a, b), tl.where(i == 2, c, d))      # known per register: no instructions
    else:
        return _load(X + i, mask, WHOLE)


@triton.jit
def _load_step(TH, VV, VC, KK, RESET, t, row_ok, col_ok, TH_S: tl.constexpr, V_S: tl.constexpr, VC_S: tl.constexpr, K_S: tl.constexpr,
               HAS_RESET: tl.constexpr, CALIBRATED: tl.constexpr, DRIFT: tl.constexpr, WHOLE: tl.constexpr, PACK: tl.constexpr):
    """What the write at step t needs: theta, v [R, 1, 1], vc, k [R, G, W], reset. The pointers hold batch row, rows and columns already."""
    v = _load_rows(VV + t * V_S, row_ok, WHOLE, PACK)
    k = _load(KK + t * K_S, col_ok, WHOLE)
    theta = v
    vc = k
    reset = False
    if CALIBRATED:
        theta = _load_rows(TH + t * TH_S, row_ok, WHOLE, PACK)
        if DRIFT > 0:
            theta = (theta, _load_rows(TH + t * TH_S + DRIFT, row_ok, WHOLE, PACK))
        vc = _load(VC + t * VC_S, col_ok, WHOLE)
    if HAS_RESET:
        reset = tl.load(RESET + t) != 0
    return theta, v, vc, k, reset


@triton.jit
def _load_ahead(TH, VV, VC, KK, QQ, RESET, t0, T, row_ok, col_ok, TH_S: tl.constexpr, V_S: tl.constexpr, VC_S: tl.constexpr,
                K_S: tl.constexpr, Q_S: tl.constexpr, HAS_RESET: tl.constexpr, CALIBRATED: tl.constexpr, DRIFT: tl.constexpr,
                WHOLE: tl.constexpr, PACK: tl.constexpr, N: tl.constexpr):
    """(step, q) of the N steps from t0 on; past the end of the sequence something harmless that is not used."""
    steps = ()
    for n in tl.static_range(N):
        t = tl.minimum(t0, T - N) + n
        steps = steps + ((_load_step(TH, VV, VC, KK, RESET, t, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                                     HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK), _load(QQ + t * Q_S, col_ok, WHOLE)),)
    return steps


@triton.jit
def _tile_columns(strip, G: tl.constexpr, R: tl.constexpr, W: tl.constexpr):
    """The column of every cell of the tile [R, G, W]."""
    cols = strip * (G * W) + tl.arange(0, G)[None, :, None] * W + tl.arange(0, W)[None, None, :]
    if G == 1 and W >= 128:
        return cols                                # all lanes lie along the columns: nothing to repeat
    else:
        return tl.broadcast_to(cols, (R, G, W))


@triton.jit
def forward_kernel(
    TH, VC, VV, KK, QQ, START, RESET, OUT, END, CK,
    th_b, vc_b, v_b, k_b, q_b, T, length, segments,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_START: tl.constexpr, HAS_RESET: tl.constexpr, CLIP: tl.constexpr, CALIBRATED: tl.constexpr, SAVE: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, FLOOR: tl.constexpr, DRIFT: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, G: tl.constexpr, R: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr, PACK: tl.constexpr,
    LOOP: tl.constexpr,
):
    """Walk one segment of one batch row: h at every step, a checkpoint before every S-th, the memory after the last.

    Grid (B * segments, row bands); the tile spans all columns. N steps (N <= T) are computed while the next N are fetched; S is a multiple
    of 2 N, `length` one of S. Without LOOP (sequences shorter than 2 N) single steps are all there is. With CLIP there is one segment, and
    the largest |entry| written to each row, before its limit, is left behind the last checkpoint.
    """
    WATCH: tl.constexpr = SAVE and CLIP is not None
    pid = tl.program_id(0)
    b = (pid // segments).to(tl.int64)
    segment = pid % segments
    first_row = tl.program_id(1) * R
    row = first_row + tl.arange(0, R)
    rows = row[:, None, None]
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
    OUT += b * T * V + row
    saved = b * ((T + S - 1) // S + WATCH)     # int64, as products with it must be
    LARGEST = CK + (saved + (T + S - 1) // S) * (V * K) + row
    CK += tile
    if HAS_START:
        M = _load(START + (b * segments + segment) * (V * K) + tile, tile_ok, WHOLE)
    else:
        M = tl.zeros((R, G, W), OUT.dtype.element_ty)
    first = segment * length
    last = tl.minimum(first + length, T)
    even = first + (last - first) // (2 * N) * (2 * N)
    largest = tl.zeros((R, G, W), OUT.dtype.element_ty)
    one = ()
    if LOOP:
        one = _load_ahead(TH, VV, VC, KK, QQ, RESET, first, T, row_ok, col_ok, TH_S, V_S, VC_S, K_S, Q_S,
                          HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK, N)
        for t0 in range(first, even, 2 * N):
            two = _load_ahead(TH, VV, VC, KK, QQ, RESET, t0 + N, T, row_ok, col_ok, TH_S, V_S, VC_S, K_S, Q_S,
                              HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK, N)
            if SAVE:
                if t0 % S == 0:
                    tl.store(CK + (saved + t0 // S) * (V * K), M, mask=tile_ok)
            for n in tl.static_range(N):
                step, q = one[n]
                M, C, P = _advance(M, step, HAS_RESET, CLIP, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
                if WATCH:
                    largest = _larger(largest, tl.abs(P))
                _store_rows(OUT + (t0 + n) * V, _over_columns(M * q), row < V, FAST)          # eq. 2
            one = _load_ahead(TH, VV, VC, KK, QQ, RESET, t0 + 2 * N, T, row_ok, col_ok, TH_S, V_S, VC_S, K_S, Q_S,
                              HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK, N)
            for n in tl.static_range(N):
                step, q = two[n]
                M, C, P = _advance(M, step, HAS_RESET, CLIP, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
                if WATCH:
                    largest = _larger(largest, tl.abs(P))
                _store_rows(OUT + (t0 + N + n) * V, _over_columns(M * q), row < V, FAST)
    for t in range(even, last):
        if SAVE:
            if t % S == 0:
                tl.store(CK + (saved + t // S) * (V * K), M, mask=tile_ok)
        step = _load_step(TH, VV, VC, KK, RESET, t, row_ok, col_ok, TH_S, V_S, VC_S, K_S, HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
        q = _load(QQ + t * Q_S, col_ok, WHOLE)
        M, C, P = _advance(M, step, HAS_RESET, CLIP, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
        if WATCH:
            largest = _larger(largest, tl.abs(P))
        _store_rows(OUT + t * V, _over_columns(M * q), row < V, FAST)
    if WATCH:
        _store_rows(LARGEST, tl.reduce(tl.reduce(largest, 1, _larger), 1, _larger), row < V, FAST)
    if segment == segments - 1:
        tl.store(END + b * (V * K) + tile, M, mask=tile_ok)
