"""The `triton` backend of s_t = a_t ⊙ s_{t-1} + u_t: cells are independent, so each thread walks its own one through time.

Saves the launches and the re-reading of s that the plain loop pays at every step: a and u are read once, s written once, which is all the
traffic there must be. What several steps need is loaded before the first of them is taken, because a load takes as long as a hundred
steps' arithmetic. It stays sequential in T; long sequences of a tiny memory in a small batch do not fill a GPU.

Triton has no complex numbers: a complex cell is two reals that lie side by side, and the kernels carry both.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .._backends import interpreting
from .._ops import as_bytes, on_device
from .op import make_op

STEPS = 8           # loaded at once
BLOCK = 128         # cells of a program, and as many threads
SMALL_BLOCK = 32    # where there are few cells: more programs, on more processors
FEW_CELLS = 2 ** 15
INTERPRETED_BLOCK = 256   # Triton's interpreter takes as long for any block: fewer of them


@triton.jit
def read(P, at, ok, COMPLEX: tl.constexpr):
    """Real and imaginary part of numbers at `at`; of real ones twice the same, the second unused."""
    if COMPLEX:
        real, imag = tl.load(P + 2 * at, mask=ok, other=0.0), tl.load(P + 2 * at + 1, mask=ok, other=0.0)
    else:
        real = tl.load(P + at, mask=ok, other=0.0)
        imag = real
    return real, imag


@triton.jit
def write(P, at, real, imag, ok, COMPLEX: tl.constexpr):
    if COMPLEX:
        tl.store(P + 2 * at, real, mask=ok)
        tl.store(P + 2 * at + 1, imag, mask=ok)
    else:
        tl.store(P + at, real, mask=ok)


@triton.jit
def times(x, xi, y, yi, COMPLEX: tl.constexpr):
    if COMPLEX:
        real, imag = x * y - xi * yi, x * yi + xi * y
    else:
        real = x * y
        imag = real
    return real, imag


@triton.jit
def forward_kernel(AA, UU, START, RESET, SS, T, cells, rows, CONSTANT: tl.constexpr, COMPLEX: tl.constexpr, HAS_START: tl.constexpr,
                   HAS_RESET: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (B, blocks of cells). With CONSTANT, `rows` consecutive batch rows share one row of AA, else each has T."""
    b = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = cell < cells
    s = tl.zeros((BLOCK,), SS.dtype.element_ty)
    si = s
    if HAS_START:
        s, si = read(START, b * cells + cell, ok, COMPLEX)
    if CONSTANT:
        a, ai = read(AA, b // rows * cells + cell, ok, COMPLEX)
    for t0 in range(0, T, STEPS):
        loaded = ()
        for i in tl.static_range(STEPS):
            inside = t0 + i < T
            at = (b * T + t0 + i) * cells + cell
            if not CONSTANT:
                loaded = loaded + (read(AA, at, ok & inside, COMPLEX),)
            loaded = loaded + (read(UU, at, ok & inside, COMPLEX),)
            if HAS_RESET:
                loaded = loaded + (tl.load(RESET + b * T + t0 + i, mask=inside, other=0),)
        each: tl.constexpr = len(loaded) // STEPS
        for i in tl.static_range(STEPS):
            if not CONSTANT:
                a, ai = loaded[i * each]
            u, ui = loaded[i * each + (0 if CONSTANT else 1)]
            if HAS_RESET:
                fresh = loaded[i * each + each - 1] != 0
                s, si = tl.where(fresh, 0.0, s), tl.where(fresh, 0.0, si)
            s, si = times(a, ai, s, si, COMPLEX)
            s += u
            si += ui
            write(SS, (b * T + t0 + i) * cells + cell, s, si, ok & (t0 + i < T), COMPLEX)


@triton.jit
def backward_kernel(AA, START, RESET, SS, DS, DA, DU, D0, T, cells, rows, CONSTANT: tl.constexpr, COMPLEX: tl.constexpr,
                    HAS_START: tl.constexpr, HAS_RESET: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Grid as forward: g = dL/ds_t runs back through the recurrence with conj(a); du = g, da = g ⊙ conj(s_{t-1}), with CONSTANT its sum."""
    b = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = cell < cells
    g = tl.zeros((BLOCK,), SS.dtype.element_ty)
    gi, total, totali = g, g, g
    if CONSTANT:
        a, ai = read(AA, b // rows * cells + cell, ok, COMPLEX)
    for back in range(0, T, STEPS):
        loaded = ()
        for i in tl.static_range(STEPS):
            t = T - 1 - back - i
            at = (b * T + t) * cells + cell
            before, beforei = read(SS, at - cells, ok & (t > 0), COMPLEX)
            if HAS_START:
                start, starti = read(START, b * cells + cell, ok & (t == 0), COMPLEX)
                before, beforei = tl.where(t > 0, before, start), tl.where(t > 0, beforei, starti)
            if not CONSTANT:
                loaded = loaded + (read(AA, at, ok & (t >= 0), COMPLEX),)
            loaded = loaded + ((before, beforei), read(DS, at, ok & (t >= 0), COMPLEX))
            if HAS_RESET:
                loaded = loaded + (tl.load(RESET + b * T + t, mask=t >= 0, other=0),)
        each: tl.constexpr = len(loaded) // STEPS
        skip: tl.constexpr = 0 if CONSTANT else 1
        for i in tl.static_range(STEPS):
            t = T - 1 - back - i
            at = (b * T + t) * cells + cell
            if not CONSTANT:
                a, ai = loaded[i * each]
            before, beforei = loaded[i * each + skip]
            ds, dsi = loaded[i * each + skip + 1]
            g += ds
            gi += dsi
            if HAS_RESET:
                fresh = loaded[i * each + each - 1] != 0
                before, beforei = tl.where(fresh, 0.0, before), tl.where(fresh, 0.0, beforei)
            write(DU, at, g, gi, ok & (t >= 0), COMPLEX)
            da, dai = times(before, -beforei, g, gi, COMPLEX)
            if CONSTANT:
                total, totali = tl.where(t >= 0, total + da, total), tl.where(t >= 0, totali + dai, totali)
            else:
                write(DA, at, da, dai, ok & (t >= 0), COMPLEX)
            earlier, earlieri = times(a, -ai, g, gi, COMPLEX)
            if HAS_RESET:
                earlier, earlieri = tl.where(fresh, 0.0, earlier), tl.where(fresh, 0.0, earlieri)
            g, gi = tl.where(t >= 0, earlier, g), tl.where(t >= 0, earlieri, gi)
    if HAS_START:
        write(D0, b * cells + cell, g, gi, ok, COMPLEX)
    if CONSTANT:
        write(DA, b * cells + cell, total, totali, ok, COMPLEX)


def _launch(kernel, a, s0, reset, s, *tensors):
    B, T, cells = s.shape
    block = INTERPRETED_BLOCK if interpreting() else SMALL_BLOCK if B * cells <= FEW_CELLS else BLOCK
    with on_device(s):
        kernel[(B, triton.cdiv(cells, block))](
            *tensors, T, cells, B // a.shape[0], CONSTANT=a.shape[1] == 1, COMPLEX=s.is_complex(), HAS_START=s0 is not None,
            HAS_RESET=reset is not None, STEPS=STEPS if T > 1 else 1, BLOCK=block, num_warps=block // 32,
        )


def _reals(x):
    """The numbers as stored: a complex one as two reals."""
    x = x.contiguous()
    return torch.view_as_real(x) if x.is_complex() else x


def forward(a, u, s0, reset):
    s = torch.empty_like(u, memory_format=torch.contiguous_format)
    _launch(forward_kernel, a, s0, reset, s, _reals(a), _reals(u), _reals(u if s0 is None else s0), _flags(reset, s), _reals(s))
    return s


def backward(a, s0, reset, s, ds):
    B, _, cells = s.shape
    s = s.contiguous()
    da, du = s.new_empty(B, a.shape[1], cells), torch.empty_like(s)
    ds0 = s.new_empty((0,) if s0 is None else (B, cells))
    _launch(backward_kernel, a, s0, reset, s, _reals(a), _reals(s if s0 is None else s0), _flags(reset, s), _reals(s), _reals(ds),
            _reals(da), _reals(du), _reals(ds0))
    if a.shape[0] < B:
        da = da.unflatten(0, (a.shape[0], -1)).sum(1)
    return da, du, ds0


def _flags(reset, like):
    return _reals(like) if reset is None else as_bytes(reset)


diagonal_triton = make_op("triton", forward, backward)
