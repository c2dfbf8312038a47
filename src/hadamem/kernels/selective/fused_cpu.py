"""The selective recurrence fused for CPUs (numba): factors and states exist for two states per channel and one chunk of steps only.

Saves: the [B, T, D, N] tensors of `scan` and `reference`, and most of their time: a cell is multiplied, added to and summed up in one
vectorised pass over channels. The backward starts from the state kept at every `INTERVAL`-th step and recomputes the rest.
Loses: steps run one after another; up to W channels of one batch row keep one core busy; no second derivative.

Results do not depend on the number of threads, nor on what else is in the batch: D and N alone fix the order of sums.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._exp2 import curve, exp2
from .._numba import array, jit, parallel, split
from .op import INTERVAL, make_op

W = 128        # channels worked on at a time
LANES = 16     # they are padded to a multiple of this, so that no vector loop has a remainder

FAST = {"contract", "reassoc", "nsz"}   # reassociation lets sums vectorise; `nnan` and `ninf` stay off: nan and inf must come out as such
u = np.uintp   # an unsigned index: numba then omits the test for a negative one, which would stop vectorisation

# Scratch is one flat array in which what a loop touches lies a constant number of columns apart, so that the compiler knows that nothing
# overlaps: two rows each of A (in powers of 2), its gradient and zeros, and then a record for each step.
RATE, DRATE, ZERO, RECORDS = 0, 2 * W, 4 * W, 6 * W
DELTA, V, H, DDELTA, DV = 0, W, 2 * W, 3 * W, 4 * W   # H: what is read; in the backward, its gradient
FACTOR = 5 * W          # two rows: the step's factors; in the backward then the gradients of their logarithms
NEW = 7 * W             # two rows: the states after the step
GRAD = 9 * W            # two rows: the gradient of the states before the step
RECORD = 11 * W + 48    # no power of two: records must not fall on the same cache sets


@jit(inline="always")
def _load(x, at, source, i, j0, width, n):
    for j in range(width):
        x[u(at + j)] = source[i, u(j0 + j)]
    for j in range(width, n):
        x[u(at + j)] = x.dtype.type(0)


@jit(inline="always")
def _store(x, at, target, i, j0, width):
    for j in range(width):
        target[i, u(j0 + j)] = x[u(at + j)]


@jit(inline="always")
def _zero(x, at, n):
    for j in range(n):
        x[u(at + j)] = x.dtype.type(0)


@jit(inline="always")
def _load_two(x, at, source, i, two, j0, width, n):
    _load(x, at, source, i, j0, width, n)
    if two:
        _load(x, at + W, source, i + 1, j0, width, n)
    else:
        _zero(x, at + W, n)


@jit(inline="always")
def _store_two(x, at, target, i, two, j0, width):
    _store(x, at, target, i, j0, width)
    if two:
        _store(x, at + W, target, i + 1, j0, width)


@jit(fastmath=FAST)
def _advance(x, n, k, i, two, t0, steps, reset, bits):
    """Take states i and (if `two`) i + 1 of every channel through the steps. The record before the first holds the states before it."""
    zero = x.dtype.type(0)
    for s in range(steps):
        t, at = t0 + s, RECORDS + RECORD * (s + 1)
        old = ZERO if reset.size > 0 and reset[t] else at - RECORD + NEW
        k0 = k[t, i]
        k1 = k[t, i + 1] if two else zero
        for j in range(n):
            d, v = x[u(at + DELTA + j)], x[u(at + V + j)]
            c0, c1 = exp2(d * x[u(RATE + j)], bits), exp2(d * x[u(RATE + W + j)], bits)
            x[u(at + FACTOR + j)] = c0
            x[u(at + FACTOR + W + j)] = c1
            x[u(at + NEW + j)] = c0 * x[u(old + j)] + v * k0
            x[u(at + NEW + W + j)] = c1 * x[u(old + W + j)] + v * k1


@jit(fastmath=FAST)
def _read(x, n, q, i, two, t0, steps):
    """Add what states i and i + 1 give to H."""
    for s in range(steps):
        t, at = t0 + s, RECORDS + RECORD * (s + 1)
        q0 = q[t, i]
        if not two:   # a second state with q = 0 would make nan of inf
            for j in range(n):
                x[u(at + H + j)] += x[u(at + NEW + j)] * q0
            continue
        q1 = q[t, i + 1]
        for j in range(n):
            x[u(at + H + j)] += x[u(at + NEW + j)] * q0 + x[u(at + NEW + W + j)] * q1


@jit()
def _forward(delta, rate, v, k, q, reset, bits, h, S, checkpoints, x, first, last):
    """Run the units first..last, W channels of one batch row each. S [B, N, D] holds S0 and becomes S_T; rate [G, N, D]."""
    B, T, D = v.shape
    N = k.shape[2]
    spans, chunks, rows = (D + W - 1) // W, (T + INTERVAL - 1) // INTERVAL, B // rate.shape[0]
    _zero(x, ZERO, 2 * W)
    for unit in range(first, last):
        b, j0 = unit // spans, unit % spans * W
        width = min(W, D - j0)
        n = (width + LANES - 1) // LANES * LANES
        flags = reset[b % max(1, reset.shape[0])]
        for chunk in range(chunks):
            t0 = chunk * INTERVAL
            steps = min(INTERVAL, T - t0)
            for s in range(steps):
                at = RECORDS + RECORD * (s + 1)
                _load(x, at + DELTA, delta[b], t0 + s, j0, width, n)
                _load(x, at + V, v[b], t0 + s, j0, width, n)
                _zero(x, at + H, n)
            for i in range(0, N, 2):
                two = i + 1 < N
                _load_two(x, RATE, rate[b // rows], i, two, j0, width, n)
                _load_two(x, RECORDS + NEW, S[b], i, two, j0, width, n)
                if checkpoints.size > 0:
                    _store_two(x, RECORDS + NEW, checkpoints[b, chunk], i, two, j0, width)
                _advance(x, n, k[b], i, two, t0, steps, flags, bits)
                _read(x, n, q[b], i, two, t0, steps)
                _store_two(x, RECORDS + RECORD * steps + NEW, S[b], i, two, j0, width)
            for s in range(steps):
                _store(x, RECORDS + RECORD * (s + 1) + H, h[b], t0 + s, j0, width)


@jit(fastmath=FAST)
def _step(delta, rate, v, k, q, S0, reset, bits, h, S, first, last):
    """One step of the batch rows first..last, in the order of the state itself: transposing it would take longer. rate [G, D, N]."""
    B, D, N = S.shape
    rows, zero = B // rate.shape[0], S.dtype.type(0)
    for b in range(first, last):
        fresh = reset.size > 0 and reset[b, 0]
        for i in range(D):
            d, w, total = delta[b, 0, i], v[b, 0, i], zero
            for n in range(N):
                old = zero if fresh else S0[b, i, u(n)]
                new = exp2(d * rate[b // rows, i, u(n)], bits) * old + w * k[b, 0, u(n)]
                S[b, i, u(n)] = new
                total += new * q[b, 0, u(n)]
            h[b, 0, i] = total


@jit(fastmath=FAST)
def _reverse(x, n, k, q, i, two, t0, steps, reset, dk, dq):
    """Go back through a chunk. The record after the last holds the gradient of the states after it."""
    zero = x.dtype.type(0)
    for s in range(steps - 1, -1, -1):
        t, at = t0 + s, RECORDS + RECORD * (s + 1)
        k0, q0 = k[t, i], q[t, i]
        k1, q1 = (k[t, i + 1], q[t, i + 1]) if two else (zero, zero)
        dk0 = dk1 = dq0 = dq1 = zero
        for j in range(n):
            v, dh = x[u(at + V + j)], x[u(at + H + j)]
            dq0 += dh * x[u(at + NEW + j)]
            dq1 += dh * x[u(at + NEW + W + j)]
            g0 = x[u(at + RECORD + GRAD + j)] + dh * q0
            g1 = x[u(at + RECORD + GRAD + W + j)] + dh * q1
            dk0 += g0 * v
            dk1 += g1 * v
            x[u(at + DV + j)] += g0 * k0 + g1 * k1
            x[u(at + GRAD + j)] = g0 * x[u(at + FACTOR + j)]
            x[u(at + GRAD + W + j)] = g1 * x[u(at + FACTOR + W + j)]
        dk[t, i] = dk0
        dq[t, i] = dq0
        if two:
            dk[t, i + 1] = dk1
            dq[t, i + 1] = dq1
        if reset.size > 0 and reset[t]:   # nothing of this episode reaches the one before
            _zero(x, at + GRAD, W + n)


@jit(fastmath=FAST)
def _spread(x, n, t0, steps, reset):
    """The gradients of deltas and rates, from those of the states. (In `_reverse`, or in one loop, they would stop vectorisation.)"""
    for s in range(steps):
        if reset.size > 0 and reset[t0 + s]:   # the states before were zeros put in their place
            continue
        old, at = RECORDS + RECORD * s, RECORDS + RECORD * (s + 1)
        for j in range(n):
            x[u(old + RECORD + FACTOR + j)] = x[u(old + RECORD + GRAD + j)] * x[u(old + NEW + j)]
            x[u(old + RECORD + FACTOR + W + j)] = x[u(old + RECORD + GRAD + W + j)] * x[u(old + NEW + W + j)]
        for j in range(n):
            x[u(at + DDELTA + j)] += x[u(at + FACTOR + j)] * x[u(RATE + j)] + x[u(at + FACTOR + W + j)] * x[u(RATE + W + j)]
        for j in range(n):
            x[u(DRATE + j)] += x[u(at + DELTA + j)] * x[u(at + FACTOR + j)]
            x[u(DRATE + W + j)] += x[u(at + DELTA + j)] * x[u(at + FACTOR + W + j)]


@jit()
def _backward(delta, rate, v, k, q, reset, bits, checkpoints, dh, dS, ddelta, drate, dv, dk, dq, x, first, last):
    """Run the units first..last. dS [B, N, D] holds dS_T and becomes dS0; drate [B, N, D] holds zeros; dk, dq [B, spans, T, N]."""
    B, T, D = v.shape
    N = k.shape[2]
    spans, chunks, rows = (D + W - 1) // W, (T + INTERVAL - 1) // INTERVAL, B // rate.shape[0]
    _zero(x, ZERO, 2 * W)
    for unit in range(first, last):
        b, span = unit // spans, unit % spans
        j0 = span * W
        width = min(W, D - j0)
        n = (width + LANES - 1) // LANES * LANES
        flags = reset[b % max(1, reset.shape[0])]
        for chunk in range(chunks - 1, -1, -1):
            t0 = chunk * INTERVAL
            steps = min(INTERVAL, T - t0)
            for s in range(steps):
                at = RECORDS + RECORD * (s + 1)
                _load(x, at + DELTA, delta[b], t0 + s, j0, width, n)
                _load(x, at + V, v[b], t0 + s, j0, width, n)
                _load(x, at + H, dh[b], t0 + s, j0, width, n)
                _zero(x, at + DDELTA, W + n)
            for i in range(0, N, 2):
                two = i + 1 < N
                _load_two(x, RATE, rate[b // rows], i, two, j0, width, n)
                _load_two(x, RECORDS + NEW, checkpoints[b, chunk], i, two, j0, width, n)
                _advance(x, n, k[b], i, two, t0, steps, flags, bits)
                _load_two(x, RECORDS + RECORD * (steps + 1) + GRAD, dS[b], i, two, j0, width, n)
                _reverse(x, n, k[b], q[b], i, two, t0, steps, flags, dk[b, span], dq[b, span])
                _store_two(x, RECORDS + RECORD + GRAD, dS[b], i, two, j0, width)
                _load_two(x, DRATE, drate[b], i, two, j0, width, n)
                _spread(x, n, t0, steps, flags)
                _store_two(x, DRATE, drate[b], i, two, j0, width)
            for s in range(steps):
                at = RECORDS + RECORD * (s + 1)
                _store(x, at + DDELTA, ddelta[b], t0 + s, j0, width)
                _store(x, at + DV, dv[b], t0 + s, j0, width)


def forward(delta: Tensor, A: Tensor, v: Tensor, k: Tensor, q: Tensor, S0: Tensor | None, reset: Tensor | None,
            save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """See `make_op`."""
    (B, T, D), N = v.shape, k.shape[-1]
    if T == 1 and not save:
        h, S, S0 = v.new_empty(B, 1, D), v.new_empty(B, D, N), v.new_zeros(B, D, N) if S0 is None else S0
        rate, bits = array(A * math.log2(math.e)), curve(array(v).dtype)
        arrays = (array(delta), rate, array(v), array(k), array(q), array(S0), _flags(reset), bits, array(h), array(S))
        parallel(lambda _, first, last: _step(*arrays, first, last), B, B * D * N)
        return h, S, v.new_empty(0)
    h, S = v.new_empty(B, T, D), v.new_zeros(B, N, D) if S0 is None else S0.mT.clone(memory_format=torch.contiguous_format)
    checkpoints = v.new_empty(B, -(-T // INTERVAL), D * N) if save else v.new_empty(0)
    arrays = (array(delta), _rate(A), array(v), array(k), array(q), _flags(reset), curve(array(v).dtype), array(h), array(S),
              array(checkpoints.view(B, -1, N, D) if save else v.new_empty(0, 0, 0, 0)))
    _run(_forward, arrays, v, B * T * D * N)
    return h, S.mT.contiguous(), checkpoints


def backward(delta: Tensor, A: Tensor, v: Tensor, k: Tensor, q: Tensor, S0: Tensor | None, reset: Tensor | None, checkpoints: Tensor,
             dh: Tensor, dS: Tensor) -> tuple[Tensor, ...]:
    """See `make_op`."""
    (B, T, D), N = v.shape, k.shape[-1]
    dS = dS.mT.clone(memory_format=torch.contiguous_format)
    ddelta, dv, dA = v.new_empty(B, T, D), v.new_empty(B, T, D), v.new_zeros(B, N, D)
    dk, dq = (v.new_empty(B, -(-D // W), T, N) for _ in range(2))
    arrays = (array(delta), _rate(A), array(v), array(k), array(q), _flags(reset), curve(array(v).dtype),
              array(checkpoints.view(B, -1, N, D)), array(dh), array(dS), *(array(x) for x in (ddelta, dA, dv, dk, dq)))
    _run(_backward, arrays, v, 3 * B * T * D * N)
    ddelta *= math.log(2)   # the rates are in powers of 2
    dA = torch.from_numpy(dA.numpy().reshape(A.shape[0], -1, N, D).sum(1)).mT.contiguous()   # numpy adds one after the other
    dk, dq = (x[:, 0] if x.shape[1] == 1 else torch.from_numpy(x.numpy().sum(1)) for x in (dk, dq))
    return ddelta, dA, dv, dk, dq, v.new_empty(0) if S0 is None else dS.mT.contiguous()


def _run(kernel: Any, arrays: tuple[Any, ...], like: Tensor, cells: int) -> None:
    units, scratch = like.shape[0] * -(-like.shape[2] // W), RECORDS + RECORD * (2 + min(INTERVAL, like.shape[1]))
    x = array(like.new_empty(split(units, cells)[1], scratch))
    parallel(lambda piece, first, last: kernel(*arrays, x[piece], first, last), units, cells)


def _rate(A: Tensor) -> Any:
    """A in powers of 2, [G, N, D]."""
    return array((A * math.log2(math.e)).mT)


def _flags(reset: Tensor | None) -> Any:
    return array(torch.empty(1, 0, dtype=torch.bool, device="cpu") if reset is None else reset)


selective_cpu = make_op("cpu", forward, backward)
