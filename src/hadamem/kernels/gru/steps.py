"""A GRU of any size on a GPU, one launch per step. For `triton.py`, which has a single launch for all steps of a small one.

In a CUDA graph a launch costs two or three microseconds, and a library that starts several kernels per step, or cannot reset a state in
the middle of a sequence, takes longer.
"""

from __future__ import annotations

from torch import Tensor

from .._gates import grid, plan
from .step_kernels import backward_step, forward_step


def forward(gi: Tensor, W: Tensor, b: Tensor, start: Tensor | None, reset: Tensor | None, h: Tensor, saved: Tensor | None) -> None:
    """Fill h [B, T, H] and saved [B, T, 5H]. All tensors are contiguous; W [G, 3H, H], reset [B, T] of bytes."""
    B, T, H = h.shape
    rows = B // W.shape[0]
    tensors = (gi, W, b, h if start is None else start, h if reset is None else reset, h, h if saved is None else saved)
    launch, (first, later) = forward_step[grid(W.shape[0], rows, H)], plan(h)
    for t in range(T):
        launch(*tensors, t, T, rows, H=H, FIRST=t == 0, HAS_START=start is not None, HAS_RESET=reset is not None, SAVE=saved is not None,
               **(first if t == 0 else later))


def backward(W: Tensor, reset: Tensor | None, saved: Tensor, dh: Tensor, dgates: Tensor, dh0: Tensor) -> None:
    """Fill dgates [B, T, 4H] and dh0 [B, H]."""
    B, T, H = dh.shape
    rows = B // W.shape[0]
    tensors = (W, dh if reset is None else reset, saved, dh, dgates, dh0)
    launch, (first, later) = backward_step[grid(W.shape[0], rows, H)], plan(dh)
    for t in range(T - 1, -2, -1):
        launch(*tensors, t, T, rows, H=H, LAST=t == T - 1, FINAL=t == -1, HAS_RESET=reset is not None,
               **(first if t == T - 1 else later))
