"""The reference: a step of Adam in plain PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from . import AdamState

BETAS = (0.9, 0.999)


@torch.no_grad()
def adam_reference(state: AdamState, grad: Tensor, rate: Tensor, loss: Tensor, blocked: Tensor, max_norm: float, eps: float) -> None:
    """See `adam`."""
    norm = torch.linalg.vector_norm(grad)
    skip = ~torch.isfinite(norm + loss) | (blocked != 0)
    grad = grad * (max_norm / (norm + 1e-6)).clamp(max=1.0)
    count = state.steps.double() + 1
    bias1, bias2 = (1 - beta ** count for beta in BETAS)
    exp_avg = torch.lerp(state.exp_avg, grad, 1 - BETAS[0])
    exp_avg_sq = BETAS[1] * state.exp_avg_sq + (1 - BETAS[1]) * grad * grad
    size = (rate / bias1).to(grad.dtype)
    param = state.param - size * exp_avg / (exp_avg_sq.sqrt() / bias2.sqrt().to(grad.dtype) + eps)
    new = (param, exp_avg, exp_avg_sq, count.to(state.steps.dtype))
    for mine, theirs in zip(state[:4], new, strict=True):
        mine.copy_(torch.where(skip, mine, theirs))
    state.norm.copy_(norm)
    state.skip.copy_(skip)
