"""The Hadamard memory framework for any calibration and update: M_t = M_{t-1} ⊙ C_t + U_t, h_t = M_t q_t.

Use it for a C that is not built from two vectors; C and U are [B, T, V, K] tensors here, so memory grows with T V K. The cells of M do not
mix, so the fused backends are those of `diagonal`, on V K cells.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import _backends
from .._checks import check_reset, check_tensor, compute_dtype, without_autocast
from .._probe import check, filled
from ..diagonal import BACKENDS as CELLS
from .reference import hadamard_reference
from .scan import hadamard_scan


def hadamard(
    C: Tensor,
    U: Tensor,
    q: Tensor | None = None,
    M0: Tensor | None = None,
    reset: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor] | Tensor:
    """Run M_t = M_{t-1} ⊙ C_t + U_t (eq. 8): C, U [B, T, V, K] -> all M_t [B, T, V, K], or with q [B, T, K] the pair (h [B, T, V], M_T).

    Where `reset[b, t]`, the memory of row b is dropped before step t. M0 [B, V, K] is the memory before the first step (None: zeros).
    C may hold zeros, negative or large entries: nothing is divided. Inputs in half precision are computed in float32; h comes back in
    q's dtype, M in the wide one. All arguments are differentiable; with backend "reference" or "scan" twice.
    """
    if not isinstance(U, Tensor) or U.ndim != 4:
        raise ValueError(f"U must be a tensor of shape [B, T, V, K], got {list(U.shape) if isinstance(U, Tensor) else type(U).__name__}")
    B, T, V, K = U.shape
    if min(B, T, V, K) < 1:
        raise ValueError(f"U {list(U.shape)} must not have empty axes")
    check_tensor("U", U, (B, T, V, K), U, "U")
    check_tensor("C", C, (B, T, V, K), U, "U")
    if q is not None:
        check_tensor("q", q, (B, T, K), U, "U")
    if M0 is not None:
        check_tensor("M0", M0, (B, V, K), U, "U")
    check_reset(reset, B, T, U.device)
    _backends.check_name("hadamard", backend, U.device.type)

    dtype = compute_dtype(C, U, q, M0)
    C, U = C.to(dtype), U.to(dtype)
    M0 = None if M0 is None else M0.to(dtype)
    with without_autocast(U.device.type):
        M = _backends.run("hadamard", backend, U.device.type, BACKENDS, (C, U, M0, reset), _probe)
        if q is None:
            return M
        h = torch.matmul(M, q.to(dtype)[..., None])[..., 0]   # eq. 2
    return h.to(q.dtype), M[:, -1].clone()                    # clone: M_T must not keep all of M alive


def _on_cells(backend: str) -> Callable[..., Tensor]:
    def run(C, U, M0, reset):
        return CELLS[backend](C.flatten(2), U.flatten(2), None if M0 is None else M0.flatten(1), reset).view(U.shape)

    return run


BACKENDS = _backends.register("hadamard", {
    "reference": hadamard_reference, "scan": hadamard_scan, "cpu": _on_cells("cpu"), "triton": _on_cells("triton"),
})


def _probe(backend: str, device_type: str) -> None:
    x = filled(1, 2, 2, 3, device=device_type)
    check(BACKENDS[backend], hadamard_reference, (x, x, None, None))
