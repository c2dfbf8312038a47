"""SHM's recurrence as an associative scan: O(log T) depth, any device, differentiable twice.

Saves the sequential loop over time. Loses memory: C, U and the scan's levels are [B, T, V, K] tensors. Use it where no
fused backend runs (MPS, a GPU without Triton) or where a second derivative is needed.
"""

from __future__ import annotations

from torch import Tensor

from ..hadamard.scan import hadamard_scan
from .forms import calibrate, logits


def shm_scan(
    theta: Tensor | None,
    vc: Tensor | None,
    v: Tensor,
    k: Tensor,
    q: Tensor,
    M0: Tensor | None,
    reset: Tensor | None,
    clip: float | None,
    calibration: str,
) -> tuple[Tensor, Tensor]:
    """Same contract as `shm_reference`."""
    U = v[..., :, None] * k[..., None, :]                                # [B, T, V, K]  eq. 9
    if theta is None or vc is None:
        C = U.new_ones(()).expand_as(U)
    else:
        C = calibrate(logits(theta, vc, calibration), calibration)       # [B, T, V, K]  eq. 14
    M = hadamard_scan(C, U, M0, reset, clip=clip)                        # [B, T, V, K]  eq. 8
    return (M * q[..., None, :]).sum(-1), M[:, -1].clone()               # eq. 2; clone: M_T must not keep all of M alive
