"""The selective recurrence as an associative scan: O(log T) depth, any device, differentiable twice.

Saves the sequential loop over time. Loses memory: the factors, the updates and the scan's levels are [B, T, D, N] tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..diagonal.scan import diagonal_scan


def selective_scan(delta: Tensor, A: Tensor, v: Tensor, k: Tensor, q: Tensor, S0: Tensor | None,
                   reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Same contract as `selective_reference`."""
    S = diagonal_scan(torch.exp(delta[..., None] * A), v[..., None] * k[:, :, None, :], S0, reset)   # [B, T, D, N]
    return (S * q[:, :, None, :]).sum(-1), S[:, -1].clone()    # clone: S_T must not keep all of S alive
