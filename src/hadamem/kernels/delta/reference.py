"""The reference: the delta rule as a plain loop, differentiable by autograd, in any floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def delta_reference(v: Tensor, k: Tensor, q: Tensor, beta: Tensor, M: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """v [B, T, V]; k, q [B, T, K]; beta [B, T]; M [B, V, K]; reset [B, T] -> h [B, T, V] and M [B, V, K] after the last step."""
    h = []
    for t in range(v.shape[1]):
        if reset is not None:
            M = torch.where(reset[:, t, None, None], 0.0, M)                             # `where`, not `*`: 0 * inf is nan
        k_t = k[:, t, :, None]
        u = beta[:, t, None, None] * (v[:, t, :, None] - M @ k_t)                        # [B, V, 1] what is written for this key
        M = torch.addcmul(M, u, k_t.mT)
        h.append((M @ q[:, t, :, None])[..., 0])
    return torch.stack(h, dim=1), M
