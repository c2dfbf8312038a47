"""The reference: an LSTM as a plain loop, with PyTorch's gates, differentiable by autograd, in any floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def lstm_reference(gi: Tensor, W: Tensor, h0: Tensor | None, c0: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """gi [B, T, 4H]; W [1, 4H, H]; h0, c0 [B, H]; reset [B, T] -> every h_t [B, T, H], the last c [B, H]."""
    nothing = gi.new_zeros(gi.shape[0], W.shape[-1])
    h, c = (nothing if s is None else s for s in (h0, c0))
    resets = [None] * gi.shape[1] if reset is None else reset.unbind(1)
    states = []
    for gi_t, reset_t in zip(gi.unbind(1), resets, strict=True):
        if reset_t is not None:
            h, c = (torch.where(reset_t[:, None], 0.0, s) for s in (h, c))   # `where`, not `*`: 0 * inf is nan
        i, f, g, o = (gi_t + h @ W[0].mT).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states, dim=1), c
