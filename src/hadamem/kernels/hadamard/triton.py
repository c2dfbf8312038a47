"""The `triton` backend of M_t = M_{t-1} ⊙ C_t + U_t: cells are independent, so each thread walks its own ones through time.

Saves the launches and the re-reading of M that the plain loop pays at every step: C and U are read once, M written once, which is all the
traffic there must be. It is sequential in T; long sequences of a tiny memory in a small batch do not fill a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

from .op import make_op

BLOCK = 128   # cells of a program, and as many threads


@triton.jit
def forward_kernel(CC, UU, START, RESET, MM, T, cells, HAS_START: tl.constexpr, HAS_RESET: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (B, blocks of cells)."""
    b = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = cell < cells
    if HAS_START:
        M = tl.load(START + b * cells + cell, mask=ok, other=0.0)
    else:
        M = tl.zeros((BLOCK,), MM.dtype.element_ty)
    for t in range(T):
        at = (b * T + t) * cells + cell
        C = tl.load(CC + at, mask=ok, other=0.0)
        U = tl.load(UU + at, mask=ok, other=0.0)
        if HAS_RESET:
            M = tl.where(tl.load(RESET + b * T + t) != 0, 0.0, M)
        M = M * C + U                                                  # eq. 8
        tl.store(MM + at, M, mask=ok)


@triton.jit
def backward_kernel(CC, START, RESET, MM, DM, DC, DU, D0, T, cells, HAS_START: tl.constexpr, HAS_RESET: tl.constexpr, BLOCK: tl.constexpr):
    """Grid as forward: A = dL/dM_t runs back through the same recurrence; dU = A, dC = A ⊙ M_{t-1}."""
    b = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = cell < cells
    A = tl.zeros((BLOCK,), DC.dtype.element_ty)
    for i in range(T):
        t = T - 1 - i
        at = (b * T + t) * cells + cell
        C = tl.load(CC + at, mask=ok, other=0.0)
        before = tl.load(MM + at - cells, mask=ok & (t > 0), other=0.0)
        if HAS_START:
            before = tl.where(t > 0, before, tl.load(START + b * cells + cell, mask=ok & (t == 0), other=0.0))
        A += tl.load(DM + at, mask=ok, other=0.0)
        if HAS_RESET:
            reset = tl.load(RESET + b * T + t) != 0
            before = tl.where(reset, 0.0, before)
        tl.store(DU + at, A, mask=ok)
        tl.store(DC + at, A * before, mask=ok)
        A = A * C
        if HAS_RESET:
            A = tl.where(reset, 0.0, A)
    if HAS_START:
        tl.store(D0 + b * cells + cell, A, mask=ok)


def _launch(kernel, B, T, cells, M0, reset, like, *tensors, **options):
    with torch.cuda.device(like.device) if like.is_cuda else nullcontext():
        kernel[(B, triton.cdiv(cells, BLOCK))](
            *tensors, T, cells, HAS_START=M0 is not None, HAS_RESET=reset is not None, BLOCK=BLOCK, num_warps=4, **options
        )


def forward(C, U, M0, reset):
    B, T, V, K = U.shape
    C, U = C.contiguous(), U.contiguous()
    M = torch.empty_like(U)
    start = U if M0 is None else M0.contiguous()
    flags = U if reset is None else reset.contiguous().view(torch.uint8)
    _launch(forward_kernel, B, T, V * K, M0, reset, U, C, U, start, flags, M)
    return M


def backward(C, M0, reset, M, dM):
    B, T, V, K = M.shape
    C, M, dM = C.contiguous(), M.contiguous(), dM.contiguous()
    dC, dU = torch.empty_like(C), torch.empty_like(C)
    dM0 = C.new_empty(0) if M0 is None else torch.empty_like(M0, memory_format=torch.contiguous_format)
    start = M if M0 is None else M0.contiguous()
    flags = M if reset is None else reset.contiguous().view(torch.uint8)
    _launch(backward_kernel, B, T, V * K, M0, reset, M, C, start, flags, M, dM, dC, dU, dM0)
    return dC, dU, dM0


hadamard_triton = make_op("triton", forward, backward)
