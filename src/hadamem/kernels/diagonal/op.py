"""The operator around a fused diagonal kernel: schema, shapes, autograd, vmap. `fused_cpu.py` and `triton.py` have the kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._ops import fold_batch, forbid_double_backward, forbid_forward_mode, is_plain, needs_grad


def resolved(x: Tensor) -> Tensor:
    """x with its numbers as they are in memory: a kernel does not see that a view means their conjugates or negatives."""
    return x.resolve_conj().resolve_neg()


def make_op(backend: str, forward: Callable[..., Tensor], backward: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """Register `hadamem::diagonal_<backend>` and its backward, and return a function with the contract of `diagonal_reference`.

    forward(a, u, s0, reset) -> s [B, T, N], every step's state (which is what the backward needs, so there are no checkpoints)
    backward(a, s0, reset, s, ds) -> da, du, ds0, with an empty tensor for ds0 where s0 was None
    a is [B, T, N], or [G, 1, N] for the same factor at all steps: B / G consecutive rows share one (so that vmap can fold its axis into the
    batch). All tensors in one dtype of float32, float64, complex64, complex128. Both must return new tensors, bit for bit the same for the
    same inputs.
    """
    backward_kernel = backward

    def run_forward(a: Tensor, u: Tensor, s0: Tensor | None, reset: Tensor | None) -> Tensor:
        return forward(a, u, s0, reset)

    def run_backward(a: Tensor, s0: Tensor | None, reset: Tensor | None, s: Tensor, ds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return backward(a, s0, reset, s, ds)   # type: ignore[return-value]

    op = torch.library.custom_op(f"hadamem::diagonal_{backend}", run_forward, mutates_args=())
    grad_op = torch.library.custom_op(f"hadamem::diagonal_{backend}_backward", run_backward, mutates_args=())

    @op.register_fake
    def _(a, u, s0, reset):
        return torch.empty_like(u, memory_format=torch.contiguous_format)

    @grad_op.register_fake
    def _(a, s0, reset, s, ds):
        return tuple(s.new_empty(0) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in (a, s, s0))

    def keep(ctx, inputs, output):
        a, _, s0, reset = inputs
        ctx.save_for_backward(a, s0, reset, output)

    def differentiate(ctx, ds, run):
        a, s0, reset, s = ctx.saved_tensors
        da, du, ds0 = run(a, s0, reset, s, resolved(ds))
        return da, du, None if s0 is None else ds0, None

    op.register_autograd(lambda ctx, ds: differentiate(ctx, ds, grad_op), setup_context=keep)
    forbid_double_backward(grad_op, "diagonal", backend)
    fold_batch(op, outputs=1)
    fold_batch(grad_op, outputs=3)

    class Eager(torch.autograd.Function):
        """The same without the operator's cost."""

        @staticmethod
        def forward(ctx, *inputs):
            s = forward(*inputs)
            keep(ctx, inputs, s)
            return s

        @staticmethod
        def backward(ctx, ds):
            return differentiate(ctx, ds, grad_op if torch.is_grad_enabled() else backward_kernel)   # grad_op refuses a second time

    def run(a, u, s0, reset):
        forbid_forward_mode("diagonal", backend, a, u, s0)
        a, u, s0 = resolved(a), resolved(u), None if s0 is None else resolved(s0)
        if not is_plain(a, u, s0, reset):
            return op(a, u, s0, reset)
        return Eager.apply(a, u, s0, reset) if needs_grad(a, u, s0) else forward(a, u, s0, reset)

    return run
