"""One acting step of a whole SHM module in one call (numba): norm, projections, gates, recurrence, read, output layer.

Saves: some twenty small torch calls, and the competition for cores between torch's threads, which keep spinning after every matrix
product, and ours; M is read once and written once. Loses: CPU, float32 and no gradients only, and nothing can be put between the parts.

Batch rows are worked on in tiles of 16 or 32. The vectors (k, q, v, ...) of a tile are transposed, [width, rows]: a weight then multiplies
whole vectors of rows, and is read from its [out, in] matrix in place: no copy of the weights is made or kept. The memory is vectorised
along its own rows. The order of every sum depends on the sizes of the module alone, not on the batch or the threads.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numba.core import config
from torch import Tensor

from ... import random
from .._numba import jit, share, split
from .._recycle import empty
from .._vectors import (
    LANES,
    add,
    at_least,
    at_most,
    count,
    div,
    fill,
    fma,
    get,
    get_byte,
    get_int,
    load,
    low_bits_as_power,
    mul,
    put,
    store,
    total,
)
from .curves_cpu import acting_curve
from .tiles_cpu import COSINES, LIMIT, TILE, layer_norm, linear, split_power, sum_to_one, transpose, turn

GOLDEN, FIRST, SECOND = (np.uint64(x % 2 ** 64) for x in (random._GOLDEN, random._FIRST, random._SECOND))
SHIFTS = tuple(np.uint64(x) for x in (30, 27, 31, 32))
f = np.float32
ZERO, HALF, ONE, TWO = f(0), f(0.5), f(1), f(2)
ROUNDER = f(1.5 * 2 ** 23 + 126)   # leaves n + 126 in the low bits: the power below is 2^(n - 1)
RATE = f(-2 * math.log2(math.e))   # 1 + tanh(z) = 2 / (1 + 2^(RATE z))


def usable() -> bool:
    """Whether numba compiles at all: addresses cannot be followed in plain Python."""
    return not config.DISABLE_JIT   # type: ignore[attr-defined]


@jit(inline="always")
def _spread(x, limit):
    """(1 + 2^x) / 2, which is 1 / C for x = RATE z and C = 1 + tanh(z); limit None if |x| cannot exceed LIMIT."""
    if limit is not None:
        x = at_most(at_least(x, fill(-limit)), fill(limit))
    p, t = split_power(x, ROUNDER)
    return fma(p, low_bits_as_power(t), fill(HALF))


@jit(inline="always")
def _calibrated(p, a, vc, d, limit, curve):
    """p C for cells of a row (eq. 14), with a and d the row's theta and drift times the rate; curve: see `acting_curve`."""
    if curve is None:
        return div(p, _spread(mul(a, vc), limit))
    else:   # floor + scale / (low + 2^x)
        return mul(p, add(fill(curve[3]), div(fill(curve[1]), fma(_spread(fma(a, vc, d), limit), fill(TWO), fill(curve[2])))))


@jit(inline="always")
def _limited(p, clip):
    return p if clip is None else at_most(at_least(p, fill(-clip)), fill(clip))


@jit()
def _remember(source, stride, target, V, K, theta, vc, v, R, gate, k, q, h, pad, limit, clip, drift, curve):
    """One step of one batch row's memory [V, K], from `source` to `target`; v and h lie R floats apart, theta is a row of the table."""
    whole, rate = K // LANES * LANES, RATE if curve is None else curve[0]
    for i in range(0, V, 2):
        i1 = min(i + 1, V - 1)   # an odd last row is worked on twice, with the same result
        a0, a1 = fill(get(theta, i) * rate), fill(get(theta, i1) * rate)
        d0, d1 = (fill(get(drift, i) * rate), fill(get(drift, i1) * rate)) if drift != 0 else (fill(ZERO), fill(ZERO))
        v0, v1 = fill(get(v, i * R) * gate), fill(get(v, i1 * R) * gate)
        s0 = s1 = fill(ZERO)
        for j in range(0, whole, LANES):
            k_j, q_j, vc_j = load(k, j), load(q, j), load(vc, j)
            p0 = _calibrated(load(source, i * stride + j), a0, vc_j, d0, limit, curve)
            p1 = _calibrated(load(source, i1 * stride + j), a1, vc_j, d1, limit, curve)
            p0 = _limited(fma(v0, k_j, p0), clip)                                     # eqs. 8, 9
            p1 = _limited(fma(v1, k_j, p1), clip)
            store(target, i * K + j, p0)
            store(target, i1 * K + j, p1)
            s0 = fma(p0, q_j, s0)                                                     # eq. 2
            s1 = fma(p1, q_j, s1)
        h0, h1 = total(s0), total(s1)
        if whole < K:
            h0 += _remember_rest(source, stride, target, i, whole, K, a0, d0, v0, vc, k, q, pad, limit, clip, curve)
            h1 += _remember_rest(source, stride, target, i1, whole, K, a1, d1, v1, vc, k, q, pad, limit, clip, curve)
        put(h, i * R, h0)
        put(h, i1 * R, h1)


