"""The reference: SHM's recurrence as a plain loop over time, differentiable by autograd, in any floating dtype.

Every step forms C_t and U_t, so autograd keeps [B, T, V, K] tensors: slow and large, but obvious.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._steepness import limit_gradient
from .forms import calibrate, logits


def shm_reference(
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
    """theta, v [B, T, V]; vc, k, q [B, T, K]; M0 [B, V, K]; reset [B, T] -> h [B, T, V], M_T [B, V, K]. With a drift: theta [B, T, 2V]."""
    B, T, V = v.shape
    M = v.new_zeros(B, V, k.shape[-1]) if M0 is None else M0
    vectors = zip(*(x.unbind(1) for x in (v, k, q)), strict=True)   # unbind: indexing [:, t] makes the backward O(T^2)
    thetas = [None] * T if theta is None else theta.unbind(1)
    vcs = [None] * T if vc is None else vc.unbind(1)
    resets = [None] * T if reset is None else reset.unbind(1)
    h = []
    for (v_t, k_t, q_t), theta_t, vc_t, reset_t in zip(vectors, thetas, vcs, resets, strict=True):
        if reset_t is not None:
            M = torch.where(reset_t[:, None, None], 0.0, M)         # `where`, not `*`: 0 * inf is nan
        if theta_t is not None and vc_t is not None:
            M = M * calibrate(logits(theta_t, vc_t, calibration), calibration)   # eq. 14
        M = M + v_t[:, :, None] * k_t[:, None, :]                   # eqs. 8, 9
        if clip is not None:
            M = limit_gradient(M.clamp(-clip, clip))
        h.append((M * q_t[:, None, :]).sum(-1))                     # eq. 2
    return torch.stack(h, dim=1), M
