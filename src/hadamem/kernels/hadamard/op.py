"""The operator around a fused Hadamard kernel: schema, shapes, autograd, vmap. `fused_cpu.py` and `triton.py` bring the kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._ops import fold_batch, forbid_double_backward


def make_op(backend: str, forward: Callable[..., Tensor], backward: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """Register `hadamem::hadamard_<backend>` and its backward, and return a function with the contract of `hadamard_reference`.

    forward(C, U, M0, reset) -> M [B, T, V, K], every step's memory (what the backward needs, so there is no checkpoint besides)
    backward(C, M0, reset, M, dM) -> dC, dU, dM0, with an empty tensor for dM0 where M0 was None
    All tensors in float32 or float64 (one dtype). Both must return new tensors, bit for bit the same for the same inputs.
    """

    def run_forward(C: Tensor, U: Tensor, M0: Tensor | None, reset: Tensor | None) -> Tensor:
        return forward(C, U, M0, reset)

    def run_backward(C: Tensor, M0: Tensor | None, reset: Tensor | None, M: Tensor, dM: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return backward(C, M0, reset, M, dM)   # type: ignore[return-value]

    op = torch.library.custom_op(f"hadamem::hadamard_{backend}", run_forward, mutates_args=())
    grad_op = torch.library.custom_op(f"hadamem::hadamard_{backend}_backward", run_backward, mutates_args=())

    @op.register_fake
    def _(C, U, M0, reset):
        return torch.empty_like(U, memory_format=torch.contiguous_format)

    @grad_op.register_fake
    def _(C, M0, reset, M, dM):
        return tuple(M.new_empty(0) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in (C, M, M0))

    def setup_context(ctx, inputs, output):
        C, _, M0, reset = inputs
        ctx.save_for_backward(C, M0, reset, output)

    def differentiate(ctx, dM):
        C, M0, reset, M = ctx.saved_tensors
        dC, dU, dM0 = grad_op(C, M0, reset, M, dM)
        return dC, dU, None if M0 is None else dM0, None

    op.register_autograd(differentiate, setup_context=setup_context)
    forbid_double_backward(grad_op, "hadamard", backend)
    fold_batch(op, outputs=1)
    fold_batch(grad_op, outputs=3)
    return op