@jit(inline="always")
def _remember_rows(steep, source, stride, target, V, K, theta, vc, v, R, gate, k, q, h, pad, clip, drift, curve):
    """`_remember`; steep: |x| in `_spread` may exceed LIMIT."""
    if steep:
        _remember(source, stride, target, V, K, theta, vc, v, R, gate, k, q, h, pad, LIMIT, clip, drift, curve)
    else:
        _remember(source, stride, target, V, K, theta, vc, v, R, gate, k, q, h, pad, None, clip, drift, curve)


@jit(inline="always")
def _remember_rest(source, stride, target, i, whole, K, a, d, v, vc, k, q, pad, limit, clip, curve):
    """The last columns of a row, if they do not fill a vector."""
    for j in range(whole, K):
        put(pad, j - whole, get(source, i * stride + j))
    p = _calibrated(load(pad, 0), a, load(vc, whole), d, limit, curve)
    store(pad, 0, _limited(fma(v, load(k, whole), p), clip))
    h = ZERO
    for j in range(whole, K):
        p_j = get(pad, j - whole)
        put(target, i * K + j, p_j)
        h += p_j * get(q, j)
    return h


@jit()
def _draw(clock, high):
    """`random.integers(clock, high)` for one clock."""
    x = np.uint64(clock) * GOLDEN
    x = (x ^ (x >> SHIFTS[0])) * FIRST
    x = (x ^ (x >> SHIFTS[1])) * SECOND
    x ^= x >> SHIFTS[2]
    return np.int64((x >> SHIFTS[3]) * np.uint64(high) >> SHIFTS[3])


@jit()
def _greatest(x, n):
    """The largest |x|, nan aside."""
    greatest = ZERO
    for i in range(n):
        greatest = max(greatest, abs(get(x, i)))
    return greatest


# What the kernel finds in its array of numbers: sizes, flags, then addresses (0: there is none).
B_, D_, V_, K_, O_, L_, NORMALIZE, READ_NORM, TILE_SIZE, SCRATCH_SIZE, SCRATCH = range(11)
X, M0, RESET, CLOCK, THETA, NORM_W, NORM_B, KEY, QUERY, VALUE, ETA, VC, SHORTCUT, SHORTCUT_B, OUT, OUT_B, M1, Y, DRIFT = range(11, 30)
GAIN, KEY2, QUERY2, TURNS, POSITION, TABLE = range(30, 36)
TAKEN, WORKERS, DONE = 40, 48, 56   # counters, each in its own cache line
NUMBERS = 64


