"""The operator around a fused SHM kernel: schema, shapes, autograd, vmap. `fused_cpu.py` and `triton.py` have the kernels.

The forward returns the memory at every `interval`-th step, in addition to its results; the backward starts each chunk from there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._ops import fold_batch, forbid_double_backward, forbid_forward_mode, is_plain, needs_grad

Run = Callable[..., tuple[Tensor, Tensor]]


def make_op(backend: str, forward: Callable[..., tuple[Tensor, Tensor, Tensor]],
            backward: Callable[..., tuple[Tensor, ...]], interval: Callable[[int], int], notes: bool = False) -> Run:
    """Register `hadamem::shm_<backend>` and its backward, and return a function with the contract of `shm_reference`.

    forward(theta, vc, v, k, q, M0, reset, clip, calibration, save) -> h [B, T, V], M_T [B, V, K], checkpoints [B, N, V, K]
        checkpoints[:, n] is the memory before step n * interval(T), before that step's reset; an empty tensor without `save`. With `notes`
        and a clip there is one more at the end, for other numbers that the backward needs (not all of it may be written to).
        All tensors in float32 or float64 (one dtype); theta and vc are None for calibration "none"; M0, reset, clip may be None.
    backward(theta, vc, v, k, q, M0, reset, clip, calibration, checkpoints, dh, dM_T) -> dtheta, dvc, dv, dk, dq, dM0
        with an empty tensor where the input was None.
    Both must return new tensors (no views of their inputs), bit for bit the same for the same inputs.
    """

    backward_kernel = backward

    def run_forward(theta: Tensor | None, vc: Tensor | None, v: Tensor, k: Tensor, q: Tensor, M0: Tensor | None, reset: Tensor | None,
                    clip: float | None, calibration: str, save: bool) -> tuple[Tensor, Tensor, Tensor]:
        return forward(theta, vc, v, k, q, M0, reset, clip, calibration, save)

    def run_backward(theta: Tensor | None, vc: Tensor | None, v: Tensor, k: Tensor, q: Tensor, M0: Tensor | None, reset: Tensor | None,
                     clip: float | None, calibration: str, checkpoints: Tensor, dh: Tensor, dM: Tensor,
                     ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        return backward(theta, vc, v, k, q, M0, reset, clip, calibration, checkpoints, dh, dM)   # type: ignore[return-value]

    op = torch.library.custom_op(f"hadamem::shm_{backend}", run_forward, mutates_args=())
    grad_op = torch.library.custom_op(f"hadamem::shm_{backend}_backward", run_backward, mutates_args=())

    @op.register_fake
    def _(theta, vc, v, k, q, M0, reset, clip, calibration, save):
        B, T, V = v.shape
        K, S = k.shape[-1], interval(T)
        checkpoints = v.new_empty(B, (T + S - 1) // S + (notes and clip is not None), V, K) if save else v.new_empty(0)
        return v.new_empty(B, T, V), v.new_empty(B, V, K), checkpoints

    @grad_op.register_fake
    def _(theta, vc, v, k, q, M0, reset, clip, calibration, checkpoints, dh, dM):
        return tuple(v.new_empty(0) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format)
                     for x in (theta, vc, v, k, q, M0))

    def keep(ctx, inputs, checkpoints):
        theta, vc, v, k, q, M0, reset, ctx.clip, ctx.calibration = inputs
        ctx.set_materialize_grads(False)     # or the checkpoints would get a gradient of zeros, as large as they are
        ctx.save_for_backward(theta, vc, v, k, q, M0, reset, checkpoints)

    def differentiate(ctx, dh, dM, run):
        theta, vc, v, k, q, M0, reset, checkpoints = ctx.saved_tensors
        dh = torch.zeros_like(v, memory_format=torch.contiguous_format) if dh is None else dh
        dM = v.new_zeros(v.shape[0], v.shape[-1], k.shape[-1]) if dM is None else dM
        grads = run(theta, vc, v, k, q, M0, reset, ctx.clip, ctx.calibration, checkpoints, dh, dM)
        inputs = (theta, vc, v, k, q, M0)
        return (*(None if x is None else g for x, g in zip(inputs, grads, strict=True)), None, None, None)

    def differentiate_op(ctx, dh, dM, _):
        if ctx.saved_tensors[-1].numel() == 0:
            raise RuntimeError(f"hadamem::shm_{backend} was run with save=False and keeps nothing for a backward pass")
        return (*differentiate(ctx, dh, dM, grad_op), None)

    op.register_autograd(differentiate_op, setup_context=lambda ctx, inputs, output: keep(ctx, inputs[:-1], output[2]))
    forbid_double_backward(grad_op, "shm", backend)
    fold_batch(op, outputs=3)
    fold_batch(grad_op, outputs=6)

    class Eager(torch.autograd.Function):
        """The same without the operator's cost."""

        @staticmethod
        def forward(ctx, *inputs):
            h, M, checkpoints = forward(*inputs, True)
            keep(ctx, inputs, checkpoints)
            return h, M

        @staticmethod
        def backward(ctx, dh, dM):
            return differentiate(ctx, dh, dM, grad_op if torch.is_grad_enabled() else backward_kernel)   # grad_op refuses a second time

    def run(theta, vc, v, k, q, M0, reset, clip, calibration):
        args = (theta, vc, v, k, q, M0, reset, clip, calibration)
        forbid_forward_mode("shm", backend, theta, vc, v, k, q, M0)
        save = needs_grad(theta, vc, v, k, q, M0)
        if not is_plain(theta, vc, v, k, q, M0, reset):
            return op(*args, save)[:2]
        return Eager.apply(*args) if save else forward(*args, False)[:2]

    return run
