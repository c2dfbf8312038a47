"""One step of a matrix memory, as acting takes it: few passes over M, each in the fastest form PyTorch has for it."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _recycle
from ._ops import undisturbed


def begin(M: Tensor, reset: Tensor | None, *others: Tensor | None) -> tuple[Tensor, bool]:
    """M [B, V, K] without the rows where reset [B], and whether it is a copy that may be written to in place.

    It is a copy on a CPU where nothing is differentiated (`others` are the step's other inputs). A selection by bits is exact, as
    `where` is, and six times as fast.
    """
    own = M.device.type == "cpu" and M.dtype == torch.float32 and undisturbed() and not (
        torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (M, *others)))
    if own:
        mine = _recycle.empty(*M.shape)
        if reset is None:
            return mine.copy_(M), True
        torch.bitwise_and(M.view(torch.int32), (reset.to(torch.int32) - 1)[:, None, None], out=mine.view(torch.int32))
        return mine, True
    return M if reset is None else torch.where(reset[:, None, None], 0.0, M), False


def scale(M: Tensor, f: Tensor, own: bool) -> Tensor:
    """f M: f [B]."""
    return M.mul_(f[:, None, None]) if own else M * f[:, None, None]


def write(M: Tensor, v: Tensor, k: Tensor, own: bool) -> Tensor:
    """M + v ⊗ k: v [B, V], k [B, K]."""
    return M.addcmul_(v[:, :, None], k[:, None, :]) if own else torch.addcmul(M, v[:, :, None], k[:, None, :])


def read(M: Tensor, q: Tensor) -> Tensor:
    """M q [B, V]: q [B, K]. As a row from the left, which the matrix product is eight times faster for on a CPU."""
    return torch.bmm(q[:, None, :], M.mT)[:, 0]
