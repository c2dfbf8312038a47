"""One step of Adam on a flat vector of parameters: norm of the gradient, clipping, a check for what is not finite, and the update.

PyTorch's fused optimiser and `clip_grad_norm_` need about 15 launches for this, and took 140 us of SAC's update on an H200. Here it takes
two launches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import _backends
from .reference import adam_reference


class AdamState(NamedTuple):
    """Everything that a step changes, in place."""

    param: Tensor         # [N]
    exp_avg: Tensor       # [N], the running mean of the gradient
    exp_avg_sq: Tensor    # [N], and of its square
    steps: Tensor         # [], steps so far
    norm: Tensor          # [], norm of the latest gradient, before clipping
    skip: Tensor          # [], 1 if the latest step was skipped

    @classmethod
    def of(cls, param: Tensor) -> AdamState:
        """The state before the first step."""
        zero = torch.zeros((), dtype=param.dtype, device=param.device)
        return cls(param, torch.zeros_like(param), torch.zeros_like(param), zero, zero.clone(), zero.clone())


def adam(state: AdamState, grad: Tensor, rate: Tensor, loss: Tensor, blocked: Tensor, max_norm: float, eps: float,
         backend: str = "auto") -> None:
    """A step with the gradient [N], clipped to the norm `max_norm` (which may be inf).

    It is skipped if the gradient's norm or `loss` [] are not finite, or if `blocked` [] is not 0. rate []: the learning rate.
    """
    _backends.run("adam", backend, grad.device.type, BACKENDS, (state, grad, rate, loss, blocked, max_norm, eps), _probe)


def usable(device: torch.device) -> bool:
    """Whether the fused kernel works on that device."""
    return device.type == "cuda" and _backends.works("adam", "triton", device.type, _probe)


def _triton(*args):
    from .triton import adam_triton

    return adam_triton(*args)


BACKENDS = _backends.register("adam", {"reference": adam_reference, "triton": _triton})


def _probe(backend: str, device_type: str) -> None:
    """One step of both on a few numbers."""
    grad = torch.linspace(-1.0, 2.0, 1500, device=device_type)
    zero = torch.zeros((), device=device_type)
    states = [AdamState.of(grad.sin()) for _ in range(2)]
    for name, state in zip((backend, "reference"), states, strict=True):
        BACKENDS[name](state, grad, zero + 1e-3, zero, zero, 0.5, 1e-8)
    for mine, theirs in zip(*states, strict=True):
        if not torch.allclose(mine.cpu(), theirs.cpu(), rtol=1e-4, atol=1e-6):
            raise RuntimeError(f"backend {backend!r} of adam computes something else than the reference")
