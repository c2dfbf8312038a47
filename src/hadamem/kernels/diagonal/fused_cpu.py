"""s_t = a_t ⊙ s_{t-1} + u_t for CPUs (numba), cell by cell: every tensor is read once and written once.

Saves: the passes of `scan` over a, u and s, and the graph of T small steps of `reference`; memory traffic is left. A decay that is constant
in time stays in the cache.
Loses: where a and u are built from vectors (a kernel that takes the vectors never forms a and u); no second derivative.

Results do not depend on the number of threads, nor on what else is in the batch: cells do not mix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._numba import array, jit, parallel
from .op import make_op

SPAN = 1024    # cells of one batch row that a unit takes through all steps: they stay in the first-level cache
u = np.uintp   # an unsigned index: numba then omits the test for a negative one, which would stop vectorisation


@jit(fastmath={"contract", "nsz"})   # no `nnan`, no `ninf`: nan and inf must come out as such
def _forward(a, update, s0, reset, s, first, last):
    """update, s [B, T, N]; a [G, T or 1, N]; s0 [B, N] or [0, 0]; reset [B, T] or [0, 0]. A unit is a span of cells of one batch row."""
    B, T, N = update.shape
    rows, per_step = B // a.shape[0], 1 if a.shape[1] > 1 else 0
    nothing = np.zeros(N, a.dtype)
    spans = (N + SPAN - 1) // SPAN
    for unit in range(first, last):
        b, j0 = unit // spans, unit % spans * SPAN
        width = min(SPAN, N - j0)
        for t in range(T):
            if (t == 0 and s0.size == 0) or (reset.size > 0 and reset[b, t]):
                before = nothing   # 0 * a, not 0: as the definition has it, a nan in a counts even then
            elif t == 0:
                before = s0[b]
            else:
                before = s[b, t - 1]
            now, a_t, u_t = s[b, t], a[b // rows, t * per_step], update[b, t]
            for j in range(width):
                now[u(j0 + j)] = a_t[u(j0 + j)] * before[u(j0 + j)] + u_t[u(j0 + j)]


@jit(fastmath={"contract", "nsz"})
def _backward(a, s0, reset, s, ds, da, du, ds0, first, last):
    """du_t = ds_t + conj(a_{t+1}) ⊙ du_{t+1} and da_t = du_t ⊙ conj(s_{t-1}), cut where an episode begins.

    da [B, T, N], or [B, 1, N] for its sum over time; ds0 may be [0, 0].
    """
    B, T, N = s.shape
    rows, per_step = B // a.shape[0], 1 if a.shape[1] > 1 else 0
    nothing = np.zeros(N, a.dtype)
    spans = (N + SPAN - 1) // SPAN
    for unit in range(first, last):
        b, j0 = unit // spans, unit % spans * SPAN
        width = min(SPAN, N - j0)
        for t in range(T - 1, -1, -1):
            fresh = reset.size > 0 and reset[b, t]
            now, ds_t, da_t = du[b, t], ds[b, t], da[b, t * per_step]
            if t == T - 1 or (reset.size > 0 and reset[b, t + 1]):
                for j in range(width):
                    now[u(j0 + j)] = ds_t[u(j0 + j)]
            else:
                a_t, later = a[b // rows, (t + 1) * per_step], du[b, t + 1]
                for j in range(width):
                    now[u(j0 + j)] = ds_t[u(j0 + j)] + np.conj(a_t[u(j0 + j)]) * later[u(j0 + j)]
            if fresh or (t == 0 and s0.size == 0):
                before = nothing
            elif t == 0:
                before = s0[b]
            else:
                before = s[b, t - 1]
            if per_step or t == T - 1:
                for j in range(width):
                    da_t[u(j0 + j)] = now[u(j0 + j)] * np.conj(before[u(j0 + j)])
            else:
                for j in range(width):
                    da_t[u(j0 + j)] += now[u(j0 + j)] * np.conj(before[u(j0 + j)])
        if ds0.size > 0:
            first_now, a_0, start = du[b, 0], a[b // rows, 0], ds0[b]
            if reset.size > 0 and reset[b, 0]:
                for j in range(width):
                    start[u(j0 + j)] = nothing[0]
            else:
                for j in range(width):
                    start[u(j0 + j)] = np.conj(a_0[u(j0 + j)]) * first_now[u(j0 + j)]


def forward(a: Tensor, u: Tensor, s0: Tensor | None, reset: Tensor | None) -> Tensor:
    """See `make_op`."""
    s = torch.empty_like(u, memory_format=torch.contiguous_format)
    arrays = (array(a), array(u), _state(s0, u), _flags(reset), array(s))
    parallel(lambda _, first, last: _forward(*arrays, first, last), u.shape[0] * -(-u.shape[2] // SPAN), u.numel())
    return s


def backward(a: Tensor, s0: Tensor | None, reset: Tensor | None, s: Tensor, ds: Tensor) -> tuple[Tensor, ...]:
    """See `make_op`."""
    B, _, N = s.shape
    da, du = s.new_empty(B, a.shape[1], N), torch.empty_like(s)
    ds0 = s.new_empty((0, 0) if s0 is None else (B, N))
    arrays = (array(a), _state(s0, s), _flags(reset), array(s), array(ds), array(da), array(du), array(ds0))
    parallel(lambda _, first, last: _backward(*arrays, first, last), B * -(-N // SPAN), 2 * s.numel())
    if a.shape[0] < B:   # rows that share a decay: numpy adds them one after the other, on one thread
        da = torch.from_numpy(da.numpy().reshape(a.shape[0], -1, *a.shape[1:]).sum(1))
    return da, du, s.new_empty(0) if s0 is None else ds0


def _state(x: Tensor | None, like: Tensor) -> Any:
    return array(like.new_empty(0, 0) if x is None else x)


def _flags(reset: Tensor | None) -> Any:
    return array(torch.empty(0, 0, dtype=torch.bool, device="cpu") if reset is None else reset)


diagonal_cpu = make_op("cpu", forward, backward)
