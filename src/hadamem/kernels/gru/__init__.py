"""A GRU's recurrence over whole sequences, with resets inside: the input's part of the gates comes from one matrix product before it.

This file checks the arguments and picks a backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _backends
from .._checks import check_reset, check_tensor, compute_dtype, without_autocast
from .._probe import check, ramp
from .reference import gru_reference

LARGEST = 128   # units in one launch: the recurrent weights of more do not fit into the registers of one processor


def gru(gi: Tensor, W: Tensor, b: Tensor, h0: Tensor | None = None, reset: Tensor | None = None, backend: str = "auto") -> Tensor:
    """Run a GRU: gi [B, T, 3H], W [3H, H], b [3H] -> every h_t [B, T, H]. Gates as in `torch.nn.GRU`: reset r, update z, new n.

    gi_t = W_ih x_t + b_ih, W = W_hh, b = b_hh. At every step, in this order: where `reset[b, t]`, h of row b is dropped; a = W h + b;
    r = sigmoid(gi_r + a_r), z = sigmoid(gi_z + a_z), n = tanh(gi_n + r ⊙ a_n), h = (1 - z) ⊙ n + z ⊙ h. h0 [B, H] is the state before the
    first step (None: zeros).

    The computation runs in the widest dtype of the inputs, at least float32, autocast or not; h comes back in gi's dtype. All arguments are
    differentiable; with backend "reference" twice. Backend "triton" takes float32. It is one launch up to H = 128, and one per step beyond.
    """
    if not isinstance(gi, Tensor) or gi.ndim != 3:
        raise ValueError(f"gi must be a tensor of shape [B, T, 3H], got {list(gi.shape) if isinstance(gi, Tensor) else type(gi).__name__}")
    if gi.numel() == 0 or gi.shape[-1] % 3:
        raise ValueError(f"gi {list(gi.shape)} must not have empty axes, and its last axis must hold three gates of H numbers each")
    B, T, H = gi.shape[0], gi.shape[1], gi.shape[2] // 3
    check_tensor("gi", gi, (B, T, 3 * H), gi, "gi")
    check_tensor("W", W, (3 * H, H), gi, "gi")
    check_tensor("b", b, (3 * H,), gi, "gi")
    if h0 is not None:
        check_tensor("h0", h0, (B, H), gi, "gi")
    check_reset(reset, B, T, gi.device)
    _backends.check_name("gru", backend, gi.device.type)

    dtype = compute_dtype(gi, W, b, h0)
    if dtype != torch.float32:
        if backend == "triton":
            raise ValueError(f"backend 'triton' of gru takes float32, got {dtype}; use backend='reference'")
        backend = "reference" if backend == "auto" else backend
    with without_autocast(gi.device.type):
        inputs = (None if x is None else x.to(dtype) for x in (gi, W[None], b[None], h0))
        h = _backends.run(_form(H), backend, gi.device.type, BACKENDS, (*inputs, reset), _probe if H <= LARGEST else _probe_steps)
    return h.to(gi.dtype)


def gru_has_kernel(H: int, dtype: torch.dtype, device_type: str) -> bool:
    """Whether `gru` with H units and backend "auto" takes a kernel here, and not the loop."""
    return dtype == torch.float32 and _backends.works(_form(H), "triton", device_type, _probe if H <= LARGEST else _probe_steps)


def gru_is_fused(H: int, dtype: torch.dtype, device_type: str) -> bool:
    """Whether that kernel is one launch for all steps. Otherwise, cuDNN is faster outside of CUDA graphs."""
    return H <= LARGEST and gru_has_kernel(H, dtype, device_type)


def _form(H: int) -> str:
    """Under which name the backends remember whether the kernel works: there are two."""
    return "gru" if H <= LARGEST else f"gru of more than {LARGEST} units"


def _triton(*args):
    from .triton import gru_triton

    return gru_triton(*args)


BACKENDS = _backends.register("gru", {"reference": gru_reference, "triton": _triton})


def _probe(backend: str, device_type: str, H: int = 4) -> None:
    gi, W, b = ramp(1, 3, 3 * H, device=device_type), ramp(1, 3 * H, H, device=device_type) / H, ramp(1, 3 * H, device=device_type)
    check(BACKENDS[backend], gru_reference, (gi, W, b, None, None))


def _probe_steps(backend: str, device_type: str) -> None:
    _probe(backend, device_type, LARGEST + 1)
