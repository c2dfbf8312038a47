"""The Triton kernel of SHM's gradients, and the sum of its parts. Tiles, layouts and loads are those of `triton_kernels.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_kernels import (
    _STEEPEST,
    _advance,
    _lift,
    _limit,
    _load,
    _load_rows,
    _load_step,
    _not_mine,
    _over_columns,
    _prefetch,
    _store_rows,
    _tile_columns,
    _within,
)


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


def _sum_and_store(rows: int) -> str:
    """PTX that adds up 2 * rows values over the 32 lanes and stores the sums: `rows` of them at one pointer, as many at another.

    Halves swap what they do not keep, so that 2 * rows sums take 2 * rows + 1 or 2 exchanges instead of ten for each row. Operands: `rows`
    outputs that mean nothing; `rows` values each of x and y; their pointers and the number of rows that exist, `rows` copies of each.
    """
    x, y, at_x, at_y, left = (rows * i for i in range(1, 6))
    lines = [".reg .pred p, ok; .reg .b32 lane, bit, row; .reg .b64 at, skip; .reg .f32 t;",
             ".reg .f32 " + ", ".join(f"a{i}" for i in range(2 * rows)) + ";", "mov.u32 lane, %laneid; mov.b32 row, 0;"]
    lines += [f"mov.f32 a{i}, ${x + i}; mov.f32 a{rows + i}, ${y + i};" for i in range(rows)]
    count, step = 2 * rows, 16
    while count > 1:
        count //= 2
        lines.append(f"and.b32 bit, lane, {step}; setp.ne.b32 p, bit, 0;")
        for i in range(count):
            lines.append(f"selp.f32 t, a{i}, a{count + i}, p; selp.f32 a{i}, a{count + i}, a{i}, p;"
                         f"shfl.sync.bfly.b32 t, t, {step}, 31, 0xffffffff; add.f32 a{i}, a{i}, t;")
        if count == rows:
            lines.append(f"selp.b64 at, ${at_y}, ${at_x}, p;")
        else:
            lines.append("selp.b32 bit, 1, 0, p; shl.b32 row, row, 1; or.b32 row, row, bit;")
        step //= 2
    last = 2 * step - 1
    while step:
        lines.append(f"shfl.sync.bfly.b32 t, a0, {step}, 31, 0xffffffff; add.f32 a0, a0, t;")
        step //= 2
    lines.append(f"and.b32 bit, lane, {last}; setp.eq.b32 p, bit, 0; setp.lt.and.s32 ok, row, ${left}, p;")
    lines.append("mul.wide.u32 skip, row, 4; add.s64 at, at, skip; @ok st.global.f32 [at], a0;")
    lines += [f"mov.b32 ${i}, 0;" for i in range(rows)]
    return "{ " + " ".join(lines) + " }"


def _operands(rows: int) -> str:
    return ",".join(["=r"] * rows + ["f"] * 2 * rows + ["l"] * 2 * rows + ["r"] * rows)


_STORE, _OPERANDS = tl.constexpr(_sum_and_store(4)), tl.constexpr(_operands(4))


@triton.jit
def _lane_sums(x, TREE: tl.constexpr, R: tl.constexpr, W: tl.constexpr):
    """Sums over columns for `_store_sums`: [R], or with TREE what each lane adds to them [R, 32].

    TREE takes it that each lane holds four columns side by side, as Triton lays a tile out whose loads are all aligned (`plan_backward`).
    """
    if TREE:
        return tl.sum(tl.sum(tl.reshape(x, (R, W // 128, 32, 4)), axis=3), axis=1)
    else:
        return _over_columns(x)


@triton.jit
def _store_sums(X, x, Y, y, first, V: tl.constexpr, R: tl.constexpr, TREE: tl.constexpr, FAST: tl.constexpr):
    """Store two sums over columns, as `_lane_sums` left them, from row `first` on, at X and at Y."""
    if TREE:
        zero = tl.zeros((R, 32), tl.int64)
        left = tl.zeros((R, 32), tl.int32) + (V - first)
        tl.inline_asm_elementwise(_STORE, _OPERANDS, [x, y, zero + (X + first).to(tl.int64), zero + (Y + first).to(tl.int64), left],
                                  dtype=tl.int32, is_pure=False, pack=4)
    else:
        row = first + tl.arange(0, R)
        _store_rows(X + row, x, row < V, FAST)
        _store_rows(Y + row, y, row < V, FAST)


@triton.jit
def _over_rows(x, FOLD: tl.constexpr):
    """What a lane adds to its sums over rows: with FOLD it holds several rows of the same columns and adds them up first."""
    if FOLD:
        return tl.sum(x, axis=0, keep_dims=True)
    else:
        return x


@triton.jit
def _gradient_block(
    TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DDR, DV, DVC, DK, DQ, saved, t0, first_row, cols, col_ok, bands,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_RESET: tl.constexpr, CLIP: tl.constexpr, CALIBRATED: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, FLOOR: tl.constexpr, DRIFT: tl.constexpr, GAIN: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, G: tl.constexpr, R: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr, PACK: tl.constexpr,
    MOST: tl.constexpr,
):
    """Gradients of the N steps from t0 on, for `bands` row bands from `first_row` on; A is read from AA and goes back there.

    MOST: what |A| is limited to, once in N steps; None: nothing is.
    """
    FOLD: tl.constexpr = G == 1 and W >= 128                                     # see _tile_columns
    TREE: tl.constexpr = FOLD and FAST and R == 4
    LOW: tl.constexpr = PART if FLOOR == 0 else PART * FLOOR
    zero = tl.zeros((1 if FOLD else R, G, W), DV.dtype.element_ty)
    sums = ()
    for n in tl.static_range(N):
        sums = sums + ((zero, zero, zero),)
    CK += (saved + t0 // S) * (V * K)
    for band in range(bands):
        first = first_row + band * R
        rows = first + tl.arange(0, R)[:, None, None]
        row_ok = rows < V
        tile = rows * K + cols
        tile_ok = row_ok & col_ok
        M = _load(CK + tile, tile_ok, WHOLE)
        A = _load(AA + tile, tile_ok, WHOLE)
        if MOST is not None:
            A = _limit(A, MOST)
        below = tl.minimum(tile + R * K, V * K - 1)
        _prefetch(CK + below, FAST)                                              # the next band's, which come from far away
        _prefetch(AA + below, FAST)
        for t in range(t0 // S * S, t0, N):                                      # from the checkpoint up to t0
            step = _load_step(TH + first, VV + first, VC, KK, RESET, t, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                              HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
            for n in tl.static_range(N):
                then = step
                if n + 1 < N:                                                    # fetched one step ahead, here and below
                    then = _load_step(TH + first, VV + first, VC, KK, RESET, t + n + 1, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                                      HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
                M, C, _ = _advance(M, step, HAS_RESET, CLIP, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
                step = then
        step = _load_step(TH + first, VV + first, VC, KK, RESET, t0, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                          HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
        g = _load_rows(DH + t0 * V + first, row_ok, WHOLE, PACK)
        Ms = ()                                                                  # the memory before each step, after its reset
        Cs = ()
        dqs = ()
        for n in tl.static_range(N):
            then = step
            then_g = g
            if n + 1 < N:
                then = _load_step(TH + first, VV + first, VC, KK, RESET, t0 + n + 1, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                                  HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
                then_g = _load_rows(DH + (t0 + n + 1) * V + first, row_ok, WHOLE, PACK)
            if HAS_RESET:
                M = tl.where(step[4], 0.0, M)
            Ms = Ms + (M,)
            M, C, _ = _advance(M, step, False, CLIP, CALIBRATED, RATE, PART, FLOOR, DRIFT, FAST)
            Cs = Cs + (C,)
            dqs = dqs + (sums[n][0] + _over_rows(M * g, FOLD),)                   # dq_t = M_tᵀ g_t
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
                step = _load_step(TH + first, VV + first, VC, KK, RESET, t - 1, row_ok, col_ok, TH_S, V_S, VC_S, K_S,
                                  HAS_RESET, CALIBRATED, DRIFT, WHOLE, PACK)
                then_g = _load_rows(DH + (t - 1) * V + first, row_ok, WHOLE, PACK)
                then_q = _load(QQ + (t - 1) * Q_S, col_ok, WHOLE)
            dq, dk, dvc = sums[N - 1 - m]
            before = Ms[N - 1 - m]
            C = Cs[N - 1 - m]
            A += g * q
            if CLIP is not None:
                written = v * k
                if CALIBRATED:
                    written += before * _lift(C, FLOOR)
                else:
                    written += before
                A = tl.where(_within(written, CLIP), A, 0.0)
            dk += _over_rows(A * v, FOLD)                                        # dk_t = Aᵀ v_t
            dv = _lane_sums(A * k, TREE, R, W)
            if CALIBRATED:
                W_t = (A * C * before) * (GAIN - (GAIN * LOW) * C)               # dL/dz; C here is less its floor
                A = A * _lift(C, FLOOR)
                if DRIFT > 0:
                    theta = theta[0]
                    sums_of_W = _lane_sums(W_t, TREE, R, W)
                    _store_sums(DDR + t * V, sums_of_W, DDR + t * V, sums_of_W, first, V, R, TREE, FAST)
                _store_sums(DV + t * V, dv, DTH + t * V, _lane_sums(W_t * vc, TREE, R, W), first, V, R, TREE, FAST)
                dvc += _over_rows(W_t * theta, FOLD)
            else:
                _store_sums(DV + t * V, dv, DV + t * V, dv, first, V, R, TREE, FAST)
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
    TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DDR, DV, DVC, DK, DQ, LARGEST,
    th_b, vc_b, v_b, k_b, q_b, B, T, length, segments, bands,
    V: tl.constexpr, K: tl.constexpr, TH_S: tl.constexpr, VC_S: tl.constexpr, V_S: tl.constexpr, K_S: tl.constexpr, Q_S: tl.constexpr,
    HAS_RESET: tl.constexpr, CLIP: tl.constexpr, LIMITED: tl.constexpr, CALIBRATED: tl.constexpr,
    RATE: tl.constexpr, PART: tl.constexpr, FLOOR: tl.constexpr, DRIFT: tl.constexpr, GAIN: tl.constexpr, FAST: tl.constexpr,
    S: tl.constexpr, N: tl.constexpr, G: tl.constexpr, R: tl.constexpr, W: tl.constexpr, WHOLE: tl.constexpr, PACK: tl.constexpr,
):
    """Gradients of one segment of one batch row, in reverse; A = dL/dM enters through AA and leaves there for the segment before.

    Grid (B * segments, groups of `bands` row bands, strips of columns). Per N steps and row band: start from the checkpoint, replay up to
    the N steps, replay those keeping M and C in registers, then go back. Sums over rows stay in registers across the bands of a group; DVC,
    DK, DQ hold one partial sum per group, DTH, DDR (the drift's), DV one per strip. With CLIP it is one of a pair; LIMITED says which one.
    """
    LIMIT: tl.constexpr = CLIP if LIMITED else None
    MOST: tl.constexpr = None if CLIP is None else _STEEPEST
    if CLIP is not None:
        if _not_mine(LARGEST, CLIP, LIMITED):
            return
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
    saved = b * ((T + S - 1) // S + (CLIP is not None))
    AA += (b * segments + segment) * (V * K)
    DTH += (strip * B + b) * T * V
    DDR += (strip * B + b) * T * V
    DV += (strip * B + b) * T * V
    DVC += (group * B + b) * T * K
    DK += (group * B + b) * T * K
    DQ += (group * B + b) * T * K
    row = group * bands * R
    for i in range(last - even):
        _gradient_block(TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DDR, DV, DVC, DK, DQ, saved, last - 1 - i, row, cols, col_ok,
                        bands, V, K, TH_S, VC_S, V_S, K_S, Q_S, HAS_RESET, LIMIT, CALIBRATED, RATE, PART, FLOOR, DRIFT, GAIN, FAST,
                        S, 1, G, R, W, WHOLE, PACK, MOST)
    for i in range(blocks):
        _gradient_block(TH, VC, VV, KK, QQ, RESET, CK, DH, AA, DTH, DDR, DV, DVC, DK, DQ, saved, even - (i + 1) * N, row, cols, col_ok,
                        bands, V, K, TH_S, VC_S, V_S, K_S, Q_S, HAS_RESET, LIMIT, CALIBRATED, RATE, PART, FLOOR, DRIFT, GAIN, FAST,
                        S, N, G, R, W, WHOLE, PACK, MOST)
