"""SHM's recurrence fused for CPUs (numba): C_t and U_t exist for two rows of one chunk of steps, in the cache, and never in memory.

Saves: the [B, T, V, K] tensors of `scan` and `reference`, and most of their time: a cell is read, multiplied, added and summed up
in one vectorised pass. The backward keeps the memory at every `interval`-th step and computes what is between anew.
Loses: compiling costs a few seconds once per machine (then cached on disk); very small problems are dominated by call overhead;
there is no second derivative; steps run one after another, so a single short row (B = 1, V <= 32) keeps one core busy only.

Results do not depend on the number of threads, nor on what else is in the batch: the order of every sum is fixed by V and K alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from .._numba import array, jit, parallel
from .forms import FORMS
from .op import make_op

W = 128        # columns worked on at a time
LANES = 16     # columns are padded to a multiple of this, so that no vector loop has a remainder
BAND = 32      # rows whose sums over rows (dq, dk, dvc) are formed together: fixes their order

# Reassociation lets sums vectorise. `nnan` and `ninf` stay off: nan and inf must come out as such.
FAST = {"contract", "reassoc", "nsz"}
u = np.uintp   # an unsigned index: numba then omits the test for a negative one, which would stop vectorisation


def interval(T: int) -> int:
    """Steps between two checkpoints of the memory."""
    return 16


# ---- C = scale * sigmoid(gain * z) ---------------------------------------------------------------------------------

# 2^f = 1 + f (c1 + f (c2 + ...)) on [-1/2, 1/2]: minimax fits of the relative error with the value at 0 held (so z = 0 gives
# C = scale / 2 exactly). Five terms: 1.1e-7 (rounded to float32), at most 5e-8 in C; eleven terms: 1.8e-17.
_E32 = tuple(np.float32(c) for c in (
    0.6931469775951143, 0.24022242077091435, 0.055507337444780314, 0.009671513183102396, 0.0013264728768937798))
_E64 = (0.69314718055994569675, 0.24022650695910098007, 0.055504108664790394552, 0.0096181291076070023796,
        0.0013333558153439964747, 0.0001540353044157213033, 0.000015252727385193868197, 1.3215442675329822143e-6,
        1.0180647659234138888e-7, 7.0725704128144235096e-9, 4.078071929588336665e-10)
_ROUND32 = np.float32(1.5 * 2 ** 23 + 127)   # adding it rounds to an integer n and leaves n + 127, the exponent of 2^n, in the low bits
_ROUND64 = np.float64(1.5 * 2 ** 52 + 1023)
_MAX32, _MAX64 = np.float32(126), np.float64(1022)   # beyond, 2^n is no normal number, and C long 0 or `scale`


def _squash(y: Any, scale: Any) -> Any:
    """scale / (1 + 2^y); nan for nan."""
    return scale / (1 + 2 ** y)


@overload(_squash, jit_options={"fastmath": {"contract", "nsz"}, "error_model": "numpy"}, inline="never")   # `reassoc` would undo the rounding
def _squash_typed(y, scale):
    if y == types.float32:
        def squash(y, scale):
            y = -_MAX32 if y < -_MAX32 else y   # written so that nan stays
            y = _MAX32 if y > _MAX32 else y
            t = y + _ROUND32
            f = y - (t - _ROUND32)
            p = _E32[0] + f * (_E32[1] + f * (_E32[2] + f * (_E32[3] + f * _E32[4])))
            power = np.int32(np.float32(t).view(np.int32) << 23).view(np.float32)
            return scale / (np.float32(1) + (np.float32(1) + f * p) * power)
    else:
        def squash(y, scale):
            y = -_MAX64 if y < -_MAX64 else y
            y = _MAX64 if y > _MAX64 else y
            t = y + _ROUND64
            f = y - (t - _ROUND64)
            p = _E64[10]
            for i in range(9, -1, -1):
                p = p * f + _E64[i]
            power = np.int64(np.float64(t).view(np.int64) << 52).view(np.float64)
            return scale / (1.0 + (1.0 + f * p) * power)
    return squash


# ---- moving rows between tensors and scratch -------------------------------------------------------------------------

# `x` is scratch, one flat array with every place in it a known number of columns from every other: the compiler sees that nothing
# overlaps. Padding repeats the first column (`repeat`) or is zero: with q = 0 there it adds nothing, and it is finite where real ones are.

@jit(inline="always")
def _load(x, at, source, j0, width, n, repeat):
    for j in range(width):
        x[u(at + j)] = source[j0 + j]
    pad = source[j0] if repeat else x.dtype.type(0)
    for j in range(width, n):
        x[u(at + j)] = pad


@jit(inline="always")
def _store(x, at, target, j0, width):
    for j in range(width):
        target[j0 + j] = x[u(at + j)]


@jit(inline="always")
def _zero(x, at, n):
    for j in range(n):
        x[u(at + j)] = x.dtype.type(0)


@jit(inline="always")
def _copy(x, at, to, n):
    for j in range(n):
        x[u(to + j)] = x[u(at + j)]


# ---- forward ---------------------------------------------------------------------------------------------------------

COLUMNS = 2 * W   # scratch of the forward: two rows of M, then vc, k, q of every step of the chunk


@jit(fastmath=FAST)
def _forward(theta, vc, v, k, q, M0, reset, rate, scale, clip, calibrated, clipped, S, h, M, checkpoints, x, first, last):
    """Run the units first..last; a unit is a band of rows of one batch row. Empty M0, reset, checkpoints: there are none."""
    B, T, V = v.shape
    K = k.shape[2]
    zero = x.dtype.type(0)
    bands = (V + BAND - 1) // BAND
    for unit in range(first, last):
        b = unit // bands
        i_start = unit % bands * BAND
        i_end = min(V, i_start + BAND)
        for t0 in range(0, T, S):
            steps = min(S, T - t0)
            for j0 in range(0, K, W):
                width = min(W, K - j0)
                n = (width + LANES - 1) // LANES * LANES
                for s in range(steps):
                    at = COLUMNS + 3 * W * s
                    if calibrated:
                        _load(x, at, vc[b, t0 + s], j0, width, n, True)
                    _load(x, at + W, k[b, t0 + s], j0, width, n, True)
                    _load(x, at + 2 * W, q[b, t0 + s], j0, width, n, False)
                for i in range(i_start, i_end, 2):
                    rows = min(2, i_end - i)
                    for r in range(2):
                        if r < rows and t0 > 0:
                            _load(x, r * W, M[b, i + r], j0, width, n, False)
                        elif r < rows and M0.size > 0:
                            _load(x, r * W, M0[b, i + r], j0, width, n, False)
                        else:
                            _zero(x, r * W, n)
                        if r < rows and checkpoints.size > 0:
                            _store(x, r * W, checkpoints[b, t0 // S, i + r], j0, width)
                    a1 = v1 = zero
                    for s in range(steps):
                        t = t0 + s
                        if reset.size > 0 and reset[b, t]:
                            _zero(x, 0, n)
                            _zero(x, W, n)
                        a0 = theta[b, t, i] * rate if calibrated else zero
                        v0 = v[b, t, i]
                        if rows == 2:
                            a1 = theta[b, t, i + 1] * rate if calibrated else zero
                            v1 = v[b, t, i + 1]
                        at = COLUMNS + 3 * W * s
                        h0 = h1 = zero
                        for j in range(n):
                            k_j = x[u(at + W + j)]
                            q_j = x[u(at + 2 * W + j)]
                            p0 = x[u(j)]
                            p1 = x[u(W + j)]
                            if calibrated:
                                p0 *= _squash(a0 * x[u(at + j)], scale)     # eq. 14
                                p1 *= _squash(a1 * x[u(at + j)], scale)
                            p0 += v0 * k_j                                  # eqs. 8, 9
                            p1 += v1 * k_j
                            if clipped:
                                p0 = -clip if p0 < -clip else p0            # written so that nan stays
                                p0 = clip if p0 > clip else p0
                                p1 = -clip if p1 < -clip else p1
                                p1 = clip if p1 > clip else p1
                            x[u(j)] = p0
                            x[u(W + j)] = p1
                            h0 += p0 * q_j                                  # eq. 2
                            h1 += p1 * q_j
                        h[b, t, i] = h0 if j0 == 0 else h[b, t, i] + h0
                        if rows == 2:
                            h[b, t, i + 1] = h1 if j0 == 0 else h[b, t, i + 1] + h1
                    for r in range(rows):
                        _store(x, r * W, M[b, i + r], j0, width)


# ---- backward --------------------------------------------------------------------------------------------------------

# Scratch of the backward: a record per step of the chunk, and one more for what is before the first or after the last.
# Names are offsets in a record; two rows where the comment says so.
VC, KEY, Q, DVC, DKEY, DQ = 0, W, 2 * W, 3 * W, 4 * W, 5 * W
A = 6 * W         # 2 rows: gradient of the memory before the step
C = 8 * W         # 2 rows: the step's calibration
M_ = 10 * W       # 2 rows: memory before the step, and after its reset
P = 12 * W        # 2 rows: memory after the step, before the limit; only with `clip`
LOST = 14 * W     # 2 rows: memory before the step's reset; only where there is one
RECORD = 16 * W + 48   # not a power of two: records must not share cache sets


@jit(fastmath=FAST)
def _backward(theta, vc, v, k, q, reset, checkpoints, dh, rate, gain, scale, clip, calibrated, clipped, S,
              dM, dtheta, dvc, dv, dk, dq, x, first, last):
    """Run the units first..last; dM holds dM_T and becomes dM0.

    dvc, dk, dq are [B, 1, T, K] (a unit is a batch row) or [B, bands, T, K] (a unit is one band of it, and the caller sums).
    """
    B, T, V = v.shape
    K = k.shape[2]
    zero, one = x.dtype.type(0), x.dtype.type(1)
    inverse = one / scale
    bands = (V + BAND - 1) // BAND
    parts = dk.shape[1]
    chunks = (T + S - 1) // S
    for unit in range(first, last):
        b = unit // parts
        part = unit % parts
        band_start = part
        band_end = bands if parts == 1 else part + 1
        for chunk in range(chunks - 1, -1, -1):
            t0 = chunk * S
            steps = min(S, T - t0)
            for j0 in range(0, K, W):
                width = min(W, K - j0)
                n = (width + LANES - 1) // LANES * LANES
                for s in range(steps):
                    at = RECORD * s
                    if calibrated:
                        _load(x, at + VC, vc[b, t0 + s], j0, width, n, True)
                    _load(x, at + KEY, k[b, t0 + s], j0, width, n, True)
                    _load(x, at + Q, q[b, t0 + s], j0, width, n, False)
                for band in range(band_start, band_end):
                    for s in range(steps):
                        _zero(x, RECORD * s + DVC, n)
                        _zero(x, RECORD * s + DKEY, n)
                        _zero(x, RECORD * s + DQ, n)
                    i_end = min(V, (band + 1) * BAND)
                    for i in range(band * BAND, i_end, 2):
                        rows = min(2, i_end - i)
                        for r in range(2):
                            if r < rows:
                                _load(x, M_ + r * W, checkpoints[b, chunk, i + r], j0, width, n, False)
                                _load(x, RECORD * steps + A + r * W, dM[b, i + r], j0, width, n, False)
                            else:
                                _zero(x, M_ + r * W, n)
                                _zero(x, RECORD * steps + A + r * W, n)

                        a1 = v1 = g1 = zero
                        for s in range(steps):   # the chunk's forward once more, keeping C, M and where needed P
                            t = t0 + s
                            at = RECORD * s
                            if reset.size > 0 and reset[b, t]:
                                for r in range(2):
                                    _copy(x, at + M_ + r * W, at + LOST + r * W, n)
                                    _zero(x, at + M_ + r * W, n)
                            a0 = theta[b, t, i] * rate if calibrated else zero
                            v0 = v[b, t, i]
                            if rows == 2:
                                a1 = theta[b, t, i + 1] * rate if calibrated else zero
                                v1 = v[b, t, i + 1]
                            for j in range(n):
                                k_j = x[u(at + KEY + j)]
                                c0 = c1 = one
                                if calibrated:
                                    c0 = _squash(a0 * x[u(at + VC + j)], scale)
                                    c1 = _squash(a1 * x[u(at + VC + j)], scale)
                                p0 = x[u(at + M_ + j)] * c0 + v0 * k_j
                                p1 = x[u(at + M_ + W + j)] * c1 + v1 * k_j
                                x[u(at + C + j)] = c0
                                x[u(at + C + W + j)] = c1
                                if clipped:
                                    x[u(at + P + j)] = p0
                                    x[u(at + P + W + j)] = p1
                                    p0 = -clip if p0 < -clip else p0
                                    p0 = clip if p0 > clip else p0
                                    p1 = -clip if p1 < -clip else p1
                                    p1 = clip if p1 > clip else p1
                                x[u(at + RECORD + M_ + j)] = p0
                                x[u(at + RECORD + M_ + W + j)] = p1

                        for s in range(steps - 1, -1, -1):
                            t = t0 + s
                            at = RECORD * s
                            a0 = theta[b, t, i] * gain if calibrated else zero
                            v0 = v[b, t, i]
                            g0 = dh[b, t, i]
                            if rows == 2:
                                a1 = theta[b, t, i + 1] * gain if calibrated else zero
                                v1 = v[b, t, i + 1]
                                g1 = dh[b, t, i + 1]
                            dv0 = dv1 = dtheta0 = dtheta1 = zero
                            for j in range(n):
                                k_j = x[u(at + KEY + j)]
                                q_j = x[u(at + Q + j)]
                                x[u(at + DQ + j)] += g0 * x[u(at + RECORD + M_ + j)] + g1 * x[u(at + RECORD + M_ + W + j)]
                                d0 = x[u(at + RECORD + A + j)] + g0 * q_j
                                d1 = x[u(at + RECORD + A + W + j)] + g1 * q_j
                                if clipped:
                                    d0 = d0 if abs(x[u(at + P + j)]) <= clip else zero
                                    d1 = d1 if abs(x[u(at + P + W + j)]) <= clip else zero
                                x[u(at + DKEY + j)] += v0 * d0 + v1 * d1
                                dv0 += d0 * k_j
                                dv1 += d1 * k_j
                                c0 = x[u(at + C + j)]
                                c1 = x[u(at + C + W + j)]
                                d0 *= c0
                                d1 *= c1
                                x[u(at + A + j)] = d0
                                x[u(at + A + W + j)] = d1
                                if calibrated:
                                    vc_j = x[u(at + VC + j)]
                                    w0 = d0 * x[u(at + M_ + j)] * (one - c0 * inverse)          # slope: gain C (1 - C / scale)
                                    w1 = d1 * x[u(at + M_ + W + j)] * (one - c1 * inverse)
                                    x[u(at + DVC + j)] += a0 * w0 + a1 * w1
                                    dtheta0 += w0 * vc_j
                                    dtheta1 += w1 * vc_j
                            dv[b, t, i] = dv0 if j0 == 0 else dv[b, t, i] + dv0
                            if calibrated:
                                dtheta[b, t, i] = gain * dtheta0 if j0 == 0 else dtheta[b, t, i] + gain * dtheta0
                            if rows == 2:
                                dv[b, t, i + 1] = dv1 if j0 == 0 else dv[b, t, i + 1] + dv1
                                if calibrated:
                                    dtheta[b, t, i + 1] = gain * dtheta1 if j0 == 0 else dtheta[b, t, i + 1] + gain * dtheta1
                            if reset.size > 0 and reset[b, t]:   # nothing of this episode reaches the one before
                                for r in range(2):
                                    _copy(x, at + LOST + r * W, at + M_ + r * W, n)
                                    _zero(x, at + A + r * W, n)
                        for r in range(rows):
                            _store(x, A + r * W, dM[b, i + r], j0, width)

                    for s in range(steps):
                        at = RECORD * s
                        for j in range(width):
                            new = band == band_start
                            dk[b, part, t0 + s, j0 + j] = x[u(at + DKEY + j)] + (zero if new else dk[b, part, t0 + s, j0 + j])
                            dq[b, part, t0 + s, j0 + j] = x[u(at + DQ + j)] + (zero if new else dq[b, part, t0 + s, j0 + j])
                            if calibrated:
                                dvc[b, part, t0 + s, j0 + j] = x[u(at + DVC + j)] + (zero if new else dvc[b, part, t0 + s, j0 + j])


# ---- operator --------------------------------------------------------------------------------------------------------

WHOLE_ROWS = 16   # from this batch size on, the backward gives each thread whole batch rows and needs no partial sums


def _numbers(like: Tensor, clip: float | None, calibration: str) -> tuple[Any, Any, Any, Any]:
    """rate, gain, scale, clip in the tensors' dtype; C = scale / (1 + 2^(rate z))."""
    scale, gain = FORMS[calibration]
    number = np.float64 if like.dtype == torch.float64 else np.float32
    return number(-gain * math.log2(math.e)), number(gain), number(scale), number(0 if clip is None else clip)


