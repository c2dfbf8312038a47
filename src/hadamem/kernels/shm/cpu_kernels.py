"""The numba kernels of SHM's recurrence: two rows of the memory and one chunk of steps at a time, in the cache.

`fused_cpu.py` calls them, and says what they save and where they lose.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from .._numba import jit as compiled
from .._steepness import STEEPEST
from .curves_cpu import FAST, has_drift, lift, shift, squash, top

W = 128        # columns worked on at a time
LANES = 16     # columns are padded to a multiple of this, so that no vector loop has a remainder
BAND = 32      # rows whose sums over rows (dq, dk, dvc) are formed together: fixes their order

jit = functools.partial(compiled, counts_references=False)   # numba would count for every two rows, up to a tenth of the time
u = np.uintp   # an unsigned index: numba then omits the test for a negative one, which would stop vectorisation


# ---- moving rows between tensors and scratch -------------------------------------------------------------------------

# `x` is scratch: one flat array in which all that a loop touches lies a constant number of columns apart, so that the
# compiler knows that nothing overlaps. Rows in it are padded with zeros, or with copies of their first column: a pad
# then is nan or inf only if a real column is, and as its q is 0, it adds nothing to a sum of finite numbers.

@jit(inline="always")
def _load(x, at, source, b, r, j0, width, n, repeat):
    for j in range(width):
        x[u(at + j)] = source[b, r, u(j0 + j)]
    pad = source[b, r, j0] if repeat else x.dtype.type(0)
    for j in range(width, n):
        x[u(at + j)] = pad


@jit(inline="always")
def _store(x, at, target, b, r, j0, width, new):
    if new:
        for j in range(width):
            target[b, r, u(j0 + j)] = x[u(at + j)]
    else:
        for j in range(width):
            target[b, r, u(j0 + j)] += x[u(at + j)]


@jit(inline="always")
def _store_limited(x, at, target, b, r, j0, width, limit):
    for j in range(width):
        y = x[u(at + j)]
        y = -limit if y < -limit else y        # written so that nan stays
        target[b, r, u(j0 + j)] = limit if y > limit else y


@jit()
def _copy(x, at, to, n):
    for j in range(n):
        x[u(to + j)] = x[u(at + j)]


@jit(inline="always")
def _zero(x, at, n):
    for j in range(n):
        x[u(at + j)] = x.dtype.type(0)


# ---- limit -----------------------------------------------------------------------------------------------------------

# A memory rarely comes near its limit, but holding every cell to it takes a tenth of the time. So a chunk starts as if
# there were none, and the norm of the two rows is watched: measured now and then, and bounded in between (a step makes
# it top |M| + |v| |k| at most). From the first step on that might pass the limit, the chunk runs with it.

@jit(fastmath=FAST)
def _norm(x, at, n):
    squares = x.dtype.type(1e-30)   # more than what is lost where squares fall below the smallest number
    for j in range(n):
        squares += x[u(at + j)] * x[u(at + j)]
    return math.sqrt(squares)


@jit(inline="always")
def _bound(x, at, n, bound, growth, curve, room):
    """A bound of the norm of the two rows at `at` after the next step, from that of now; above `room` if it may be reached soon."""
    scale = x.dtype.type(1) if curve is None else top(curve)
    bound = bound * scale + growth
    if not bound <= room:
        bound = (_norm(x, at, n) + _norm(x, at + W, n)) * scale + growth
        if not bound * 4 <= room:   # it would be measured again almost at once, and that takes longer than the limit
            bound = x.dtype.type(np.inf)
    return bound


# ---- forward ---------------------------------------------------------------------------------------------------------

# In all kernels: curve is None if C = 1 (calibration "none"), clip is None if there is no limit, room if nothing is
# watched (numba compiles a version for each); an empty reset, M0 or checkpoints means that there is none.

VC, KEY, Q = 0, W, 2 * W   # offsets in a step's record of columns
NORM = 3 * W               # norm of k; only with a limit
STEP = 3 * W + LANES
ROWS = 2 * W               # the records come after two rows of M


@jit()
def _dot(x, at, to, width):
    """A sum over the real columns alone: of a memory that is inf, a pad times its q is nan."""
    total = x.dtype.type(0)
    for j in range(width):
        total += x[u(at + j)] * x[u(to + j)]
    return total


@jit(inline="always")
def _advance(x, n, width, b, i, two, t0, s, steps, first_tile, theta, v, reset, rate, curve, clip, room, h):
    """Take rows i and (if `two`) i + 1 of the memory through the steps from s on, adding what these columns read to h.

    Stops before a step that might take the memory out of its room. Returns the step that is next.
    """
    zero, bound = x.dtype.type(0), x.dtype.type(np.inf)
    while s < steps:
        t = t0 + s
        if reset.size > 0 and reset[b, t]:
            _zero(x, 0, W + n)
            bound = zero
        v0 = v[b, t, i]
        v1 = v[b, t, i + 1] if two else zero
        a0 = a1 = s0 = s1 = zero
        if curve is not None:
            a0 = theta[b, t, i] * rate
            a1 = theta[b, t, i + 1] * rate if two else zero
            s0 = shift(theta, b, t, i, rate, curve)
            s1 = shift(theta, b, t, i + 1, rate, curve) if two else zero
        at = ROWS + STEP * s
        if room is not None:
            bound = _bound(x, 0, n, bound, (abs(v0) + abs(v1)) * x[u(at + NORM)], curve, room)
            if not bound <= room:
                break
        h0 = h1 = zero
        for j in range(n):
            k_j = x[u(at + KEY + j)]
            q_j = x[u(at + Q + j)]
            p0 = x[u(j)]
            p1 = x[u(W + j)]
            if curve is not None:
                vc_j = x[u(at + VC + j)]
                p0 *= lift(squash(a0 * vc_j + s0, curve), curve)   # eq. 14
                p1 *= lift(squash(a1 * vc_j + s1, curve), curve)
            p0 += v0 * k_j                              # eqs. 8, 9
            p1 += v1 * k_j
            if clip is not None:
                p0 = -clip if p0 < -clip else p0        # written so that nan stays
                p0 = clip if p0 > clip else p0
                p1 = -clip if p1 < -clip else p1
                p1 = clip if p1 > clip else p1
            x[u(j)] = p0
            x[u(W + j)] = p1
            h0 += p0 * q_j                              # eq. 2
            h1 += p1 * q_j
        if n > width and not (h0 == h0 and h1 == h1):
            h0, h1 = _dot(x, 0, at + Q, width), _dot(x, W, at + Q, width)
        h[b, t, i] = h0 if first_tile else h[b, t, i] + h0
        if two:
            h[b, t, i + 1] = h1 if first_tile else h[b, t, i + 1] + h1
        s += 1
    return s


@jit(fastmath=FAST)
def run_forward(theta, vc, v, k, q, M0, reset, rate, curve, clip, room, S, h, M, checkpoints, x, first, last):
    """Run the units first..last; a unit is a band of rows of one batch row."""
    _, T, V = v.shape
    K = k.shape[2]
    bands, chunks = (V + BAND - 1) // BAND, (T + S - 1) // S
    for unit in range(first, last):
        b, band = unit // bands, unit % bands
        i_end = min(V, (band + 1) * BAND)
        for t0 in range(0, T, S):
            steps = min(S, T - t0)
            for j0 in range(0, K, W):
                width = min(W, K - j0)
                n = (width + LANES - 1) // LANES * LANES
                for s in range(steps):
                    at = ROWS + STEP * s
                    if curve is not None:
                        _load(x, at + VC, vc, b, t0 + s, j0, width, n, True)
                    _load(x, at + KEY, k, b, t0 + s, j0, width, n, True)
                    _load(x, at + Q, q, b, t0 + s, j0, width, n, False)
                    if clip is not None:
                        x[at + NORM] = _norm(x, at + KEY, n)
                for i in range(band * BAND, i_end, 2):
                    two = i + 1 < i_end
                    if not two or (t0 == 0 and M0.size == 0):
                        _zero(x, 0, W + n)
                    for r in range(1 + two):
                        if t0 > 0:
                            _load(x, r * W, M, b, i + r, j0, width, n, False)
                        elif M0.size > 0:
                            _load(x, r * W, M0, b, i + r, j0, width, n, False)
                        if checkpoints.size > 0:
                            _store(x, r * W, checkpoints, b * chunks + t0 // S, i + r, j0, width, True)
                    s = _advance(x, n, width, b, i, two, t0, 0, steps, j0 == 0, theta, v, reset, rate, curve, None, room, h)
                    if clip is not None and s < steps:
                        _advance(x, n, width, b, i, two, t0, s, steps, j0 == 0, theta, v, reset, rate, curve, clip, None, h)
                    for r in range(1 + two):
                        _store(x, r * W, M, b, i + r, j0, width, True)


# ---- backward --------------------------------------------------------------------------------------------------------

# The backward's record of a step continues after VC, KEY and Q; two rows where the comment says so.
DVC, DKEY, DQ = 3 * W, 4 * W, 5 * W
A = 6 * W         # 2 rows: gradient of the memory before the step
C = 8 * W         # 2 rows: the step's calibration, less its floor
OLD = 10 * W      # 2 rows: memory before the step, and after its reset; the next record's is the memory after the step
P = 12 * W        # 2 rows: memory after the step, before the limit; only where the step ran with it
LOST = 14 * W     # 2 rows: memory before the step's reset; only where there is one
NORMS = 16 * W    # norms of k and vc; only with a limit
RECORD = 16 * W + 48   # not a power of two: records must not fall on the same cache sets


@jit(fastmath=FAST)
def _replay(x, n, b, i, two, t0, s, steps, theta, v, reset, rate, curve, clip, room):
    """Run the chunk's forward once more as `_advance` does, keeping every step's C and memory; nan is out of the room, too."""
    zero, bound = x.dtype.type(0), x.dtype.type(np.inf)
    while s < steps:
        t = t0 + s
        at = RECORD * s
        fresh = reset.size > 0 and reset[b, t]
        v0 = v[b, t, i]
        v1 = v[b, t, i + 1] if two else zero
        a0 = a1 = s0 = s1 = zero
        if curve is not None:
            a0 = theta[b, t, i] * rate
            a1 = theta[b, t, i + 1] * rate if two else zero
            s0 = shift(theta, b, t, i, rate, curve)
            s1 = shift(theta, b, t, i + 1, rate, curve) if two else zero
        if room is not None:
            growth = (abs(v0) + abs(v1)) * x[u(at + NORMS)]
            if curve is not None:
                growth += ((abs(a0) + abs(a1)) * x[u(at + NORMS + 1)] + abs(s0) + abs(s1)) * zero   # nan where C may be: limited, below
            bound = _bound(x, at + OLD, n, zero if fresh else bound, growth, curve, room)
            if not bound <= room:
                break
        if fresh:   # not before the break: there, the step is still to be run
            _copy(x, at + OLD, at + LOST, W + n)
            _zero(x, at + OLD, W + n)
        for j in range(n):
            k_j = x[u(at + KEY + j)]
            p0 = x[u(at + OLD + j)]
            p1 = x[u(at + OLD + W + j)]
            if curve is not None:
                vc_j = x[u(at + VC + j)]
                c0 = squash(a0 * vc_j + s0, curve)
                c1 = squash(a1 * vc_j + s1, curve)
                x[u(at + C + j)] = c0
                x[u(at + C + W + j)] = c1
                p0 *= lift(c0, curve)
                p1 *= lift(c1, curve)
            p0 += v0 * k_j
            p1 += v1 * k_j
            if clip is not None:
                x[u(at + P + j)] = p0
                x[u(at + P + W + j)] = p1
                p0 = -clip if p0 < -clip else p0
                p0 = clip if p0 > clip else p0
                p1 = -clip if p1 < -clip else p1
                p1 = clip if p1 > clip else p1
            x[u(at + RECORD + OLD + j)] = p0
            x[u(at + RECORD + OLD + W + j)] = p1
        s += 1
    return s


@jit(fastmath=FAST)
def _reverse(x, n, b, i, two, t0, begin, end, first_tile, theta, v, reset, dh, gain, curve, clip, dtheta, dv):
    """Go back through steps of the chunk: A from before `end` to before `begin`, adding to the gradients on the way."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for s in range(end - 1, begin - 1, -1):
        t = t0 + s
        at = RECORD * s
        v0, g0 = v[b, t, i], dh[b, t, i]
        v1 = v[b, t, i + 1] if two else zero
        g1 = dh[b, t, i + 1] if two else zero
        a0 = a1 = inverse = zero
        if curve is not None:
            a0 = theta[b, t, i] * gain
            a1 = theta[b, t, i + 1] * gain if two else zero
            inverse = curve[1] / curve[0]
        dv0 = dv1 = dtheta0 = dtheta1 = ds0 = ds1 = zero
        for j in range(n):
            k_j = x[u(at + KEY + j)]
            q_j = x[u(at + Q + j)]
            m0 = x[u(at + RECORD + OLD + j)]
            m1 = x[u(at + RECORD + OLD + W + j)]
            x[u(at + DQ + j)] += g0 * m0 + g1 * m1
            d0 = x[u(at + RECORD + A + j)] + g0 * q_j
            d1 = x[u(at + RECORD + A + W + j)] + g1 * q_j
            if clip is not None:
                d0 = d0 if abs(x[u(at + P + j)]) <= clip else zero
                d1 = d1 if abs(x[u(at + P + W + j)]) <= clip else zero
            x[u(at + DKEY + j)] += v0 * d0 + v1 * d1
            dv0 += d0 * k_j
            dv1 += d1 * k_j
            if curve is not None:
                vc_j = x[u(at + VC + j)]
                c0 = x[u(at + C + j)]
                c1 = x[u(at + C + W + j)]
                w0 = d0 * c0 * x[u(at + OLD + j)] * (one - c0 * inverse)
                w1 = d1 * c1 * x[u(at + OLD + W + j)] * (one - c1 * inverse)
                d0 *= lift(c0, curve)
                d1 *= lift(c1, curve)
                x[u(at + DVC + j)] += a0 * w0 + a1 * w1
                dtheta0 += w0 * vc_j
                dtheta1 += w1 * vc_j
                ds0 += w0
                ds1 += w1
            x[u(at + A + j)] = d0
            x[u(at + A + W + j)] = d1
        dv[b, t, i] = dv0 if first_tile else dv[b, t, i] + dv0
        if two:
            dv[b, t, i + 1] = dv1 if first_tile else dv[b, t, i + 1] + dv1
        if curve is not None:
            dtheta[b, t, i] = (zero if first_tile else dtheta[b, t, i]) + gain * dtheta0
            if two:
                dtheta[b, t, i + 1] = (zero if first_tile else dtheta[b, t, i + 1]) + gain * dtheta1
            if has_drift(curve):
                at_drift = dtheta.shape[2] // 2 + i
                dtheta[b, t, at_drift] = (zero if first_tile else dtheta[b, t, at_drift]) + gain * ds0
                if two:
                    dtheta[b, t, at_drift + 1] = (zero if first_tile else dtheta[b, t, at_drift + 1]) + gain * ds1
        if reset.size > 0 and reset[b, t]:   # nothing of this episode reaches the one before
            _copy(x, at + LOST, at + OLD, W + n)
            _zero(x, at + A, W + n)


