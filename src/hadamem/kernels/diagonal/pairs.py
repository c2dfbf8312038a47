"""The recurrence of complex numbers in real ones, for programs of torch.export: formats such as ONNX have no complex numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def diagonal_pairs(a: Tensor, u: Tensor, s0: Tensor, reset: Tensor | None) -> Tensor:
    """s_t = a ⊙ s_{t-1} + u_t as `diagonal`, with a [*N, 2] and s0 [B, *N, 2] as pairs of parts, u [B, T, *N] real -> [B, T, *N, 2]."""
    resets = [None] * u.shape[1] if reset is None else reset.unbind(1)
    s, found = s0, []
    for u_t, reset_t in zip(u.unbind(1), resets, strict=True):
        if reset_t is not None:
            s = torch.where(reset_t.reshape(-1, *[1] * (s.ndim - 1)), 0.0, s)
        real, imaginary = s[..., 0], s[..., 1]
        s = torch.stack((a[..., 0] * real - a[..., 1] * imaginary + u_t, a[..., 0] * imaginary + a[..., 1] * real), dim=-1)
        found.append(s)
    return torch.stack(found, dim=1)