def _or_empty(x: Tensor | None, like: Tensor, ndim: int) -> Any:
    return array(like.new_empty([0] * ndim) if x is None else x)


def forward(theta: Tensor | None, vc: Tensor | None, v: Tensor, k: Tensor, q: Tensor, M0: Tensor | None, reset: Tensor | None,
            clip: float | None, calibration: str, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """See `make_op`."""
    B, T, V = v.shape
    K, S = k.shape[-1], interval(T)
    h, M = v.new_empty(B, T, V), v.new_empty(B, V, K)
    checkpoints = v.new_empty(B, -(-T // S), V, K) if save else v.new_empty(0)
    rate, _, scale, limit = _numbers(v, clip, calibration)
    arrays = (_or_empty(theta, v, 3), _or_empty(vc, v, 3), array(v), array(k), array(q), _or_empty(M0, v, 3),
              array(v.new_empty(0, 0, dtype=torch.bool) if reset is None else reset),
              rate, scale, limit, calibration != "none", clip is not None, S,
              h.numpy(), M.numpy(), array(checkpoints if save else v.new_empty(0, 0, 0, 0)))
    steps = min(S, T)

    def work(first: int, last: int) -> None:
        _forward(*arrays, v.new_empty(COLUMNS + 3 * W * steps).numpy(), first, last)

    parallel(work, B * -(-V // BAND), B * T * V * K)
    return h, M, checkpoints


def backward(theta: Tensor | None, vc: Tensor | None, v: Tensor, k: Tensor, q: Tensor, M0: Tensor | None, reset: Tensor | None,
             clip: float | None, calibration: str, checkpoints: Tensor, dh: Tensor, dM: Tensor) -> tuple[Tensor, ...]:
    """See `make_op`."""
    B, T, V = v.shape
    K, S = k.shape[-1], interval(T)
    calibrated = calibration != "none"
    parts = 1 if B >= WHOLE_ROWS else -(-V // BAND)
    A0 = dM.detach().clone(memory_format=torch.contiguous_format)
    dtheta = v.new_empty(B, T, V) if calibrated else v.new_empty(0)
    dv = v.new_empty(B, T, V)
    dvc, dk, dq = (v.new_empty(B, parts, T, K) if used else v.new_empty(0, 0, 0, 0) for used in (calibrated, True, True))
    rate, gain, scale, limit = _numbers(v, clip, calibration)
    arrays = (_or_empty(theta, v, 3), _or_empty(vc, v, 3), array(v), array(k), array(q),
              array(v.new_empty(0, 0, dtype=torch.bool) if reset is None else reset), array(checkpoints), array(dh),
              rate, gain, scale, limit, calibrated, clip is not None, S,
              A0.numpy(), array(dtheta if calibrated else v.new_empty(0, 0, 0)), dvc.numpy(), dv.numpy(), dk.numpy(), dq.numpy())
    steps = min(S, T)

    def work(first: int, last: int) -> None:
        _backward(*arrays, v.new_empty(RECORD * (steps + 1)).numpy(), first, last)

    parallel(work, B * parts, 2 * B * T * V * K)
    dvc, dk, dq = (_sum_parts(x) for x in (dvc, dk, dq))
    return dtheta, dvc if calibrated else v.new_empty(0), dv, dk, dq, v.new_empty(0) if M0 is None else A0


def _sum_parts(x: Tensor) -> Tensor:
    """[B, parts, T, K] -> [B, T, K], first part first: the order in which a whole row adds up its bands."""
    if x.shape[1] <= 1:
        return x.flatten(0, 1)
    total = x[:, 0] + x[:, 1]
    for part in range(2, x.shape[1]):
        total += x[:, part]
    return total


shm_cpu = make_op("cpu", forward, backward, interval)
