"""The reference: M_t = M_{t-1} ⊙ C_t + U_t as a plain loop, differentiable by autograd, in any floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def hadamard_reference(C: Tensor, U: Tensor, M0: Tensor | None, reset: Tensor | None) -> Tensor:
    """C, U [B, T, V, K]; M0 [B, V, K]; reset [B, T] -> every M_t [B, T, V, K]."""
    M = torch.zeros_like(U[:, 0]) if M0 is None else M0
    resets = [None] * U.shape[1] if reset is None else reset.unbind(1)
    states = []
    for C_t, U_t, reset_t in zip(C.unbind(1), U.unbind(1), resets, strict=True):
        if reset_t is not None:
            M = torch.where(reset_t[:, None, None], 0.0, M)   # `where`, not `*`: 0 * inf is nan
        M = M * C_t + U_t                                     # eq. 8
        states.append(M)
    return torch.stack(states, dim=1)
