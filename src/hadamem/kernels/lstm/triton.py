"""The `triton` backend of the LSTM: the whole sequence in one launch, each way. `triton_kernels.py` has the kernels.

For sequences with resets inside, which a library cannot run in one call. The weights stay in registers. Where they do not fit into those
of one processor (H > 64), there is one launch per step (`steps.py`). benchmarks/rnn_steps.py compares both with cuDNN, which is taken
where there are no resets.

The backward kernel gives the gradients of the gates; those of the weights are one matrix product over all steps.
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
FORWARD = {16: (16, 1), 32: (16, 1), 64: (8, 8)}      # 64 with four warps: registers do not suffice
BACKWARD = {16: (16, 1), 32: (16, 1), 64: (16, 8)}


def forward(gi: Tensor, W: Tensor, h0: Tensor | None, c0: Tensor | None, reset: Tensor | None,
            save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """gi [B, T, 4H], W [G, 4H, H], h0 and c0 [B, H] -> h [B, T, H], the last c [B, H], saved [B, T, 6H], empty without `save`."""
    B, T, H = gi.shape[0], gi.shape[1], W.shape[-1]
    h, c = gi.new_empty(B, T, H), gi.new_empty(B, H)
    saved = gi.new_empty((B, T, 6 * H) if save else (0,))
    gi, reset = gi.contiguous(), None if reset is None else as_bytes(reset)
    h0, c0 = (None if x is None else x.contiguous() for x in (h0, c0))
    if padded_size(H) not in FORWARD:
        with on_device(h):
            steps.forward(gi, W.contiguous(), h0, c0, reset, h, c, saved if save else None)
        return h, c, saved
    tensors = (gi, padded(W.unflatten(1, (4, H))), *(h if x is None else x for x in (h0, c0, reset)), h, c, saved if save else h)
    launch(forward_kernel, FORWARD, W.shape[0], h, tensors, HAS_H=h0 is not None, HAS_C=c0 is not None, HAS_RESET=reset is not None,
           SAVE=save)
    return h, c, saved


def backward(W: Tensor, reset: Tensor | None, saved: Tensor, dh: Tensor, dc: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W [G, 4H, H], dh [B, T, H], dc [B, H] -> dgates [B, T, 4H], dW, dh0 and dc0 [B, H]."""
    G, H, saved = W.shape[0], dh.shape[-1], saved.contiguous()
    dgates, dh0, dc0 = walk_back(W, reset, saved, dh.contiguous(), dc)
    before = saved.view(G, -1, 6 * H)[..., 5 * H:]           # the h that a step started from
    return dgates, torch.bmm(dgates.view(G, -1, 4 * H).mT, before), dh0, dc0


def walk_back(W: Tensor, reset: Tensor | None, saved: Tensor, dh: Tensor, dc: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The part of `backward` that goes step by step: dgates, dh0, dc0."""
    B, T, H = dh.shape
    dgates, dh0, dc0 = dh.new_empty(B, T, 4 * H), dh.new_empty(B, H), dh.new_empty(B, H)
    reset, dc = None if reset is None else as_bytes(reset), None if dc is None else dc.contiguous()
    if padded_size(H) not in BACKWARD:
        with on_device(dh):
            steps.backward(W.contiguous(), reset, saved, dh, dc, dgates, dh0, dc0)
        return dgates, dh0, dc0
    tensors = (padded(W.unflatten(1, (4, H)).mT), dh if reset is None else reset, saved, dh, dh if dc is None else dc, dgates, dh0, dc0)
    launch(backward_kernel, BACKWARD, W.shape[0], dh, tensors, HAS_C=dc is not None, HAS_RESET=reset is not None)
    return dgates, dh0, dc0


_op = torch.library.custom_op("hadamem::lstm_triton", forward, mutates_args=())
_grad_op = torch.library.custom_op("hadamem::lstm_triton_backward", backward, mutates_args=())


@_op.register_fake
def _(gi, W, h0, c0, reset, save):
    B, T, H = gi.shape[0], gi.shape[1], W.shape[-1]
    return gi.new_empty(B, T, H), gi.new_empty(B, H), gi.new_empty((B, T, 6 * H) if save else (0,))


@_grad_op.register_fake
def _(W, reset, saved, dh, dc):
    B, T, H = dh.shape
    return dh.new_empty(B, T, 4 * H), W.new_empty(W.shape), dh.new_empty(B, H), dh.new_empty(B, H)


def _keep(ctx: Any, inputs: tuple[Any, ...], saved: Tensor) -> None:
    _, W, h0, c0, reset = inputs
    ctx.set_materialize_grads(False)     # or `saved` would get a gradient of zeros
    ctx.given = h0 is not None, c0 is not None
    ctx.save_for_backward(W, reset, saved)


def _differentiate(ctx: Any, dh: Tensor | None, dc: Tensor | None, run: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor | None, ...]:
    W, reset, saved = ctx.saved_tensors
    if dh is None and dc is None:
        return None, None, None, None, None
    if dh is None:
        dh = saved.new_zeros(*saved.shape[:2], W.shape[-1])
    dgates, dW, dh0, dc0 = run(W, reset, saved, dh, dc)
    return dgates, dW, dh0 if ctx.given[0] else None, dc0 if ctx.given[1] else None, None


def _differentiate_op(ctx: Any, dh: Tensor | None, dc: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if ctx.saved_tensors[-1].numel() == 0:
        raise RuntimeError("hadamem::lstm_triton was run with save=False and keeps nothing for a backward pass")
    return (*_differentiate(ctx, dh, dc, _grad_op), None)


_op.register_autograd(_differentiate_op, setup_context=lambda ctx, inputs, output: _keep(ctx, inputs[:-1], output[2]))
forbid_double_backward(_grad_op, "lstm", "triton")
fold_batch(_op, outputs=3)
fold_batch(_grad_op, outputs=4)


class _Eager(torch.autograd.Function):
    """The same without the operator's cost."""

    @staticmethod
    def forward(ctx: Any, gi: Tensor, W: Tensor, h0: Tensor | None, c0: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        h, c, saved = forward(gi, W, h0, c0, reset, save=True)
        _keep(ctx, (gi, W, h0, c0, reset), saved)
        return h, c

    @staticmethod
    def backward(ctx: Any, dh: Tensor | None, dc: Tensor | None) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, dh, dc, _grad_op if torch.is_grad_enabled() else backward)   # _grad_op refuses a second time


def lstm_triton(gi: Tensor, W: Tensor, h0: Tensor | None, c0: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `lstm_reference`. W may be [G, 4H, H], for B / G consecutive rows each: vmap folds its axis into the batch."""
    args = (gi, W, h0, c0, reset)
    forbid_forward_mode("lstm", "triton", *args[:4])
    save = needs_grad(*args[:4])
    if not is_plain(*args):
        return _op(*args, save)[:2]
    return _Eager.apply(*args) if save else forward(*args, save=False)[:2]
