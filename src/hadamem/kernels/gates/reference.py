"""The reference: SHM's gates in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def widths(V: int, K: int, calibrated: bool, shortcut: bool) -> list[int]:
    """How wide each part of the joint projection is: k, q, v, vc, shortcut, eta."""
    return [K, K, V, K if calibrated else 0, V if shortcut else 0, 1]


def gates_reference(
    P: Tensor, V: int, K: int, normalize: bool, calibrated: bool, shortcut: bool, softness: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """See `gates`."""
    parts = widths(V, K, calibrated, shortcut)
    k, q, v, vc, s, eta, _ = P.split([*parts, P.shape[-1] - sum(parts)], dim=-1)
    if normalize:
        k, q = sum_to_one(positive(k, softness)), sum_to_one(positive(q, softness))
    return k, q, torch.sigmoid(eta) * v, vc if calibrated else None, s if shortcut else None


def positive(x: Tensor, softness: float = 0.0) -> Tensor:
    """relu(x), or with a softness s > 0 the smooth x + s for x >= 0 and s exp(x / s) below, whose gradient is 0 nowhere."""
    if softness == 0:
        return torch.relu(x)
    return torch.relu(x) + softness * torch.exp(x.clamp(max=0) / softness)      # celu(x) + s would lose the digits of small numbers


def sum_to_one(x: Tensor) -> Tensor:
    """x >= 0 divided by its sum; the small number keeps a vector of zeros at zero."""
    return x / (1e-5 + x.sum(-1, keepdim=True))
