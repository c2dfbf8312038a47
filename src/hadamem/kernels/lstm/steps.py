"""An LSTM of any size on a GPU, one launch per step. For `triton.py`, which has a single launch for all steps of a small one.

Meant for CUDA graphs, where a launch costs two or three microseconds.
"""

from __future__ import annotations

from torch import Tensor

from .._gates import grid, plan
from .step_kernels import backward_step, forward_step


def forward(gi: Tensor, W: Tensor, h0: Tensor | None, c0: Tensor | None, reset: Tensor | None, h: Tensor, c: Tensor,
            saved: Tensor | None) -> None:
    """Fill h [B, T, H], c [B, H] and saved [B, T, 6H]. All tensors are contiguous; W [G, 4H, H], reset [B, T] of bytes."""
    B, T, H = h.shape
    rows = B // W.shape[0]
    tensors = (gi, W, h if h0 is None else h0, h if c0 is None else c0, h if reset is None else reset, h, c, h if saved is None else saved)
    launch, (first, later) = forward_step[grid(W.shape[0], rows, H)], plan(h)
    for t in range(T):
        launch(*tensors, t, T, rows, H=H, FIRST=t == 0, HAS_H=h0 is not None, HAS_C=c0 is not None, HAS_RESET=reset is not None,
               SAVE=saved is not None, **(first if t == 0 else later))


def backward(W: Tensor, reset: Tensor | None, saved: Tensor, dh: Tensor, dc: Tensor | None, dgates: Tensor, dh0: Tensor,
             dc0: Tensor) -> None:
    """Fill dgates [B, T, 4H], dh0 and dc0 [B, H]."""
    B, T, H = dh.shape
    rows = B // W.shape[0]
    tensors = (W, dh if reset is None else reset, saved, dh, dh if dc is None else dc, dgates, dh0, dc0)
    launch, (first, later) = backward_step[grid(W.shape[0], rows, H)], plan(dh)
    for t in range(T - 1, -2, -1):
        launch(*tensors, t, T, rows, H=H, LAST=t == T - 1, FINAL=t == -1, HAS_C=dc is not None, HAS_RESET=reset is not None,
               **(first if t == T - 1 else later))
