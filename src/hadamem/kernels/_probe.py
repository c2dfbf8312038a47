"""The test that a fused backend must pass before `backend="auto"` uses it: a tiny problem, forward and backward.

The expected numbers are computed in float64 on the CPU, and the inputs name their dtype and device. So the result does not depend on the
caller's settings: TF32 and `torch.set_float32_matmul_precision` change float32 products only, and are global to the process, as is the
default dtype. (Settings that belong to a thread, such as autocast, do not reach a probe, because it runs in another thread.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def filled(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of one half everywhere."""
    return torch.full(shape, 0.5, dtype=dtype, device=device)


def ramp(*shape: int, device: str) -> Tensor:
    """Numbers from -1 to 1."""
    return torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=torch.float32, device=device).reshape(shape)


def check(fused: Callable[..., Any], reference: Callable[..., Any], args: tuple[Any, ...], tolerance: float = 1e-4,
          gradient: bool = True) -> None:
    """Raise unless `fused(*args)` gives the numbers of `reference` and, with `gradient`, can be differentiated."""
    leaves = [x.clone().requires_grad_(gradient) if isinstance(x, Tensor) else x for x in args]
    got = _tensors(fused(*leaves))
    if gradient:
        torch.stack([x.abs().sum() for x in got]).sum().backward()
    want = _tensors(reference(*(_wide(x) if isinstance(x, Tensor) else x for x in args)))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(_wide(a.detach()), b, rtol=tolerance, atol=tolerance)


def _tensors(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [x for x in found if x is not None]


def _wide(x: Tensor) -> Tensor:
    return x.to("cpu", torch.promote_types(x.dtype, torch.float64))
