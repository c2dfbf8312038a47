"""The `triton` backend of the selective recurrence: a program takes a block of channels, with all their states, through time.

Saves the [B, T, D, N] tensors: states and factors live in registers. The backward starts from the state kept at every `INTERVAL`-th step,
recomputes that many states into a buffer, and goes back through them. What several steps need is loaded before the
first of them is taken. It stays sequential in T; sums over channels (the gradients of k and q) are formed per block and then added up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .._ops import as_bytes, on_device
from .op import INTERVAL, make_op

CELLS = 128, 4096   # of a program: at least (a warp is kept busy), at most (they fit its registers)
BLOCKS = 16         # of channels, if possible no more: the sums over channels are formed for each


@triton.jit
def load_steps(DELTA, V, K, Q, RESET, b, t0, T, D, N, d, n, HAS_RESET: tl.constexpr, STEPS: tl.constexpr):
    """delta, v [BD, 1], k, q [1, BN] and the reset flag of STEPS steps; zeros outside the sequence, where `factor_at` gives 1."""
    loaded = ()
    for i in tl.static_range(STEPS):
        inside = t0 + i < T
        row = b * T + t0 + i
        ok_d, ok_n = (d < D) & inside, (n < N) & inside
        delta, v = tl.load(DELTA + row * D + d, mask=ok_d, other=0.0), tl.load(V + row * D + d, mask=ok_d, other=0.0)
        k, q = tl.load(K + row * N + n, mask=ok_n, other=0.0), tl.load(Q + row * N + n, mask=ok_n, other=0.0)
        fresh = inside
        if HAS_RESET:
            fresh = tl.load(RESET + row, mask=inside, other=0) != 0
        loaded = loaded + ((delta, v, k, q, fresh),)
    return loaded


@triton.jit
def factor_at(delta, A, inside):
    """What a step multiplies the state by; outside the sequence 1, also where A is not finite."""
    return tl.where(inside, tl.exp(delta * A), 1.0)


@triton.jit
def forward_kernel(DELTA, AA, V, K, Q, START, RESET, H, END, SAVED, T, D, N, rows, HAS_START: tl.constexpr, HAS_RESET: tl.constexpr,
                   SAVE: tl.constexpr, INTERVAL: tl.constexpr, STEPS: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr):
    """Grid (B, blocks of channels). `rows` consecutive batch rows share one A."""
    b = tl.program_id(0).to(tl.int64)
    d, n = tl.program_id(1) * BD + tl.arange(0, BD)[:, None], tl.arange(0, BN)[None, :]
    ok = (d < D) & (n < N)
    A = tl.load(AA + (b // rows * D + d) * N + n, mask=ok, other=0.0)
    S = tl.zeros((BD, BN), END.dtype.element_ty)
    if HAS_START:
        S = tl.load(START + (b * D + d) * N + n, mask=ok, other=0.0)
    for t0 in range(0, T, STEPS):
        if SAVE:
            if t0 % INTERVAL == 0:
                tl.store(SAVED + ((b * tl.cdiv(T, INTERVAL) + t0 // INTERVAL) * D + d) * N + n, S, mask=ok)
        loaded = load_steps(DELTA, V, K, Q, RESET, b, t0, T, D, N, d, n, HAS_RESET, STEPS)
        for i in tl.static_range(STEPS):
            delta, v, k, q, fresh = loaded[i]
            if HAS_RESET:
                S = tl.where(fresh, 0.0, S)
            S = factor_at(delta, A, t0 + i < T) * S + v * k
            h = tl.sum(S * q, axis=1, keep_dims=True)
            tl.store(H + (b * T + t0 + i) * D + d, h, mask=(d < D) & (t0 + i < T))
    tl.store(END + (b * D + d) * N + n, S, mask=ok)


@triton.jit
def backward_kernel(DELTA, AA, V, K, Q, RESET, SAVED, BUFFER, DH, DEND, DDELTA, DA, DV, DK, DQ, D0, T, D, N, rows,
                    HAS_START: tl.constexpr, HAS_RESET: tl.constexpr, INTERVAL: tl.constexpr, STEPS: tl.constexpr, BD: tl.constexpr,
                    BN: tl.constexpr):
    """Grid as forward. g = dL/dS runs back through the recurrence. BUFFER [B, INTERVAL, D, N]; DK, DQ [B, blocks, T, N]; DA [B, D, N]."""
    b = tl.program_id(0).to(tl.int64)
    d, n = tl.program_id(1) * BD + tl.arange(0, BD)[:, None], tl.arange(0, BN)[None, :]
    ok = (d < D) & (n < N)
    A = tl.load(AA + (b // rows * D + d) * N + n, mask=ok, other=0.0)
    g = tl.load(DEND + (b * D + d) * N + n, mask=ok, other=0.0)
    dA = tl.zeros((BD, BN), g.dtype)
    chunks = tl.cdiv(T, INTERVAL)
    part = (b * tl.num_programs(1) + tl.program_id(1)) * T
    for back in range(chunks):
        chunk = chunks - 1 - back
        S = tl.load(SAVED + ((b * chunks + chunk) * D + d) * N + n, mask=ok, other=0.0)
        for t1 in range(0, INTERVAL, STEPS):
            t0 = chunk * INTERVAL + t1
            loaded = load_steps(DELTA, V, K, Q, RESET, b, t0, T, D, N, d, n, HAS_RESET, STEPS)
            for i in tl.static_range(STEPS):
                delta, v, k, q, fresh = loaded[i]
                if HAS_RESET:
                    S = tl.where(fresh, 0.0, S)
                tl.store(BUFFER + ((b * INTERVAL + t1 + i) * D + d) * N + n, S, mask=ok)
                S = factor_at(delta, A, t0 + i < T) * S + v * k
        tl.debug_barrier()   # what was stored is read back
        for t2 in range(0, INTERVAL, STEPS):
            t1 = INTERVAL - STEPS - t2
            t0 = chunk * INTERVAL + t1
            loaded = load_steps(DELTA, V, K, Q, RESET, b, t0, T, D, N, d, n, HAS_RESET, STEPS)
            more = ()
            for i in tl.static_range(STEPS):
                before = tl.load(BUFFER + ((b * INTERVAL + t1 + i) * D + d) * N + n, mask=ok, other=0.0)
                more = more + ((before, tl.load(DH + (b * T + t0 + i) * D + d, mask=(d < D) & (t0 + i < T), other=0.0)),)
            for j in tl.static_range(STEPS):
                t = t0 + STEPS - 1 - j
                delta, v, k, q, fresh = loaded[STEPS - 1 - j]
                before, dh = more[STEPS - 1 - j]
                factor = factor_at(delta, A, t < T)
                dq = tl.sum(tl.where(ok, dh * (factor * before + v * k), 0.0), axis=0, keep_dims=True)
                tl.store(DQ + (part + t) * N + n, dq, mask=(n < N) & (t < T))
                g += dh * q
                tl.store(DK + (part + t) * N + n, tl.sum(g * v, axis=0, keep_dims=True), mask=(n < N) & (t < T))
                tl.store(DV + (b * T + t) * D + d, tl.sum(g * k, axis=1, keep_dims=True), mask=(d < D) & (t < T))
                g = g * factor
                w = g * before
                tl.store(DDELTA + (b * T + t) * D + d, tl.sum(w * A, axis=1, keep_dims=True), mask=(d < D) & (t < T))
                dA = tl.where(t < T, dA + w * delta, dA)
                if HAS_RESET:
                    g = tl.where(fresh, 0.0, g)
        tl.debug_barrier()
    tl.store(DA + (b * D + d) * N + n, dA, mask=ok)
    if HAS_START:
        tl.store(D0 + (b * D + d) * N + n, g, mask=ok)


def _tile(D, N):
    """BD channels and BN states for a program, warps, and how many steps are loaded at once."""
    BN = triton.next_power_of_2(N)
    BD = triton.next_power_of_2(max(triton.cdiv(D, BLOCKS), triton.cdiv(CELLS[0], BN)))
    BD = max(1, min(BD, triton.next_power_of_2(D), CELLS[1] // BN))
    return BD, BN, min(8, max(1, BD * BN // 512)), 8 if BD * BN <= 512 else 2


def _launch(kernel, tensors, A, v, N, **options):
    B, T, D = v.shape
    BD, BN, warps, steps = _tile(D, N)
    with on_device(v):
        kernel[(B, triton.cdiv(D, BD))](*tensors, T, D, N, B // A.shape[0], INTERVAL=INTERVAL, STEPS=steps if T > 1 else 1, BD=BD, BN=BN,
                                        num_warps=warps, **options)


def forward(delta, A, v, k, q, S0, reset, save):
    (B, T, D), N = v.shape, k.shape[-1]
    inputs = [x.contiguous() for x in (delta, A, v, k, q)]
    h, S = v.new_empty(B, T, D), v.new_empty(B, D, N)
    checkpoints = v.new_empty(B, -(-T // INTERVAL), D * N) if save else v.new_empty(0)
    tensors = (*inputs, S if S0 is None else S0.contiguous(), _flags(reset, S), h, S, checkpoints)
    _launch(forward_kernel, tensors, A, v, N, HAS_START=S0 is not None, HAS_RESET=reset is not None, SAVE=save)
    return h, S, checkpoints


def backward(delta, A, v, k, q, S0, reset, checkpoints, dh, dS):
    (B, T, D), N = v.shape, k.shape[-1]
    inputs = [x.contiguous() for x in (delta, A, v, k, q)]
    blocks = triton.cdiv(D, _tile(D, N)[0])
    ddelta, dA, dv = v.new_empty(B, T, D), v.new_empty(B, D, N), v.new_empty(B, T, D)
    dk, dq = v.new_empty(B, blocks, T, N), v.new_empty(B, blocks, T, N)
    dS0 = v.new_empty((0,) if S0 is None else (B, D, N))
    tensors = (*inputs, _flags(reset, dA), checkpoints.contiguous(), v.new_empty(B, INTERVAL, D, N), dh.contiguous(), dS.contiguous(),
               ddelta, dA, dv, dk, dq, dS0)
    _launch(backward_kernel, tensors, A, v, N, HAS_START=S0 is not None, HAS_RESET=reset is not None)
    dA = dA if A.shape[0] == B else dA.unflatten(0, (A.shape[0], -1)).sum(1)
    return ddelta, dA, dv, dk.sum(1), dq.sum(1), dS0


def _flags(reset, like):
    return like if reset is None else as_bytes(reset)


selective_triton = make_op("triton", forward, backward)
