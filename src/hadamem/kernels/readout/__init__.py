"""From the memory's read to the output: norm, shortcut and output layer, for a few rows without gradient in one kernel.

When acting, a GPU's library needs four launches for this, and its product of two small matrices with a bias alone 14 us (H200, 64 rows).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _backends
from .._ops import is_plain
from .._probe import check, ramp
from .reference import readout_reference

MOST_ROWS, MOST_WEIGHTS = 256, 1 << 16   # beyond, the library's matrix product wins


def readout(h: Tensor, shortcut: Tensor | None, bias: Tensor | None, weight: Tensor, out_bias: Tensor | None, eps: float | None,
            backend: str = "auto") -> Tensor:
    """h, shortcut [B, T, V], bias [V], weight [O, V], out_bias [O] -> y [B, T, O] = weight (norm(h) + bias + shortcut) + out_bias.

    The norm is a LayerNorm without affine part; eps None: none.
    """
    args = (h, shortcut, bias, weight, out_bias, eps)
    tensors = [x for x in args[:5] if isinstance(x, Tensor)]
    small = h.shape[0] * h.shape[1] <= MOST_ROWS and weight.numel() <= MOST_WEIGHTS
    acting = not torch.is_grad_enabled() and not torch.is_autocast_enabled(h.device.type)
    plain = is_plain(*tensors) and all(x.dtype == torch.float32 for x in tensors)
    if not (h.is_cuda and small and acting and plain and backend in ("auto", "triton")):
        return readout_reference(*args)
    return _backends.run("readout", backend, h.device.type, BACKENDS, args, _probe)


def _triton(*args):
    from .triton import readout_triton

    return readout_triton(*args)


BACKENDS = _backends.register("readout", {"reference": readout_reference, "triton": _triton})


def _probe(backend: str, device_type: str) -> None:
    h = ramp(2, 1, 5, device=device_type)
    args = (h, h * 2, h[0, 0], h[:, 0].repeat(2, 1), h[0, 0, :4], 1e-5)
    check(BACKENDS[backend], readout_reference, args, tolerance=1e-5, gradient=False)
