"""S6's selective recurrence from vectors: S_t = exp(delta_t ⊗ 1 ⊙ A) ⊙ S_{t-1} + v_t ⊗ k_t, h_t = S_t q_t.

No [B, T, D, N] tensor is ever formed by the `cpu` and `triton` backends. This file checks the arguments and picks one.
"""

from __future__ import annotations

from torch import Tensor

from .. import _backends
from .._checks import check_reset, check_tensor, compute_dtype, without_autocast
from .._probe import check, filled
from .reference import selective_reference
from .scan import selective_scan


def selective(delta: Tensor, A: Tensor, v: Tensor, k: Tensor, q: Tensor, S0: Tensor | None = None, reset: Tensor | None = None,
              backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Run S6's recurrence over whole sequences: delta, v [B, T, D], A [D, N], k and q [B, T, N] -> h [B, T, D], S_T [B, D, N].

    At every step, in this order: where `reset[b, t]`, the state of row b is dropped; each cell is multiplied by exp(delta_t[d] A[d, n]);
    v_t ⊗ k_t is added (v comes with its delta multiplied in); h_t = S_t q_t is read. S0 [B, D, N] is the state before the first step (None:
    zeros). A must not be positive where delta is large: the factor then overflows, or stays at 2^127 (float64: 2^1023) in backend "cpu".

    The computation runs in the widest dtype of the inputs, at least float32, autocast or not; h comes back in v's dtype, S_T stays wide.
    Everything is differentiable, S0 and S_T included; with backend "reference" or "scan" twice.
    """
    if not isinstance(v, Tensor) or v.ndim != 3:
        raise ValueError(f"v must be a tensor of shape [B, T, D], got {list(v.shape) if isinstance(v, Tensor) else type(v).__name__}")
    if not isinstance(k, Tensor) or k.ndim != 3:
        raise ValueError(f"k must be a tensor of shape [B, T, N], got {list(k.shape) if isinstance(k, Tensor) else type(k).__name__}")
    (B, T, D), N = v.shape, k.shape[-1]
    if min(B, T, D, N) < 1:
        raise ValueError(f"v {list(v.shape)} and k {list(k.shape)} must not have empty axes")
    check_tensor("v", v, (B, T, D), v, "v")
    check_tensor("delta", delta, (B, T, D), v, "v")
    check_tensor("k", k, (B, T, N), v, "v")
    check_tensor("q", q, (B, T, N), k, "k")
    check_tensor("A", A, (D, N), k, "k")
    if S0 is not None:
        check_tensor("S0", S0, (B, D, N), v, "v")
    check_reset(reset, B, T, v.device)
    _backends.check_name("selective", backend, v.device.type)

    dtype = compute_dtype(delta, A, v, k, q, S0)
    with without_autocast(v.device.type):
        inputs = (None if x is None else x.to(dtype) for x in (delta, A[None], v, k, q, S0))
        h, S = _backends.run("selective", backend, v.device.type, BACKENDS, (*inputs, reset), _probe)
    return h.to(v.dtype), S


def _cpu(*args):
    from .fused_cpu import selective_cpu

    return selective_cpu(*args)


def _triton(*args):
    from .triton import selective_triton

    return selective_triton(*args)


BACKENDS = _backends.register("selective", {"reference": selective_reference, "scan": selective_scan, "cpu": _cpu, "triton": _triton})


def _probe(backend: str, device_type: str) -> None:
    x = filled(1, 2, 4, device=device_type)
    check(BACKENDS[backend], selective_reference, (x, -2 * filled(1, 4, 4, device=device_type), x, x, x, None, None))
