"""Triton kernels of SHM's recurrence. `triton.py` plans and launches them; the equations are in `reference.py`.

A program is one warp that owns a tile of M: BR rows (values) times BC columns (keys), kept in registers while it walks through time. Lanes
lie along the columns, so a sum over columns (h, dv, dtheta) is a few shuffles and a sum over rows (dq, dk, dvc) stays inside a lane. Vectors
are loaded as [BR, 1] and [1, BC], which is the tile's own layout: anything else would pass through shared memory at every step.

C = scale * sigmoid(gain * z) is computed as 1 / (part * 2^(rate * z) + part) with part = 1 / scale and rate = -gain * log2(e): two
special-function instructions, right in both tails without a clamp (2^x = inf gives C = 0), and nan stays nan.

Sizes and time strides are compile-time constants, so that masks vanish where a tile is WHOLE and addresses fold into the loads.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _calibrate(theta, vc, RATE: tl.constexpr, PART: tl.constexpr, FAST: tl.constexpr):
    """C of a tile from theta [BR, 1] and vc [1, BC]. FAST: the hardware's reciprocal, off by one unit in the last place at most."""
    d = tl.exp2((theta * RATE) * vc) * PART + PART
    if FAST:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [d], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / d


@triton.jit
def _advance(M, step, clip, HAS_RESET: tl.constexpr, HAS_CLIP: tl.constexpr, CALIBRATED: tl.constexpr,
             RATE: tl.constexpr, PART: tl.constexpr, FAST: tl.constexpr):
    """One write: reset, then M C + v ⊗ k, limited to ±clip (eqs. 8, 9, 14). Returns the new M, and C."""
    theta, v, vc, k, reset = step
    if HAS_RESET:
        M = tl.where(reset, 0.0, M)
    if CALIBRATED:
        C = _calibrate(theta, vc, RATE, PART, FAST)
        M = M * C + v * k
    else:
        C = M                       # not used
        M = M + v * k
    if HAS_CLIP:
        M = tl.where(M > clip, clip, tl.where(M < -clip, -clip, M))   # nan stays nan
    return M, C


