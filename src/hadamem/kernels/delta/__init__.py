"""The delta rule: M_t = M_{t-1} + beta_t (v_t - M_{t-1} k_t) ⊗ k_t, h_t = M_t q_t. A write replaces what the key held before."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _backends
from .._checks import check_reset, check_tensor, compute_dtype, without_autocast
from .reference import delta_reference
from .scan import delta_scan


def delta(v: Tensor, k: Tensor, q: Tensor, beta: Tensor, M0: Tensor | None = None, reset: Tensor | None = None,
          backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Run the delta rule: v [B, T, V], k and q [B, T, K], beta [B, T] -> h [B, T, V] and M_T [B, V, K].

    M0 [B, V, K] is the memory before the first step (None: zeros). Where `reset[b, t]`, the memory of row b is dropped before step t.
    It is stable while beta_t |k_t|² < 2, which the caller sees to. All arguments are differentiable. Half precision is computed in
    float32; h comes back in q's dtype. Backends: reference (a loop), scan (chunks of matrix products).
    """
    if not isinstance(v, Tensor) or v.ndim != 3:
        raise ValueError(f"v must be a tensor of shape [B, T, V], got {list(v.shape) if isinstance(v, Tensor) else type(v).__name__}")
    B, T, V = v.shape
    K = k.shape[-1] if isinstance(k, Tensor) and k.ndim else 0
    check_tensor("v", v, (B, T, V), v, "v")
    check_tensor("k", k, (B, T, K), v, "v")
    check_tensor("q", q, (B, T, K), v, "v")
    check_tensor("beta", beta, (B, T), v, "v")
    if min(B, T, V, K) < 1:
        raise ValueError(f"v {list(v.shape)} and k {list(k.shape)} must not have empty axes")
    if M0 is not None:
        check_tensor("M0", M0, (B, V, K), v, "v")
    check_reset(reset, B, T, v.device)
    _backends.check_name("delta", backend, v.device.type)

    dtype = compute_dtype(v, k, q, beta, M0)
    M0 = torch.zeros(B, V, K, dtype=dtype, device=v.device) if M0 is None else M0.to(dtype)
    with without_autocast(v.device.type):
        args = v.to(dtype), k.to(dtype), q.to(dtype), beta.to(dtype), M0, reset
        h, M = _backends.run("delta", backend, v.device.type, BACKENDS, args, _no_probe)
    return h.to(q.dtype), M


BACKENDS = _backends.register("delta", {"reference": delta_reference, "scan": delta_scan})


def _no_probe(backend: str, device_type: str) -> None:
    """Both backends are plain PyTorch: there is nothing that could fail to build."""
