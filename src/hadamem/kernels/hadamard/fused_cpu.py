"""M_t = M_{t-1} ⊙ C_t + U_t for CPUs (numba), cell by cell: every tensor is read once and written once.

Saves: the passes of `scan` over C, U and M, and the graph of T small steps of `reference`; memory traffic is left.
Loses: where C and U are built from vectors, for `shm` never forms them at all; no second derivative.

Results do not depend on the number of threads, nor on what else is in the batch: no cell meets another.
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
def _forward(C, U, M0, reset, M, first, last):
    """C, U, M [B, T, N]; M0 [B, N] or [0, 0]; reset [B, T] or [0, 0]. A unit is a span of cells of one batch row."""
    _, T, N = U.shape
    spans = (N + SPAN - 1) // SPAN
    for unit in range(first, last):
        b, j0 = unit // spans, unit % spans * SPAN
        width = min(SPAN, N - j0)
        for t in range(T):
            fresh = (t == 0 and M0.size == 0) or (reset.size > 0 and reset[b, t])
            if fresh:   # 0 * C, not 0: as the definition has it, a nan in C counts even then
                for j in range(width):
                    M[b, t, u(j0 + j)] = C.dtype.type(0) * C[b, t, u(j0 + j)] + U[b, t, u(j0 + j)]
            elif t == 0:
                for j in range(width):
                    M[b, t, u(j0 + j)] = M0[b, u(j0 + j)] * C[b, t, u(j0 + j)] + U[b, t, u(j0 + j)]
            else:
                for j in range(width):
                    M[b, t, u(j0 + j)] = M[b, u(t - 1), u(j0 + j)] * C[b, t, u(j0 + j)] + U[b, t, u(j0 + j)]


@jit(fastmath={"contract", "nsz"})
def _backward(C, M0, reset, M, dM, dC, dU, dM0, first, last):
    """dU_t = dM_t + C_{t+1} ⊙ dU_{t+1} and dC_t = dU_t ⊙ M_{t-1}, cut where an episode begins; dM0 may be [0, 0]."""
    _, T, N = C.shape
    zero = C.dtype.type(0)
    spans = (N + SPAN - 1) // SPAN
    for unit in range(first, last):
        b, j0 = unit // spans, unit % spans * SPAN
        width = min(SPAN, N - j0)
        for t in range(T - 1, -1, -1):
            if t == T - 1 or (reset.size > 0 and reset[b, t + 1]):
                for j in range(width):
                    dU[b, t, u(j0 + j)] = dM[b, t, u(j0 + j)]
            else:
                for j in range(width):
                    later = C[b, u(t + 1), u(j0 + j)] * dU[b, u(t + 1), u(j0 + j)]
                    dU[b, t, u(j0 + j)] = dM[b, t, u(j0 + j)] + later
            fresh = (t == 0 and M0.size == 0) or (reset.size > 0 and reset[b, t])
            if fresh:   # the memory before was a 0 put in its place
                for j in range(width):
                    dC[b, t, u(j0 + j)] = dU[b, t, u(j0 + j)] * zero
            elif t == 0:
                for j in range(width):
                    dC[b, t, u(j0 + j)] = dU[b, t, u(j0 + j)] * M0[b, u(j0 + j)]
            else:
                for j in range(width):
                    dC[b, t, u(j0 + j)] = dU[b, t, u(j0 + j)] * M[b, u(t - 1), u(j0 + j)]
        if dM0.size > 0:
            if reset.size > 0 and reset[b, 0]:
                for j in range(width):
                    dM0[b, u(j0 + j)] = zero
            else:
                for j in range(width):
                    dM0[b, u(j0 + j)] = dU[b, 0, u(j0 + j)] * C[b, 0, u(j0 + j)]


def forward(C: Tensor, U: Tensor, M0: Tensor | None, reset: Tensor | None) -> Tensor:
    """See `make_op`."""
    B, T, V, K = U.shape
    M = U.new_empty(B, T, V, K)
    arrays = (_cells(C), _cells(U), _state(M0, U), _flags(reset), _cells(M))
    parallel(lambda _, first, last: _forward(*arrays, first, last), B * -(-V * K // SPAN), M.numel())
    return M


def backward(C: Tensor, M0: Tensor | None, reset: Tensor | None, M: Tensor, dM: Tensor) -> tuple[Tensor, ...]:
    """See `make_op`."""
    B, T, V, K = M.shape
    dC, dU = M.new_empty(B, T, V, K), M.new_empty(B, T, V, K)
    dM0 = None if M0 is None else M.new_empty(B, V, K)
    arrays = (_cells(C), _state(M0, M), _flags(reset), _cells(M), _cells(dM), _cells(dC), _cells(dU), _state(dM0, M))
    parallel(lambda _, first, last: _backward(*arrays, first, last), B * -(-V * K // SPAN), 2 * M.numel())
    return dC, dU, M.new_empty(0) if dM0 is None else dM0


def _cells(x: Tensor) -> Any:
    return array(x).reshape(x.shape[0], x.shape[1], -1)


def _state(x: Tensor | None, like: Tensor) -> Any:
    return array(like.new_empty(0, 0)) if x is None else array(x).reshape(x.shape[0], -1)


def _flags(reset: Tensor | None) -> Any:
    return array(torch.empty(0, 0, dtype=torch.bool, device="cpu") if reset is None else reset)


hadamard_cpu = make_op("cpu", forward, backward)
