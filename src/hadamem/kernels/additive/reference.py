"""The reference: a memory of outer products under one decay, as a plain loop, differentiable by autograd, in any floating dtype."""

from __future__ import annotations

import torch
from torch import Tensor

Outcome = tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None]   # h, z and m of every step; M and n after the last


def additive_reference(
    v: Tensor, k: Tensor, q: Tensor, log_decay: Tensor | None, log_gain: Tensor | None, M: Tensor, n: Tensor | None, m: Tensor | None,
    reset: Tensor | None,
) -> Outcome:
    """v [B, T, V]; k, q [B, T, K]; log_decay, log_gain [B, T], both or none; M [B, V, K]; n [B, K]; m [B] with the gates; reset [B, T]."""
    h, z, units = [], [], []
    for t in range(v.shape[1]):
        if reset is not None:
            M = torch.where(reset[:, t, None, None], 0.0, M)          # `where`, not `*`: 0 * inf is nan
            n = None if n is None else torch.where(reset[:, t, None], 0.0, n)
            m = None if m is None else torch.where(reset[:, t], 0.0, m)
        k_t = k[:, t]
        if log_decay is not None and log_gain is not None and m is not None:
            carried, new = log_decay[:, t] + m, log_gain[:, t]
            m = torch.maximum(carried, new).detach()                  # M and n are in units of exp(m): nothing that is read depends on it
            f, k_t = torch.exp(carried - m)[:, None], torch.exp(new - m)[:, None] * k_t
            units.append(m)
            M = M * f[..., None]
            n = None if n is None else n * f
        M = torch.addcmul(M, v[:, t, :, None], k_t[:, None, :])
        n = None if n is None else n + k_t
        h.append((M @ q[:, t, :, None])[..., 0])
        if n is not None:
            z.append((n * q[:, t]).sum(-1))
    return torch.stack(h, dim=1), torch.stack(z, dim=1) if z else None, torch.stack(units, dim=1) if units else None, M, n
