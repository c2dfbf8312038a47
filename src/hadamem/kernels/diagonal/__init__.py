"""Vector recurrences whose cells do not mix: s_t = a_t ⊙ s_{t-1} + u_t, real or complex, with a factor per step or one for all.

FFM runs on it, and `hadamard` (whose memory is V K such cells). This file checks the arguments and picks a backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _backends
from .._checks import check_number_tensor, check_reset, compute_dtype, without_autocast
from .._probe import check, filled
from .reference import diagonal_reference
from .scan import diagonal_scan


def diagonal(a: Tensor, u: Tensor, s0: Tensor | None = None, reset: Tensor | None = None, backend: str = "auto") -> Tensor:
    """Run s_t = a_t ⊙ s_{t-1} + u_t: u [B, T, *N] and a of the same shape, or [*N] if it is the same at all steps -> all s_t [B, T, *N].

    Where `reset[b, t]`, the state of row b is dropped before step t. s0 [B, *N] is the state before the first step (None: zeros).
    Real or complex; the computation and the result have the widest dtype of the inputs, float32 or complex64 at the least. A constant `a`
    is never expanded. All arguments are differentiable (complex ones by PyTorch's convention); with backend "reference" or "scan" twice.
    """
    if not isinstance(u, Tensor) or u.ndim < 2:
        raise ValueError(f"u must be a tensor of shape [B, T, *N], got {list(u.shape) if isinstance(u, Tensor) else type(u).__name__}")
    if u.numel() == 0:
        raise ValueError(f"u {list(u.shape)} must not have empty axes")
    B, T, *N = u.shape
    check_number_tensor("u", u, (B, T, *N), u, "u")
    constant = isinstance(a, Tensor) and a.ndim == len(N)
    if isinstance(a, Tensor) and tuple(a.shape) != (tuple(N) if constant else (B, T, *N)):
        raise ValueError(f"a must have the shape of u {list(u.shape)}, or {N} if it is the same at all steps; got {list(a.shape)}")
    check_number_tensor("a", a, tuple(N) if constant else (B, T, *N), u, "u")
    if s0 is not None:
        check_number_tensor("s0", s0, (B, *N), u, "u")
    check_reset(reset, B, T, u.device)
    _backends.check_name("diagonal", backend, u.device.type)

    dtype = compute_dtype(a, u, s0)
    flat = (a.reshape(1, 1, -1) if constant else a.reshape(B, T, -1), u.reshape(B, T, -1), None if s0 is None else s0.reshape(B, -1))
    with without_autocast(u.device.type):
        inputs = (None if x is None else x.to(dtype) for x in flat)
        s = _backends.run("diagonal", backend, u.device.type, BACKENDS, (*inputs, reset), _probe)
    return s.reshape(u.shape)


def _cpu(*args):
    from .fused_cpu import diagonal_cpu

    return diagonal_cpu(*args)


def _triton(*args):
    from .triton import diagonal_triton

    return diagonal_triton(*args)


BACKENDS = _backends.register("diagonal", {"reference": diagonal_reference, "scan": diagonal_scan, "cpu": _cpu, "triton": _triton})


def _probe(backend: str, device_type: str) -> None:
    for dtype in (torch.float32, torch.complex64):
        x = filled(1, 2, 6, device=device_type, dtype=dtype)
        check(BACKENDS[backend], diagonal_reference, (x, x, None, None))
