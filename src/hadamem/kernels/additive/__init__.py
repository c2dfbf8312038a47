"""Matrix memories with one decay for all cells: M_t = f_t M_{t-1} + i_t v_t ⊗ k_t, h_t = M_t q_t.

Hebbian memory, additive fast weights and linear attention (no gates), mLSTM (both).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import _backends
from .._checks import check_reset, check_tensor, compute_dtype, without_autocast
from .reference import additive_reference
from .scan import LIMIT, additive_scan


class Additive(NamedTuple):
    """What `additive` gives. With gates, h, z, M and n are in units of exp(m_t): the memory itself is exp(m) M."""

    h: Tensor             # [B, T, V]  M_t q_t
    M: Tensor             # [B, V, K]  after the last step
    m: Tensor | None      # [B, T]  the units, with gates
    z: Tensor | None      # [B, T]  n_t · q_t, with `normalizer`
    n: Tensor | None      # [B, K]  after the last step, with `normalizer`


def additive(
    v: Tensor,
    k: Tensor,
    q: Tensor,
    log_decay: Tensor | None = None,
    log_gain: Tensor | None = None,
    M0: Tensor | None = None,
    n0: Tensor | None = None,
    m0: Tensor | None = None,
    reset: Tensor | None = None,
    normalizer: bool = False,
    backend: str = "auto",
) -> Additive:
    """Run M_t = f_t M_{t-1} + i_t v_t ⊗ k_t and read h_t = M_t q_t: v [B, T, V], k and q [B, T, K] -> h [B, T, V] and M_T [B, V, K].

    Without gates f = i = 1. With log_decay [B, T] (f = exp of it; above 0 it is taken as 0) or log_gain [B, T] (i = exp of it, of any
    size), all is kept in units of exp(m_t), m_t = max(log_decay_t + m_{t-1}, log_gain_t), so that neither gate overflows; true values are
    exp(m_t) h_t and exp(m_T) M_T, and `m` holds all m_t. M0 [B, V, K] is the memory before the first step in units of exp(m0), m0 [B]
    (None: zeros). Log gates and m0 beyond ±10^4 are taken as ±10^4.
    With `normalizer`, n_t = f_t n_{t-1} + i_t k_t is kept as well (n0 [B, K]) and z_t = n_t · q_t returned, in the same units.
    Where `reset[b, t]`, memory, n and m of row b start again from zero before step t.

    All arguments but m0 are differentiable; m is a choice of units and has no gradient. Half precision is computed in float32; h and z come
    back in q's dtype. Backends: reference (a loop), scan (chunks of matrix products).
    """
    if not isinstance(v, Tensor) or v.ndim != 3:
        raise ValueError(f"v must be a tensor of shape [B, T, V], got {list(v.shape) if isinstance(v, Tensor) else type(v).__name__}")
    B, T, V = v.shape
    K = k.shape[-1] if isinstance(k, Tensor) and k.ndim else 0
    check_tensor("v", v, (B, T, V), v, "v")
    check_tensor("k", k, (B, T, K), v, "v")
    check_tensor("q", q, (B, T, K), v, "v")
    if min(B, T, V, K) < 1:
        raise ValueError(f"v {list(v.shape)} and k {list(k.shape)} must not have empty axes")
    gated = log_decay is not None or log_gain is not None
    given = {"log_decay": (log_decay, (B, T)), "log_gain": (log_gain, (B, T)), "M0": (M0, (B, V, K)), "n0": (n0, (B, K)), "m0": (m0, (B,))}
    for name, (x, shape) in given.items():
        if x is not None:
            check_tensor(name, x, shape, v, "v")
    if not isinstance(normalizer, bool):
        raise TypeError(f"normalizer must be True or False, got {normalizer!r}; pass a bool")
    if n0 is not None and not normalizer:
        raise ValueError("n0 was given without normalizer=True; pass both, or neither")
    if m0 is not None and not gated:
        raise ValueError("m0 was given without log_decay or log_gain; without gates memories have no other units")
    check_reset(reset, B, T, v.device)
    _backends.check_name("additive", backend, v.device.type)

    dtype = compute_dtype(v, k, q, log_decay, log_gain, M0, n0, m0)

    def ready(x: Tensor | None, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=v.device) if x is None else x.to(dtype)

    decay = ready(log_decay, B, T).clamp(-LIMIT, 0.0) if gated else None
    gain = ready(log_gain, B, T).clamp(-LIMIT, LIMIT) if gated else None
    M0, n0, m0 = ready(M0, B, V, K), ready(n0, B, K) if normalizer else None, ready(m0, B).detach().clamp(-LIMIT, LIMIT) if gated else None
    with without_autocast(v.device.type):
        args = v.to(dtype), k.to(dtype), q.to(dtype), decay, gain, M0, n0, m0, reset
        h, z, m, M, n = _backends.run("additive", backend, v.device.type, BACKENDS, args, _no_probe)
    return Additive(h.to(q.dtype), M, m, None if z is None else z.to(q.dtype), n)


BACKENDS = _backends.register("additive", {"reference": additive_reference, "scan": additive_scan})


def _no_probe(backend: str, device_type: str) -> None:
    """Both backends are plain PyTorch: there is nothing that could fail to build."""
