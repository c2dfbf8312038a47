"""What an acting step of SHM does beside the memory (numba): layers and norms of a tile of batch rows, and rotary keys.

A tile is transposed, [width, R]: a weight multiplies whole vectors of rows, and is read from its [out, in] matrix in place.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from .._exp2 import EXP2
from .._exp2 import ROUNDER as ROUNDERS
from .._numba import jit
from .._vectors import LANES, add, at_least, div, fill, fma, get, get_int, load, low_bits_as_power, mul, put, sqrt, store, sub

TILE = 2 * LANES   # batch rows that share a pass over the weights
PERIOD = 1 << 16   # of the angles, as in `memory.rotary`
COSINES = torch.cos(torch.arange(PERIOD, dtype=torch.float64) * (2 * math.pi / PERIOD)).float()
f = np.float32
ZERO, ONE = f(0), f(1)
C1, C2, C3, C4, C5 = (f(c) for c in EXP2[np.float32])
ROUNDER, LIMIT = f(ROUNDERS[np.float32]), f(126)
LOG2_E = math.log2(math.e)


@jit(inline="always")
def split_power(x, rounder):
    """2^x for |x| up to LIMIT, as 2^(x - n) and a number that `low_bits_as_power` makes 2^n of, n being x rounded by `rounder`."""
    t = add(x, fill(rounder))
    r = sub(x, sub(t, fill(rounder)))
    p = fma(r, fill(C5), fill(C4))
    p = fma(r, p, fill(C3))
    p = fma(r, p, fill(C2))
    p = fma(r, p, fill(C1))
    return fma(r, p, fill(ONE)), t


@jit()
def linear(x, D, R, W, outputs, bias, y):
    """y [outputs, R] = W [outputs, D] x [D, R] + bias; bias 0 if there is none."""
    for r in range(0, R, TILE):
        wide = R - r > LANES
        o = 0
        while o < outputs:
            four = o + 4 <= outputs
            w0 = W + 4 * o * D
            if four:
                w1, w2, w3 = w0 + 4 * D, w0 + 8 * D, w0 + 12 * D
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = fill(ZERO)
                if wide:
                    for d in range(D):
                        xa, xb = load(x, d * R + r), load(x, d * R + r + LANES)
                        w = fill(get(w0, d))
                        a0, b0 = fma(w, xa, a0), fma(w, xb, b0)
                        w = fill(get(w1, d))
                        a1, b1 = fma(w, xa, a1), fma(w, xb, b1)
                        w = fill(get(w2, d))
                        a2, b2 = fma(w, xa, a2), fma(w, xb, b2)
                        w = fill(get(w3, d))
                        a3, b3 = fma(w, xa, a3), fma(w, xb, b3)
                else:
                    for d in range(D):
                        xa = load(x, d * R + r)
                        a0, a1 = fma(fill(get(w0, d)), xa, a0), fma(fill(get(w1, d)), xa, a1)
                        a2, a3 = fma(fill(get(w2, d)), xa, a2), fma(fill(get(w3, d)), xa, a3)
                if bias != 0:
                    c0, c1, c2, c3 = fill(get(bias, o)), fill(get(bias, o + 1)), fill(get(bias, o + 2)), fill(get(bias, o + 3))
                    a0, a1, a2, a3 = add(a0, c0), add(a1, c1), add(a2, c2), add(a3, c3)
                    b0, b1, b2, b3 = add(b0, c0), add(b1, c1), add(b2, c2), add(b3, c3)
                store(y, o * R + r, a0)
                store(y, (o + 1) * R + r, a1)
                store(y, (o + 2) * R + r, a2)
                store(y, (o + 3) * R + r, a3)
                if wide:
                    store(y, o * R + r + LANES, b0)
                    store(y, (o + 1) * R + r + LANES, b1)
                    store(y, (o + 2) * R + r + LANES, b2)
                    store(y, (o + 3) * R + r + LANES, b3)
                o += 4
            else:
                for s in range(r, min(R, r + TILE), LANES):
                    a = fill(ZERO)
                    for d in range(D):
                        a = fma(fill(get(w0, d)), load(x, d * R + s), a)
                    store(y, o * R + s, a if bias == 0 else add(a, fill(get(bias, o))))
                o += 1


@jit()
def layer_norm(x, width, R, weight, bias, eps):
    """x [width, R], each column on its own, in place; weight 0: no affine part."""
    n = fill(f(width))
    for r in range(0, R, LANES):
        mean = variance = fill(ZERO)
        for d in range(width):
            mean = add(mean, load(x, d * R + r))
        mean = div(mean, n)
        for d in range(width):
            c = sub(load(x, d * R + r), mean)
            variance = fma(c, c, variance)
        scale = div(fill(ONE), sqrt(add(div(variance, n), fill(eps))))
        for d in range(width):
            y = mul(sub(load(x, d * R + r), mean), scale)
            if weight != 0:
                y = fma(y, fill(get(weight, d)), fill(get(bias, d)))
            store(x, d * R + r, y)


@jit()
def sum_to_one(x, width, R, softness):
    """positive(x) / (1e-5 + its sum), x [width, R], each column on its own, in place; positive: as in `gates.reference`."""
    zero, soft = fill(ZERO), fill(softness)
    rate = fill(f(LOG2_E) / softness if softness > 0 else ZERO)
    for r in range(0, R, LANES):
        s = zero
        for d in range(width):
            y = load(x, d * R + r)
            p = at_least(y, zero)
            if softness > 0:
                p2, t = split_power(at_least(mul(sub(y, p), rate), fill(-LIMIT)), ROUNDER)
                p = fma(soft, mul(p2, low_bits_as_power(t)), p)
            store(x, d * R + r, p)
            s = add(s, p)
        s = add(s, fill(f(1e-5)))
        for d in range(width):
            store(x, d * R + r, div(load(x, d * R + r), s))


@jit()
def transpose(x, width, R, rows, y, stride):
    """x [width, R] -> y [rows, stride]."""
    for r in range(rows):
        for d in range(width):
            put(y, r * stride + d, get(x, d * R + r))


@jit()
def turn(x, y, K, clock, turns, table):
    """y = `memory.rotary.rotate` of x, K entries; turns: the frequencies, table: cosines of a whole turn in PERIOD steps."""
    n, place = K // 2, clock % PERIOD
    for i in range(n):
        angle = place * get_int(turns, i) % PERIOD
        cos, sin = get(table, angle), get(table, (angle + 3 * PERIOD // 4) % PERIOD)
        a, b = get(x, i), get(x, n + i)
        put(y, i, a * cos - b * sin)
        put(y, n + i, a * sin + b * cos)
    if 2 * n < K:
        put(y, K - 1, get(x, K - 1))