@jit()
def _act_rows(a, norm_eps, read_eps, softness, clip, curve, worker, b, rows):
    """Everything for the batch rows b, b + 1, ... (`rows` of them, at most TILE)."""
    D, V, K, O = a[D_], a[V_], a[K_], a[O_]
    KP = (K + LANES - 1) // LANES * LANES
    x = a[SCRATCH] + 4 * a[SCRATCH_SIZE] * worker
    gate = x + 4 * TILE * D
    kt = gate + 4 * TILE
    qt = kt + 4 * TILE * K
    ct = qt + 4 * TILE * K
    v = ct + 4 * TILE * K
    h = v + 4 * TILE * V
    shortcut = h + 4 * TILE * V
    y = shortcut + 4 * TILE * V
    k = y + 4 * TILE * O
    q = k + 4 * TILE * KP
    c = q + 4 * TILE * KP
    nothing = c + 4 * TILE * KP
    pad = nothing + 4 * KP
    k2 = pad + 4 * LANES
    q2 = k2 + 4 * KP
    c2 = q2 + 4 * KP
    own_k = c2 + 4 * KP
    own_q = own_k + 4 * TILE * KP
    for j in range(KP - LANES, 3 * KP, LANES):
        store(k2, j, fill(ZERO))
    for j in range(0, KP + LANES, LANES):
        store(nothing, j, fill(ZERO))
    R = TILE if rows > LANES else LANES
    for r in range(rows):
        for d in range(D):
            put(x, d * R + r, get(a[X], (b + r) * D + d))
    for r in range(rows, R):
        for d in range(D):
            put(x, d * R + r, ZERO)
    if a[NORM_W] != 0:
        layer_norm(x, D, R, a[NORM_W], a[NORM_B], f(norm_eps))
    linear(x, D, R, a[ETA], 1, 0, gate)
    linear(x, D, R, a[KEY], K, 0, kt)
    linear(x, D, R, a[QUERY], K, 0, qt)
    linear(x, D, R, a[VC], K, 0, ct)
    linear(x, D, R, a[VALUE], V, 0, v)
    if a[SHORTCUT] != 0:
        linear(x, D, R, a[SHORTCUT], V, a[SHORTCUT_B], shortcut)
    if a[NORMALIZE] != 0:
        sum_to_one(kt, K, R, softness)
        sum_to_one(qt, K, R, softness)
    for r in range(rows):   # the padding of these is used, but by nothing that lasts
        for j in range(KP - LANES, KP, LANES):
            store(k, r * KP + j, fill(ZERO))
            store(q, r * KP + j, fill(ZERO))
            store(c, r * KP + j, fill(ZERO))
    transpose(kt, K, R, rows, k, KP)
    transpose(qt, K, R, rows, q, KP)
    transpose(ct, K, R, rows, c, KP)
    if a[KEY2] != 0:
        linear(x, D, R, a[KEY2], K, 0, kt)
        linear(x, D, R, a[QUERY2], K, 0, qt)
        if a[NORMALIZE] != 0:
            sum_to_one(kt, K, R, softness)
            sum_to_one(qt, K, R, softness)
        transpose(kt, K, R, rows, own_k, KP)
        transpose(qt, K, R, rows, own_q, KP)
    for i in range(0, V * R, LANES):
        store(h, i, fill(ZERO))
    V2 = 0 if a[TURNS] == 0 else V // 2      # rows with rotary keys, the last ones
    theta, steepest, rate = 0, ZERO, RATE if curve is None else curve[0]
    drift = ZERO if a[DRIFT] == 0 else _greatest(a[DRIFT], V) * -rate
    for r in range(rows):
        row = a[THETA]
        if a[CLOCK] != 0:
            row += 4 * V * _draw(get_int(a[CLOCK], b + r), a[L_])
        if row != theta:
            theta, steepest = row, _greatest(row, V) * -rate
        source, stride = a[M0] + 4 * V * K * (b + r), K
        if a[RESET] != 0 and get_byte(a[RESET], b + r) != 0:
            source, stride = nothing, 0
        target = a[M1] + 4 * V * K * (b + r)
        g = ONE / (ONE + f(math.exp(-get(gate, r))))
        steep = steepest * _greatest(c + 4 * KP * r, K) + drift >= LIMIT
        vr, hr, kr, qr, cr = v + 4 * r, h + 4 * r, k + 4 * KP * r, q + 4 * KP * r, c + 4 * KP * r
        _remember_rows(steep, source, stride, target, V - V2, K, theta, cr, vr, R, g, kr, qr, hr, pad, clip, a[DRIFT], curve)
        if V2 > 0:
            if a[KEY2] != 0:
                kr, qr = own_k + 4 * KP * r, own_q + 4 * KP * r
            turn(kr, k2, K, get_int(a[POSITION], b + r), a[TURNS], a[TABLE])
            turn(qr, q2, K, get_int(a[POSITION], b + r), a[TURNS], a[TABLE])
            for j in range(K):      # both entries of a pair have the first one's factor
                put(c2, j, get(cr, j - K // 2 if K // 2 <= j < K // 2 * 2 else j))
            n = 4 * (V - V2)
            _remember_rows(steep, source + n * stride, stride, target + n * K, V2, K, theta + n, c2, vr + n * R, R, g, k2, q2, hr + n * R,
                           pad, clip, 0 if a[DRIFT] == 0 else a[DRIFT] + n, curve)
    if a[READ_NORM] != 0:
        layer_norm(h, V - V2, R, 0, 0, f(read_eps))
        if V2 > 0:
            layer_norm(h + 4 * (V - V2) * R, V2, R, 0, 0, f(read_eps))
    if a[GAIN] != 0:
        for i in range((V - V2) * R, V * R, LANES):
            store(h, i, mul(load(h, i), fill(get(a[GAIN], 0))))
    if a[SHORTCUT] != 0:
        for i in range(0, V * R, LANES):
            store(h, i, add(load(h, i), load(shortcut, i)))
    linear(h, V, R, a[OUT], O, a[OUT_B], y)
    transpose(y, O, R, rows, a[Y] + 4 * O * b, O)


@jit()
def _act(a, norm_eps, read_eps, softness, clip, curve):
    """Take tiles until none is left. Each thread calls this; counting here needs no GIL."""
    counters, size = a.ctypes.data, a[TILE_SIZE]
    tiles = (a[B_] + size - 1) // size
    tile = count(counters, TAKEN, 1)
    if tile < tiles:
        worker = count(counters, WORKERS, 1)
        while tile < tiles:
            _act_rows(a, norm_eps, read_eps, softness, clip, curve, worker, tile * size, min(size, a[B_] - tile * size))
            count(counters, DONE, 1)
            tile = count(counters, TAKEN, 1)


@jit()
def _done(a):
    """Whether all tiles are done; looks at it for about half a millisecond."""
    tiles = (a[B_] + a[TILE_SIZE] - 1) // a[TILE_SIZE]
    looks = 0
    while looks < 100_000 and count(a.ctypes.data, DONE, 0) < tiles:
        looks += 1
    return looks < 100_000


class Weights(NamedTuple):
    """The weights of a module: float32, contiguous, on the CPU; None where it has no such part."""

    theta: Tensor               # [L, V]
    key: Tensor                 # [K, D]
    query: Tensor               # [K, D]
    value: Tensor               # [V, D]
    eta: Tensor                 # [1, D]
    vc: Tensor                  # [K, D]
    out: Tensor                 # [O, V]
    out_bias: Tensor            # [O]
    norm: Tensor | None         # [D]
    norm_bias: Tensor | None    # [D]
    shortcut: Tensor | None     # [V, D]
    shortcut_bias: Tensor | None   # [V]
    rotary_key: Tensor | None   # [K, D]: of the rotary rows, where they have their own
    rotary_query: Tensor | None    # [K, D]
    drift: Tensor | None        # [V]
    gain: Tensor | None         # []: of the rotary rows


def act(x: Tensor, M0: Tensor, reset: Tensor | None, clock: Tensor | None, w: Weights, *, norm_eps: float, read_eps: float | None,
        normalize_keys: bool, clip: float | None, form: str = "tanh", turns: Tensor | None = None,
        position: Tensor | None = None, softness: float = 0.0) -> tuple[Tensor, Tensor]:
    """One step of SHM: x [B, D], M0 [B, V, K], reset [B] bool, clock [B] int64 -> y [B, O] and the new M [B, V, K].

    The clock is the step's, and draws the rows of theta (None: the first row for all); read_eps None: no norm on the read.
    turns [K // 2] int64: the last half of the rows is rotary, with these frequencies, at position [B] int64. All tensors are
    contiguous, on the CPU, floats in float32; shapes are not checked, and wrong ones read foreign memory.
    """
    B, D = x.shape
    V, K = M0.shape[1:]
    O = w.out.shape[0]
    M, y = empty(B, V, K), torch.empty(B, O, dtype=torch.float32, device=x.device)
    size = TILE * (D + 1 + 3 * K + 3 * V + O) + (5 * TILE + 4) * (K + LANES) + LANES
    size = -(-size // LANES) * LANES   # whole cache lines: threads must not share one
    threads = min(split(B, B * V * K)[0], -(-B // LANES))
    scratch = empty(threads, size)
    tile = TILE if threads == 1 or 4 * TILE * threads <= B else LANES
    numbers = [B, D, V, K, O, w.theta.shape[0], normalize_keys, read_eps is not None, tile, size, scratch.data_ptr()]
    tensors = (x, M0, reset, clock, w.theta, w.norm, w.norm_bias, w.key, w.query, w.value, w.eta, w.vc, w.shortcut, w.shortcut_bias,
               w.out, w.out_bias, M, y, w.drift, w.gain, w.rotary_key, w.rotary_query, turns, position, None if turns is None else COSINES)
    numbers += [0 if t is None else t.data_ptr() for t in tensors]
    a = np.array(numbers + [0] * (NUMBERS - len(numbers)), np.int64)
    limit, curve = None if clip is None else f(clip), acting_curve(form)

    def work(held: Any = (scratch, *tensors)) -> None:   # a helper that comes late, even after an interrupt, has its own hold on all of it
        _act(a, norm_eps, read_eps or 0.0, f(softness), limit, curve)

    share(work, threads, lambda: _done(a))
    return y, M
