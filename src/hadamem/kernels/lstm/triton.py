"""The `triton` backend of the LSTM: one launch per step, each way. `triton_kernels.py` has the kernels.

For sequences with resets inside, which a library cannot run in one call, in CUDA graphs above all, where a launch costs two or three
microseconds. benchmarks/rnn_steps.py compares it with cuDNN, which is taken where there are no resets.

The backward kernel gives the gradients of the gates; those of the weights are one matrix product over all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._gates import grid, plan
from .._ops import as_bytes, fold_batch, forbid_double_backward, forbid_forward_mode, is_plain, needs_grad, on_device
from .triton_kernels import backward_step, forward_step


def forward(gi: Tensor, W: Tensor, h0: Tensor | None, c0: Tensor | None, reset: Tensor | None,
            save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """gi [B, T, 4H], W [G, 4H, H], h0 and c0 [B, H] -> h [B, T, H], the last c [B, H], saved [B, T, 6H], empty without `save`."""
    B, T, H = gi.shape[0], gi.shape[1], W.shape[-1]
    h, c, rows = gi.new_empty(B, T, H), gi.new_empty(B, H), B // W.shape[0]
    saved = gi.new_empty((B, T, 6 * H) if save else (0,))
    tensors = (gi.contiguous(), W.contiguous(), h if h0 is None else h0.contiguous(), h if c0 is None else c0.contiguous(),
               h if reset is None else as_bytes(reset), h, c, saved if save else h)
    launch, (first, later) = forward_step[grid(W.shape[0], rows, H)], plan(h)
    with on_device(gi):
        for t in range(T):
            launch(*tensors, t, T, rows, H=H, FIRST=t == 0, HAS_H=h0 is not None, HAS_C=c0 is not None, HAS_RESET=reset is not None,
                   SAVE=save, **(first if t == 0 else later))
    return h, c, saved


def backward(W: Tensor, reset: Tensor | None, saved: Tensor, dh: Tensor, dc: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W [G, 4H, H], dh [B, T, H], dc [B, H] -> dgates [B, T, 4H], dW, dh0 and dc0 [B, H]."""
    B, T, H = dh.shape
    G, rows, saved = W.shape[0], B // W.shape[0], saved.contiguous()
    dgates, dh0, carry = dh.new_empty(B, T, 4 * H), dh.new_empty(B, H), dh.new_empty(B, H)
    tensors = (W.contiguous(), dh if reset is None else as_bytes(reset), saved, dh.contiguous(), dh if dc is None else dc.contiguous(),
               dgates, dh0, carry)
    launch, (first, later) = backward_step[grid(G, rows, H)], plan(dh)
    with on_device(dh):
        for t in range(T - 1, -2, -1):
            launch(*tensors, t, T, rows, H=H, LAST=t == T - 1, FINAL=t == -1, HAS_C=dc is not None, HAS_RESET=reset is not None,
                   **(first if t == T - 1 else later))
    before = saved.view(G, -1, 6 * H)[..., 5 * H:]           # the h that a step started from
    return dgates, torch.bmm(dgates.view(G, -1, 4 * H).mT, before), dh0, carry


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