@jit()
def run_backward(theta, vc, v, k, q, reset, checkpoints, dh, rate, gain, curve, clip, room, S,
              dM, dtheta, dvc, dv, dk, dq, x, first, last):
    """Run the units first..last; dM holds dM_T and becomes dM0.

    dvc, dk, dq are [B, T, K] (a unit is a batch row) or [B * bands, T, K] (a unit is a band; the caller sums).
    """
    B, T, V = v.shape
    K = k.shape[2]
    bands, chunks = (V + BAND - 1) // BAND, (T + S - 1) // S
    parts = dk.shape[0] // B
    for unit in range(first, last):
        b, part = unit // parts, unit % parts
        band_end = bands if parts == 1 else part + 1
        for chunk in range(chunks - 1, -1, -1):
            t0 = chunk * S
            steps = min(S, T - t0)
            for j0 in range(0, K, W):
                width = min(W, K - j0)
                n = (width + LANES - 1) // LANES * LANES
                for s in range(steps):
                    at = RECORD * s
                    if curve is not None:
                        _load(x, at + VC, vc, b, t0 + s, j0, width, n, True)
                    _load(x, at + KEY, k, b, t0 + s, j0, width, n, True)
                    _load(x, at + Q, q, b, t0 + s, j0, width, n, False)
                    if clip is not None:
                        x[at + NORMS] = _norm(x, at + KEY, n)
                        if curve is not None:
                            x[at + NORMS + 1] = _norm(x, at + VC, n)
                for band in range(part, band_end):
                    for s in range(steps):
                        _zero(x, RECORD * s + DVC, 2 * W + n)
                    i_end = min(V, (band + 1) * BAND)
                    for i in range(band * BAND, i_end, 2):
                        two = i + 1 < i_end
                        _zero(x, OLD, W + n)
                        _zero(x, RECORD * steps + A, W + n)
                        for r in range(1 + two):
                            _load(x, OLD + r * W, checkpoints, b * chunks + chunk, i + r, j0, width, n, False)
                            _load(x, RECORD * steps + A + r * W, dM, b, i + r, j0, width, n, False)
                        s = _replay(x, n, b, i, two, t0, 0, steps, theta, v, reset, rate, curve, None, room)
                        if clip is not None and s < steps:
                            _replay(x, n, b, i, two, t0, s, steps, theta, v, reset, rate, curve, clip, None)
                            _reverse(x, n, b, i, two, t0, s, steps, j0 == 0, theta, v, reset, dh, gain, curve, clip, dtheta, dv)
                        _reverse(x, n, b, i, two, t0, 0, s, j0 == 0, theta, v, reset, dh, gain, curve, None, dtheta, dv)
                        for r in range(1 + two):
                            if clip is None:
                                _store(x, A + r * W, dM, b, i + r, j0, width, True)
                            else:
                                _store_limited(x, A + r * W, dM, b, i + r, j0, width, x.dtype.type(STEEPEST))
                    for s in range(steps):
                        at = RECORD * s
                        _store(x, at + DKEY, dk, unit, t0 + s, j0, width, band == part)
                        _store(x, at + DQ, dq, unit, t0 + s, j0, width, band == part)
                        if curve is not None:
                            _store(x, at + DVC, dvc, unit, t0 + s, j0, width, band == part)
