"""The reference: s_t = a_t ⊙ s_{t-1} + u_t as a plain loop, differentiable by autograd, in any floating or complex dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def diagonal_reference(a: Tensor, u: Tensor, s0: Tensor | None, reset: Tensor | None) -> Tensor:
    """u [B, T, N]; a [B, T, N], or [1, 1, N] for all rows and steps; s0 [B, N]; reset [B, T] -> every s_t [B, T, N]."""
    s = torch.zeros_like(u[:, 0]) if s0 is None else s0
    resets = [None] * u.shape[1] if reset is None else reset.unbind(1)
    states = []
    for a_t, u_t, reset_t in zip(a.expand(-1, u.shape[1], -1).unbind(1), u.unbind(1), resets, strict=True):
        if reset_t is not None:
            s = torch.where(reset_t[:, None], 0.0, s)   # `where`, not `*`: 0 * inf is nan
        s = a_t * s + u_t
        states.append(s)
    return torch.stack(states, dim=1)
