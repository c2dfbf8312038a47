"""The reference: the selective recurrence as a plain loop, differentiable by autograd, in any floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def selective_reference(delta: Tensor, A: Tensor, v: Tensor, k: Tensor, q: Tensor, S0: Tensor | None,
                        reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """delta, v [B, T, D]; A [1, D, N]; k, q [B, T, N]; S0 [B, D, N]; reset [B, T] -> h [B, T, D], S_T [B, D, N]."""
    S = v.new_zeros(*v[:, 0].shape, k.shape[-1]) if S0 is None else S0
    resets = [None] * v.shape[1] if reset is None else reset.unbind(1)
    h = []
    for delta_t, v_t, k_t, q_t, reset_t in zip(*(x.unbind(1) for x in (delta, v, k, q)), resets, strict=True):
        if reset_t is not None:
            S = torch.where(reset_t[:, None, None], 0.0, S)                            # `where`, not `*`: 0 * inf is nan
        S = torch.exp(delta_t[..., None] * A) * S + v_t[..., None] * k_t[:, None, :]
        h.append((S * q_t[:, None, :]).sum(-1))
    return torch.stack(h, dim=1), S