@triton.jit
def _load(X, mask, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(X)
    else:
        return tl.load(X, mask=mask, other=0.0)


@triton.jit
def _load_step(TH, VV, VC, KK, RESET, t, row_ok, col_ok, TH_S: tl.constexpr, V_S: tl.constexpr, VC_S: tl.constexpr, K_S: tl.constexpr,
               HAS_RESET: tl.constexpr, CALIBRATED: tl.constexpr, WHOLE: tl.constexpr):
    """What the write at step t needs: theta, v [BR, 1], vc, k [1, BC], reset. The pointers hold batch row, rows and columns already."""
    v = _load(VV + t * V_S, row_ok, WHOLE)
    k = _load(KK + t * K_S, col_ok, WHOLE)
    theta = v
    vc = k
    reset = False
    if CALIBRATED:
        theta = _load(TH + t * TH_S, row_ok, WHOLE)
        vc = _load(VC + t * VC_S, col_ok, WHOLE)
    if HAS_RESET:
        reset = tl.load(RESET + t) != 0
    return theta, v, vc, k, reset


@triton.jit
def forward_kernel(
    TH, VC, VV, KK, QQ, START, RESET, OUT, END, CK,
    th_b, vc_b, v_b, k_b, q_b, T, length, segments, clip,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_START: tl.constexpr, HAS_RESET: tl.constexpr, HAS_CLIP: tl.constexpr, CALIBRATED: tl.constexpr, SAVE: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WHOLE: tl.constexpr,
):
    """Walk one segment of one batch row: h at every step, a checkpoint before every S-th, the memory after the last.

    Grid (B * segments, row bands). N steps (N <= T) are unrolled and the next N fetched meanwhile; S is a multiple of N, `length` one of S.
    """
    pid = tl.program_id(0)
    b = (pid // segments).to(tl.int64)
    segment = pid % segments
    rows = tl.program_id(1) * BR + tl.arange(0, BR)[:, None]
    cols = tl.arange(0, BC)[None, :]
    row_ok = rows < V
    col_ok = cols < K
    tile = rows * K + cols
    tile_ok = row_ok & col_ok
    TH += b * th_b + rows
    VV += b * v_b + rows
    VC += b * vc_b + cols
    KK += b * k_b + cols
    QQ += b * q_b + cols
    RESET += b * T
    OUT += b * T * V + rows
    CK += tile
    saved = b * ((T + S - 1) // S)             # int64, as products with it must be
    if HAS_START:
        M = _load(START + (b * segments + segment) * (V * K) + tile, tile_ok, WHOLE)
    else:
        M = tl.zeros((BR, BC), OUT.dtype.element_ty)
    first = segment * length
    last = tl.minimum(first + length, T)
    even = first + (last - first) // N * N
    ahead = ()
    for n in tl.static_range(N):
        t = tl.minimum(first, T - N) + n
        ahead = ahead + ((_load_step(TH, VV, VC, KK, RESET, t, row_ok, col_ok, TH_S, V_S, VC_S, K_S, HAS_RESET, CALIBRATED, WHOLE),
                          _load(QQ + t * Q_S, col_ok, WHOLE)),)
    for t0 in range(first, even, N):
        steps = ahead
        ahead = ()
        for n in tl.static_range(N):
            t = tl.minimum(t0 + N, T - N) + n       # past the end: something harmless that is not used
            ahead = ahead + ((_load_step(TH, VV, VC, KK, RESET, t, row_ok, col_ok, TH_S, V_S, VC_S, K_S, HAS_RESET, CALIBRATED, WHOLE),
                              _load(QQ + t * Q_S, col_ok, WHOLE)),)
        if SAVE:
            if t0 % S == 0:
                tl.store(CK + (saved + t0 // S) * (V * K), M, mask=tile_ok)
        for n in tl.static_range(N):
            step, q = steps[n]
            M, C = _advance(M, step, clip, HAS_RESET, HAS_CLIP, CALIBRATED, RATE, PART, FAST)
            tl.store(OUT + (t0 + n) * V, tl.sum(M * q, axis=1, keep_dims=True), mask=row_ok)     # eq. 2
    for t in range(even, last):
        if SAVE:
            if t % S == 0:
                tl.store(CK + (saved + t // S) * (V * K), M, mask=tile_ok)
        step = _load_step(TH, VV, VC, KK, RESET, t, row_ok, col_ok, TH_S, V_S, VC_S, K_S, HAS_RESET, CALIBRATED, WHOLE)
        q = _load(QQ + t * Q_S, col_ok, WHOLE)
        M, C = _advance(M, step, clip, HAS_RESET, HAS_CLIP, CALIBRATED, RATE, PART, FAST)
        tl.store(OUT + t * V, tl.sum(M * q, axis=1, keep_dims=True), mask=row_ok)
    if segment == segments - 1:
        tl.store(END + b * (V * K) + tile, M, mask=tile_ok)


@triton.jit
def _fold(P, Q, step, REVERSE: tl.constexpr, HAS_RESET: tl.constexpr, CALIBRATED: tl.constexpr,
          RATE: tl.constexpr, PART: tl.constexpr, FAST: tl.constexpr):
    """Append a step to x -> P x + Q: forward in time Q C + x ⊗ y after a reset, in reverse (Q + x ⊗ y) C before it."""
    theta, x, vc, y, reset = step
    if HAS_RESET and not REVERSE:
        P = tl.where(reset, 0.0, P)
        Q = tl.where(reset, 0.0, Q)
    if CALIBRATED:
        C = _calibrate(theta, vc, RATE, PART, FAST)
        P = P * C
        if REVERSE:
            Q = (Q + x * y) * C
        else:
            Q = Q * C + x * y
    else:
        Q = Q + x * y
    if HAS_RESET and REVERSE:
        P = tl.where(reset, 0.0, P)
        Q = tl.where(reset, 0.0, Q)
    return P, Q


@triton.jit
def summary_kernel(
    TH, VC, XX, YY, RESET, PP, QQ, CUT,
    th_b, vc_b, x_b, y_b, T, length, segments,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, X_S: tl.constexpr, Y_S: tl.constexpr,
    REVERSE: tl.constexpr, HAS_RESET: tl.constexpr, CALIBRATED: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, FAST: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WHOLE: tl.constexpr,
):
    """What one segment does to the tile that enters it: x -> P x + Q, and whether a reset cuts x off. Grid as `forward_kernel`.

    Forward in time it gathers the writes (x, y) = (v, k); in REVERSE the adjoint's (dh, q).
    """
    pid = tl.program_id(0)
    b = (pid // segments).to(tl.int64)
    segment = pid % segments
    rows = tl.program_id(1) * BR + tl.arange(0, BR)[:, None]
    cols = tl.arange(0, BC)[None, :]
    row_ok = rows < V
    col_ok = cols < K
    TH += b * th_b + rows
    XX += b * x_b + rows
    VC += b * vc_b + cols
    YY += b * y_b + cols
    RESET += b * T
    first = segment * length
    last = tl.minimum(first + length, T)
    blocks = (last - first) // N
    even = first + blocks * N
    P = tl.full((BR, BC), 1.0, PP.dtype.element_ty)
    Q = tl.zeros((BR, BC), PP.dtype.element_ty)
    cut = 0
    if HAS_RESET:
        for t in range(first, last):
            cut |= tl.load(RESET + t)
    if REVERSE:
        for i in range(last - even):
            step = _load_step(TH, XX, VC, YY, RESET, last - 1 - i, row_ok, col_ok, TH_S, X_S, VC_S, Y_S, HAS_RESET, CALIBRATED, WHOLE)
            P, Q = _fold(P, Q, step, REVERSE, HAS_RESET, CALIBRATED, RATE, PART, FAST)
    for i in range(blocks):
        steps = ()
        for n in tl.static_range(N):
            t = first + i * N + n
            if REVERSE:
                t = even - 1 - i * N - n
            steps = steps + (_load_step(TH, XX, VC, YY, RESET, t, row_ok, col_ok, TH_S, X_S, VC_S, Y_S, HAS_RESET, CALIBRATED, WHOLE),)
        for n in tl.static_range(N):
            P, Q = _fold(P, Q, steps[n], REVERSE, HAS_RESET, CALIBRATED, RATE, PART, FAST)
    if not REVERSE:
        for t in range(even, last):
            step = _load_step(TH, XX, VC, YY, RESET, t, row_ok, col_ok, TH_S, X_S, VC_S, Y_S, HAS_RESET, CALIBRATED, WHOLE)
            P, Q = _fold(P, Q, step, REVERSE, HAS_RESET, CALIBRATED, RATE, PART, FAST)
    tile = (b * segments + segment) * (V * K) + rows * K + cols
    tl.store(PP + tile, P, mask=row_ok & col_ok)
    tl.store(QQ + tile, Q, mask=row_ok & col_ok)
    if tl.program_id(1) == 0:
        tl.store(CUT + b * segments + segment, cut)


@triton.jit
def combine_kernel(PP, QQ, CUT, ENTRY, segments, cells, REVERSE: tl.constexpr, HAS_ENTRY: tl.constexpr, BLOCK: tl.constexpr):
    """Run the summaries one after the other and replace P by what enters each segment. Grid (B, blocks of cells)."""
    b = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = cell < cells
    if HAS_ENTRY:
        x = tl.load(ENTRY + b * cells + cell, mask=ok, other=0.0)
    else:
        x = tl.zeros((BLOCK,), PP.dtype.element_ty)
    for i in range(segments):
        s = i
        if REVERSE:
            s = segments - 1 - i
        at = (b * segments + s) * cells + cell
        P = tl.load(PP + at, mask=ok, other=0.0)
        Q = tl.load(QQ + at, mask=ok, other=0.0)
        cut = tl.load(CUT + b * segments + s) != 0
        tl.store(PP + at, x, mask=ok)
        x = P * tl.where(cut, 0.0, x) + Q     # masked before the product: 0 * inf is nan


@triton.jit
def _gradient_block(
    TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DV, DVC, DK, DQ, saved, t0, row, cols, col_ok, bands, clip,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_RESET: tl.constexpr, HAS_CLIP: tl.constexpr, CALIBRATED: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, GAIN: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WHOLE: tl.constexpr,
):
    """Gradients of the N steps from t0 on, for `bands` row bands from `row` on; A is read from AA and written back for the step before."""
    zero = tl.zeros((1, BC), DV.dtype.element_ty)
    sums = ()
    for n in tl.static_range(N):
        sums = sums + ((zero, zero, zero),)
    for band in range(bands):
        rows = row + band * BR + tl.arange(0, BR)[:, None]
        row_ok = rows < V
        tile = rows * K + cols
        tile_ok = row_ok & col_ok
        M = _load(CK + (saved + t0 // S) * (V * K) + tile, tile_ok, WHOLE)
        A = _load(AA + tile, tile_ok, WHOLE)
        for t in range(t0 // S * S, t0):
            step = _load_step(TH + rows, VV + rows, VC, KK, RESET, t, row_ok, col_ok, TH_S, V_S, VC_S, K_S, HAS_RESET, CALIBRATED, WHOLE)
            M, C = _advance(M, step, clip, HAS_RESET, HAS_CLIP, CALIBRATED, RATE, PART, FAST)
        steps = ()
        reads = ()
        for n in tl.static_range(N):
            t = t0 + n
            steps = steps + (_load_step(TH + rows, VV + rows, VC, KK, RESET, t, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                                        HAS_RESET, CALIBRATED, WHOLE),)
            reads = reads + ((_load(DH + t * V + rows, row_ok, WHOLE), _load(QQ + t * Q_S, col_ok, WHOLE)),)
        Ms = (M,)
        Cs = ()
        for n in tl.static_range(N):
            M, C = _advance(M, steps[n], clip, HAS_RESET, HAS_CLIP, CALIBRATED, RATE, PART, FAST)
            Ms = Ms + (M,)
            Cs = Cs + (C,)
        new = ()
        for m in tl.static_range(N):
            t = t0 + (N - 1 - m)
            theta, v, vc, k, reset = steps[N - 1 - m]
            g, q = reads[N - 1 - m]
            dq, dk, dvc = sums[N - 1 - m]
            before = Ms[N - 1 - m]
            C = Cs[N - 1 - m]
            if HAS_RESET:
                before = tl.where(reset, 0.0, before)
            dq += tl.sum(Ms[N - m] * g, axis=0, keep_dims=True)                  # dq_t = M_tᵀ g_t
            A += g * q
            if HAS_CLIP:
                written = v * k
                if CALIBRATED:
                    written += before * C
                else:
                    written += before
                A = tl.where(tl.abs(written) <= clip, A, 0.0)
            dk += tl.sum(A * v, axis=0, keep_dims=True)                          # dk_t = Aᵀ v_t
            tl.store(DV + t * V + rows, tl.sum(A * k, axis=1, keep_dims=True), mask=row_ok)
            if CALIBRATED:
                A = A * C
                W = (A * before) * (GAIN - (GAIN * PART) * C)                    # dL/dz
                tl.store(DTH + t * V + rows, tl.sum(W * vc, axis=1, keep_dims=True), mask=row_ok)
                dvc += tl.sum(W * theta, axis=0, keep_dims=True)
            if HAS_RESET:
                A = tl.where(reset, 0.0, A)
            new = ((dq, dk, dvc),) + new
        sums = new
        tl.store(AA + tile, A, mask=tile_ok)
    for n in tl.static_range(N):
        dq, dk, dvc = sums[n]
        tl.store(DQ + (t0 + n) * K, dq, mask=col_ok)
        tl.store(DK + (t0 + n) * K, dk, mask=col_ok)
        if CALIBRATED:
            tl.store(DVC + (t0 + n) * K, dvc, mask=col_ok)


@triton.jit
def gradients_kernel(
    TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DV, DVC, DK, DQ,
    th_b, vc_b, v_b, k_b, q_b, B, T, length, segments, bands, clip,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_RESET: tl.constexpr, HAS_CLIP: tl.constexpr, CALIBRATED: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, GAIN: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, WHOLE: tl.constexpr,
):
    """Gradients of one segment of one batch row, in reverse; A = dL/dM enters through AA and leaves there for the segment before.

    Grid (B * segments, groups of `bands` row bands, column bands). Per N steps and row band: start from the checkpoint, replay up to the N
    steps, replay those keeping M and C in registers, then go back. Sums over rows stay in registers across the bands of a group; DVC, DK, DQ
    hold one partial sum per group, DTH, DV one per column band.
    """
    pid = tl.program_id(0)
    b = (pid // segments).to(tl.int64)
    segment = pid % segments
    group = tl.program_id(1)
    strip = tl.program_id(2)
    cols = strip * BC + tl.arange(0, BC)[None, :]
    col_ok = cols < K
    first = segment * length
    last = tl.minimum(first + length, T)
    blocks = (last - first) // N
    even = first + blocks * N
    TH += b * th_b
    VV += b * v_b
    VC += b * vc_b + cols
    KK += b * k_b + cols
    QQ += b * q_b + cols
    RESET += b * T
    DH += b * T * V
    saved = b * ((T + S - 1) // S)
    AA += (b * segments + segment) * (V * K)
    by_row = (strip * B + b) * T * V
    by_col = (group * B + b) * T * K + cols
    DTH += by_row
    DV += by_row
    DVC += by_col
    DK += by_col
    DQ += by_col
    row = group * bands * BR
    for i in range(last - even):
        _gradient_block(TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DV, DVC, DK, DQ, saved, last - 1 - i, row, cols, col_ok, bands, clip,
                        V, K, TH_S, VC_S, V_S, K_S, Q_S, HAS_RESET, HAS_CLIP, CALIBRATED, RATE, PART, GAIN, FAST, S, 1, BR, BC, WHOLE)
    for i in range(blocks):
        _gradient_block(TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DV, DVC, DK, DQ, saved, even - (i + 1) * N, row, cols, col_ok, bands, clip,
                        V, K, TH_S, VC_S, V_S, K_S, Q_S, HAS_RESET, HAS_CLIP, CALIBRATED, RATE, PART, GAIN, FAST, S, N, BR, BC, WHOLE)
