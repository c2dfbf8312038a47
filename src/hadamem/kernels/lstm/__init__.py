"""An LSTM's recurrence over whole sequences, with resets inside: the input's part of the gates comes from one matrix product before it.

This file checks the arguments and picks a backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _backends
from .._checks import check_reset, check_tensor, compute_dtype, without_autocast
from .._probe import check, ramp
from .reference import lstm_reference


def lstm(gi: Tensor, W: Tensor, h0: Tensor | None = None, c0: Tensor | None = None, reset: Tensor | None = None,
         backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Run an LSTM: gi [B, T, 4H], W [4H, H] -> every h_t [B, T, H], the last c [B, H]. Gates as in `torch.nn.LSTM`: i, f, g, o.

    gi_t = W_ih x_t + b_ih + b_hh, W = W_hh. At every step, in this order: where `reset[b, t]`, h and c of row b are dropped; each gate is
    gi + W h; c = sigmoid(f) ⊙ c + sigmoid(i) ⊙ tanh(g), h = sigmoid(o) ⊙ tanh(c). h0 and c0 [B, H] are the state before the first step
    (None: zeros).

    The computation runs in the widest dtype of the inputs, at least float32, autocast or not; both results have gi's dtype. All arguments
    are differentiable; with backend "reference" twice. Backend "triton" takes float32.
    """
    if not isinstance(gi, Tensor) or gi.ndim != 3:
        raise ValueError(f"gi must be a tensor of shape [B, T, 4H], got {list(gi.shape) if isinstance(gi, Tensor) else type(gi).__name__}")
    if gi.numel() == 0 or gi.shape[-1] % 4:
        raise ValueError(f"gi {list(gi.shape)} must not have empty axes, and its last axis must hold four gates of H numbers each")
    B, T, H = gi.shape[0], gi.shape[1], gi.shape[2] // 4
    check_tensor("gi", gi, (B, T, 4 * H), gi, "gi")
    check_tensor("W", W, (4 * H, H), gi, "gi")
    for name, start in (("h0", h0), ("c0", c0)):
        if start is not None:
            check_tensor(name, start, (B, H), gi, "gi")
    check_reset(reset, B, T, gi.device)
    _backends.check_name("lstm", backend, gi.device.type)

    dtype = compute_dtype(gi, W, h0, c0)
    if dtype != torch.float32:
        if backend == "triton":
            raise ValueError(f"backend 'triton' of lstm takes float32, got {dtype}; use backend='reference'")
        backend = "reference" if backend == "auto" else backend
    with without_autocast(gi.device.type):
        inputs = (None if x is None else x.to(dtype) for x in (gi, W[None], h0, c0))
        h, c = _backends.run("lstm", backend, gi.device.type, BACKENDS, (*inputs, reset), _probe)
    return h.to(gi.dtype), c.to(gi.dtype)


def lstm_has_kernel(dtype: torch.dtype, device_type: str) -> bool:
    """Whether `lstm` with backend "auto" takes a kernel here, and not the loop."""
    return dtype == torch.float32 and _backends.works("lstm", "triton", device_type, _probe)


def _triton(*args):
    from .triton import lstm_triton

    return lstm_triton(*args)


BACKENDS = _backends.register("lstm", {"reference": lstm_reference, "triton": _triton})


def _probe(backend: str, device_type: str) -> None:
    gi, W = ramp(1, 3, 16, device=device_type), ramp(1, 16, 4, device=device_type)
    check(BACKENDS[backend], lstm_reference, (gi, W, None, None, None))
