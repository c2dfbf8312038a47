"""The Triton kernel of SHM's gradients, and the sum of its parts. Tiles, layouts and loads are those of `triton_kernels.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_kernels import _advance, _load, _load_step, _over_columns, _prefetch, _store_rows, _tile_columns


@triton.jit
def total_kernel(PARTS, X, Y, Z, n, groups, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the partial sums [COUNT, groups, n] over the groups, in their order: X, Y and, of three, Z."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    for i in tl.static_range(COUNT):
        total = tl.zeros((BLOCK,), X.dtype.element_ty)
        for group in range(groups):
            total += tl.load(PARTS + (at * 0 + i * groups + group) * n + at, mask=ok, other=0.0)
        if i == 0:
            tl.store(X + at, total, mask=ok)
        if i == 1:
            tl.store(Y + at, total, mask=ok)
        if i == 2:
            tl.store(Z + at, total, mask=ok)


@triton.jit
def _add_three(a, b, c, x, y, z):
    return a + x, b + y, c + z


@triton.jit
def _gradient_block(
    TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DV, DVC, DK, DQ, saved, t0, first_row, cols, col_ok, bands,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_RESET: tl.constexpr, CLIP: tl.constexpr, CALIBRATED: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, GAIN: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, G: tl.constexpr, R: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr,
):
    """Gradients of the N steps from t0 on, for `bands` row bands from `first_row` on; A is read from AA and goes back there."""
    zero = tl.zeros((R, G, W), DV.dtype.element_ty)
    sums = ()
    for n in tl.static_range(N):
        sums = sums + ((zero, zero, zero),)
    CK += (saved + t0 // S) * (V * K)
    for band in range(bands):
        row = first_row + band * R + tl.arange(0, R)
        rows = row[:, None, None]
        row_ok = rows < V
        tile = rows * K + cols
        tile_ok = row_ok & col_ok
        M = _load(CK + tile, tile_ok, WHOLE)
        A = _load(AA + tile, tile_ok, WHOLE)
        below = tl.minimum(tile + R * K, V * K - 1)
        _prefetch(CK + below, FAST)                                              # the next band's, which come from far away
        _prefetch(AA + below, FAST)
        for t in range(t0 // S * S, t0, N):                                      # from the checkpoint up to t0
            step = _load_step(TH + rows, VV + rows, VC, KK, RESET, t, row_ok, col_ok, TH_S, V_S, VC_S, K_S, HAS_RESET, CALIBRATED, WHOLE)
            for n in tl.static_range(N):
                then = step
                if n + 1 < N:                                                    # fetched one step ahead, here and below
                    then = _load_step(TH + rows, VV + rows, VC, KK, RESET, t + n + 1, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                                      HAS_RESET, CALIBRATED, WHOLE)
                M, C = _advance(M, step, HAS_RESET, CLIP, CALIBRATED, RATE, PART, FAST)
                step = then
        step = _load_step(TH + rows, VV + rows, VC, KK, RESET, t0, row_ok, col_ok, TH_S, V_S, VC_S, K_S, HAS_RESET, CALIBRATED, WHOLE)
        g = _load(DH + t0 * V + rows, row_ok, WHOLE)
        Ms = ()                                                                  # the memory before each step, after its reset
        Cs = ()
        dqs = ()
        for n in tl.static_range(N):
            then = step
            then_g = g
            if n + 1 < N:
                then = _load_step(TH + rows, VV + rows, VC, KK, RESET, t0 + n + 1, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                                  HAS_RESET, CALIBRATED, WHOLE)
                then_g = _load(DH + (t0 + n + 1) * V + rows, row_ok, WHOLE)
            if HAS_RESET:
                M = tl.where(step[4], 0.0, M)
            Ms = Ms + (M,)
            M, C = _advance(M, step, False, CLIP, CALIBRATED, RATE, PART, FAST)
            Cs = Cs + (C,)
            dqs = dqs + (sums[n][0] + M * g,)                                    # dq_t = M_tᵀ g_t
            step = then
            g = then_g
        q = _load(QQ + (t0 + N - 1) * Q_S, col_ok, WHOLE)
        new = ()
        for m in tl.static_range(N):
            t = t0 + (N - 1 - m)
            theta, v, vc, k, reset = step
            then_g = g
            then_q = q
            if m + 1 < N:
                step = _load_step(TH + rows, VV + rows, VC, KK, RESET, t - 1, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                                  HAS_RESET, CALIBRATED, WHOLE)
                then_g = _load(DH + (t - 1) * V + rows, row_ok, WHOLE)
                then_q = _load(QQ + (t - 1) * Q_S, col_ok, WHOLE)
            dq, dk, dvc = sums[N - 1 - m]
            before = Ms[N - 1 - m]
            C = Cs[N - 1 - m]
            A += g * q
            if CLIP is not None:
                written = v * k
                if CALIBRATED:
                    written += before * C
                else:
                    written += before
                A = tl.where(tl.abs(written) <= CLIP, A, 0.0)
            dk += A * v                                                          # dk_t = Aᵀ v_t
            _store_rows(DV + t * V + row, _over_columns(A * k), row < V, FAST)
            if CALIBRATED:
                A = A * C
                W_t = (A * before) * (GAIN - (GAIN * PART) * C)                  # dL/dz
                _store_rows(DTH + t * V + row, _over_columns(W_t * vc), row < V, FAST)
                dvc += W_t * theta
            if HAS_RESET:
                A = tl.where(reset, 0.0, A)
            new = ((dqs[N - 1 - m], dk, dvc),) + new
            g = then_g
            q = then_q
        sums = new
        tl.store(AA + tile, A, mask=tile_ok)
    col = tl.max(cols, axis=0, keep_dims=True)       # [1, G, W]: the same in every row
    ok = col < K
    for n in tl.static_range(N):
        dq, dk, dvc = tl.reduce(sums[n], 0, _add_three, keep_dims=True)
        tl.store(DQ + (t0 + n) * K + col, dq, mask=ok)
        tl.store(DK + (t0 + n) * K + col, dk, mask=ok)
        if CALIBRATED:
            tl.store(DVC + (t0 + n) * K + col, dvc, mask=ok)
    tl.debug_barrier()      # A was stored by this program and is read by it again


@triton.jit
def gradients_kernel(
    TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DV, DVC, DK, DQ,
    th_b, vc_b, v_b, k_b, q_b, B, T, length, segments, bands,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_RESET: tl.constexpr, CLIP: tl.constexpr, CALIBRATED: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, GAIN: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, G: tl.constexpr, R: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr,
):
    """Gradients of one segment of one batch row, in reverse; A = dL/dM enters through AA and leaves there for the segment before.

    Grid (B * segments, groups of `bands` row bands, strips of columns). Per N steps and row band: start from the checkpoint, replay up to
    the N steps, replay those keeping M and C in registers, then go back. Sums over rows stay in registers across the bands of a group; DVC,
    DK, DQ hold one partial sum per group, DTH, DV one per strip.
    """
    pid = tl.program_id(0)
    b = (pid // segments).to(tl.int64)
    segment = pid % segments
    group = tl.program_id(1)
    strip = tl.program_id(2)
    cols = _tile_columns(strip, G, R, W)
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
    DTH += (strip * B + b) * T * V
    DV += (strip * B + b) * T * V
    DVC += (group * B + b) * T * K
    DK += (group * B + b) * T * K
    DQ += (group * B + b) * T * K
    row = group * bands * R
    for i in range(last - even):
        _gradient_block(TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DV, DVC, DK, DQ, saved, last - 1 - i, row, cols, col_ok, bands,
                        V, K, TH_S, VC_S, V_S, K_S, Q_S, HAS_RESET, CLIP, CALIBRATED, RATE, PART, GAIN, FAST, S, 1, G, R, W, WHOLE)
    for i in range(blocks):
        _gradient_block(TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DV, DVC, DK, DQ, saved, even - (i + 1) * N, row, cols, col_ok, bands,
                        V, K, TH_S, VC_S, V_S, K_S, Q_S, HAS_RESET, CLIP, CALIBRATED, RATE, PART, GAIN, FAST,
                        S, N, G, R, W, WHOLE)
