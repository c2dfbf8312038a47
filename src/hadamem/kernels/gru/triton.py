"""The `triton` backend of the GRU: the whole sequence in one launch, each way. `triton_kernels.py` has the kernels.

Saves the launches of a library that starts kernels at every step, and the reading of the weights: they stay in registers. A reset costs
nothing.
Loses in batches of several hundred rows, which run in waves, one row per processor, while a library multiplies all rows at once. Where the
weights do not fit into the registers of one processor (H > 128), there is one launch per step (`steps.py`).

The backward kernel gives the gradients of the gates; those of the weights are matrix products over all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._ops import as_bytes, fold_batch, forbid_double_backward, forbid_forward_mode, is_plain, needs_grad, on_device
from .._tiles import launch, padded, padded_size
from . import steps
from .triton_kernels import backward_kernel, forward_kernel

# By padded size: columns of a tile that lie side by side in the lanes (four in each), and warps. benchmarks/rnn_kernel.py compares others.
FORWARD = {16: (16, 1), 32: (16, 1), 64: (8, 4), 128: (8, 8)}
BACKWARD = {16: (16, 1), 32: (16, 1), 64: (16, 4), 128: (8, 8)}


def forward(gi: Tensor, W: Tensor, b: Tensor, h0: Tensor | None, reset: Tensor | None, save: bool) -> tuple[Tensor, Tensor]:
    """gi [B, T, 3H], W [G, 3H, H], b [G, 3H], h0 [B, H] -> h [B, T, H], saved [B, T, 5H] (see `forward_kernel`), empty without `save`."""
    B, T, H = gi.shape[0], gi.shape[1], W.shape[-1]
    h = gi.new_empty(B, T, H)
    saved = gi.new_empty((B, T, 5 * H) if save else (0,))
    if padded_size(H) not in FORWARD:
        with on_device(h):
            steps.forward(gi.contiguous(), W.contiguous(), b.contiguous(), None if h0 is None else h0.contiguous(),
                          None if reset is None else as_bytes(reset), h, saved if save else None)
        return h, saved
    start = h if h0 is None else h0.contiguous()
    tensors = (gi.contiguous(), padded(W.unflatten(1, (3, H))), b.contiguous(), start, _flags(reset, h), h, saved if save else h)
    launch(forward_kernel, FORWARD, W.shape[0], h, tensors, HAS_START=h0 is not None, HAS_RESET=reset is not None, SAVE=save)
    return h, saved


def backward(W: Tensor, reset: Tensor | None, saved: Tensor, dh: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W [G, 3H, H], dh [B, T, H] -> dgates [B, T, 4H] (see `backward_kernel`), dW, db, dh0 [B, H]."""
    G, H, saved = W.shape[0], dh.shape[-1], saved.contiguous()
    dgates, dh0 = walk_back(W, reset, saved, dh)
    steps = dgates.view(G, -1, 4 * H)
    parts = (steps[..., :2 * H], steps[..., 3 * H:])         # of W h + b: r and z, then n's, which r is multiplied with
    before = saved.view(G, -1, 5 * H)[..., 4 * H:]           # the h that a step started from
    dW = torch.cat([torch.bmm(part.mT, before) for part in parts], dim=1)
    db = torch.cat([part.sum(1) for part in parts], dim=1)
    return dgates, dW, db, dh0


def walk_back(W: Tensor, reset: Tensor | None, saved: Tensor, dh: Tensor) -> tuple[Tensor, Tensor]:
    """The part of `backward` that goes step by step: dgates, dh0."""
    B, T, H = dh.shape
    dgates, dh0 = dh.new_empty(B, T, 4 * H), dh.new_empty(B, H)
    if padded_size(H) not in BACKWARD:
        with on_device(dh):
            steps.backward(W.contiguous(), None if reset is None else as_bytes(reset), saved, dh.contiguous(), dgates, dh0)
        return dgates, dh0
    tensors = (padded(W.unflatten(1, (3, H)).mT), _flags(reset, dh), saved, dh.contiguous(), dgates, dh0)
    launch(backward_kernel, BACKWARD, W.shape[0], dh, tensors, HAS_RESET=reset is not None)
    return dgates, dh0


def _flags(reset: Tensor | None, like: Tensor) -> Tensor:
    return like if reset is None else as_bytes(reset)


_op = torch.library.custom_op("hadamem::gru_triton", forward, mutates_args=())
_grad_op = torch.library.custom_op("hadamem::gru_triton_backward", backward, mutates_args=())


@_op.register_fake
def _(gi, W, b, h0, reset, save):
    B, T, H = gi.shape[0], gi.shape[1], W.shape[-1]
    return gi.new_empty(B, T, H), gi.new_empty((B, T, 5 * H) if save else (0,))


@_grad_op.register_fake
def _(W, reset, saved, dh):
    B, T, H = dh.shape
    return dh.new_empty(B, T, 4 * H), W.new_empty(W.shape), W.new_empty(W.shape[:2]), dh.new_empty(B, H)


def _keep(ctx: Any, inputs: tuple[Any, ...], saved: Tensor) -> None:
    _, W, _, h0, reset = inputs
    ctx.set_materialize_grads(False)     # or `saved` would get a gradient of zeros
    ctx.has_start = h0 is not None
    ctx.save_for_backward(W, reset, saved)


def _differentiate(ctx: Any, dh: Tensor | None, run: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor | None, ...]:
    W, reset, saved = ctx.saved_tensors
    if dh is None:
        return None, None, None, None, None
    dgates, dW, db, dh0 = run(W, reset, saved, dh)
    return dgates[..., :3 * W.shape[-1]], dW, db, dh0 if ctx.has_start else None, None


def _differentiate_op(ctx: Any, dh: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if ctx.saved_tensors[-1].numel() == 0:
        raise RuntimeError("hadamem::gru_triton was run with save=False and keeps nothing for a backward pass")
    return (*_differentiate(ctx, dh, _grad_op), None)


_op.register_autograd(_differentiate_op, setup_context=lambda ctx, inputs, output: _keep(ctx, inputs[:-1], output[1]))
forbid_double_backward(_grad_op, "gru", "triton")
fold_batch(_op, outputs=2)
fold_batch(_grad_op, outputs=4)


class _Eager(torch.autograd.Function):
    """The same without the operator's cost."""

    @staticmethod
    def forward(ctx: Any, gi: Tensor, W: Tensor, b: Tensor, h0: Tensor | None, reset: Tensor | None) -> Tensor:
        h, saved = forward(gi, W, b, h0, reset, save=True)
        _keep(ctx, (gi, W, b, h0, reset), saved)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor | None) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, dh, _grad_op if torch.is_grad_enabled() else backward)   # _grad_op refuses a second time


def gru_triton(gi: Tensor, W: Tensor, b: Tensor, h0: Tensor | None, reset: Tensor | None) -> Tensor:
    """See `gru_reference`. W may be [G, 3H, H] and b [G, 3H], for B / G consecutive rows each: vmap folds its axis into the batch."""
    args = (gi, W, b, h0, reset)
    forbid_forward_mode("gru", "triton", *args[:4])
    save = needs_grad(*args[:4])
    if not is_plain(*args):
        return _op(*args, save)[0]
    return _Eager.apply(*args) if save else forward(*args, save=False)[0]
