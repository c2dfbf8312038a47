"""The reference: a GRU as a plain loop, with PyTorch's gates, differentiable by autograd, in any floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def gru_reference(gi: Tensor, W: Tensor, b: Tensor, h0: Tensor | None, reset: Tensor | None) -> Tensor:
    """gi [B, T, 3H]; W [1, 3H, H]; b [1, 3H]; h0 [B, H]; reset [B, T] -> every h_t [B, T, H]."""
    h = gi.new_zeros(gi.shape[0], W.shape[-1]) if h0 is None else h0
    resets = [None] * gi.shape[1] if reset is None else reset.unbind(1)
    states = []
    for gi_t, reset_t in zip(gi.unbind(1), resets, strict=True):
        if reset_t is not None:
            h = torch.where(reset_t[:, None], 0.0, h)   # `where`, not `*`: 0 * inf is nan
        x_r, x_z, x_n = gi_t.chunk(3, dim=-1)
        a_r, a_z, a_n = F.linear(h, W[0], b[0]).chunk(3, dim=-1)
        r, z = torch.sigmoid(x_r + a_r), torch.sigmoid(x_z + a_z)
        n = torch.tanh(x_n + r * a_n)
        h = n + z * (h - n)                             # (1 - z) n + z h
        states.append(h)
    return torch.stack(states, dim=1)
