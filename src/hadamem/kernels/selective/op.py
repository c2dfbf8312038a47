"""The operator around a fused selective kernel: schema, shapes, autograd, vmap. `fused_cpu.py` and `triton.py` have the kernels.

The forward returns the state at every `INTERVAL`-th step, in addition to its results; the backward starts each chunk from there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._ops import fold_batch, forbid_double_backward, forbid_forward_mode, is_plain, needs_grad

INTERVAL = 16   # steps between two checkpoints of the state


def make_op(backend: str, forward: Callable[..., tuple[Tensor, Tensor, Tensor]],
            backward: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Register `hadamem::selective_<backend>` and its backward, and return a function with the contract of `selective_reference`.

    forward(delta, A, v, k, q, S0, reset, save) -> h [B, T, D], S_T [B, D, N], checkpoints [B, chunks, D N]
        checkpoints[:, n] is the state before step n * INTERVAL, before that step's reset, in an order that the backend chooses; an empty
        tensor without `save`.
    backward(delta, A, v, k, q, S0, reset, checkpoints, dh, dS_T) -> ddelta, dA, dv, dk, dq, dS0, with an empty tensor where S0 was None
    A is [G, D, N]: B / G consecutive rows share one (so that vmap can fold its axis into the batch). All tensors in float32 or float64 (one
    dtype). Both must return new tensors (no views of their inputs), bit for bit the same for the same inputs.
    """
    backward_kernel = backward

    def run_forward(delta: Tensor, A: Tensor, v: Tensor, k: Tensor, q: Tensor, S0: Tensor | None, reset: Tensor | None,
                    save: bool) -> tuple[Tensor, Tensor, Tensor]:
        return forward(delta, A, v, k, q, S0, reset, save)

    def run_backward(delta: Tensor, A: Tensor, v: Tensor, k: Tensor, q: Tensor, S0: Tensor | None, reset: Tensor | None,
                     checkpoints: Tensor, dh: Tensor, dS: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        return backward(delta, A, v, k, q, S0, reset, checkpoints, dh, dS)   # type: ignore[return-value]

    op = torch.library.custom_op(f"hadamem::selective_{backend}", run_forward, mutates_args=())
    grad_op = torch.library.custom_op(f"hadamem::selective_{backend}_backward", run_backward, mutates_args=())

    @op.register_fake
    def _(delta, A, v, k, q, S0, reset, save):
        (B, T, D), N = v.shape, k.shape[-1]
        checkpoints = v.new_empty(B, (T + INTERVAL - 1) // INTERVAL, D * N) if save else v.new_empty(0)
        return v.new_empty(B, T, D), v.new_empty(B, D, N), checkpoints

    @grad_op.register_fake
    def _(delta, A, v, k, q, S0, reset, checkpoints, dh, dS):
        return tuple(v.new_empty(0) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format)
                     for x in (delta, A, v, k, q, S0))

    def keep(ctx, inputs, checkpoints):
        ctx.set_materialize_grads(False)     # or the checkpoints would get a gradient of zeros, as large as they are
        ctx.save_for_backward(*inputs, checkpoints)

    def differentiate(ctx, dh, dS, run):
        *inputs, checkpoints = ctx.saved_tensors
        v, k = inputs[2], inputs[3]
        dh = torch.zeros_like(v, memory_format=torch.contiguous_format) if dh is None else dh
        dS = v.new_zeros(v.shape[0], v.shape[-1], k.shape[-1]) if dS is None else dS
        grads = run(*inputs, checkpoints, dh, dS)
        return (*grads[:5], None if inputs[5] is None else grads[5], None)

    def differentiate_op(ctx, dh, dS, _):
        if ctx.saved_tensors[-1].numel() == 0:
            raise RuntimeError(f"hadamem::selective_{backend} was run with save=False and keeps nothing for a backward pass")
        return (*differentiate(ctx, dh, dS, grad_op), None)

    op.register_autograd(differentiate_op, setup_context=lambda ctx, inputs, output: keep(ctx, inputs[:-1], output[2]))
    forbid_double_backward(grad_op, "selective", backend)
    fold_batch(op, outputs=3)
    fold_batch(grad_op, outputs=6)

    class Eager(torch.autograd.Function):
        """The same without the operator's cost."""

        @staticmethod
        def forward(ctx, *inputs):
            h, S, checkpoints = forward(*inputs, True)
            keep(ctx, inputs, checkpoints)
            return h, S

        @staticmethod
        def backward(ctx, dh, dS):
            return differentiate(ctx, dh, dS, grad_op if torch.is_grad_enabled() else backward_kernel)   # grad_op refuses a second time

    def run(*args):
        forbid_forward_mode("selective", backend, *args[:6])
        save = needs_grad(*args[:6])
        if not is_plain(*args):
            return op(*args, save)[:2]
        return Eager.apply(*args) if save else forward(*args, False)[:2]

    return run
