"""From one joint projection of the features to the vectors that SHM's recurrence takes, in one kernel where there is one.

Around a fast recurrence these few element-wise steps would cost a dozen launches, and as many passes over memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _backends
from .reference import gates_reference

Gates = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def gates(P: Tensor, V: int, K: int, normalize: bool, calibrated: bool, shortcut: bool, backend: str = "auto") -> Gates:
    """Cut P [B, T, width] into k, q [B, T, K], v [B, T, V] times sigmoid(eta), vc [B, T, K] or None, shortcut [B, T, V] or None.

    The last axis of P holds, one after the other: k, q, v, vc (if `calibrated`), the shortcut (if `shortcut`), eta (one number), and
    perhaps more that is not looked at (a width that is a multiple of 8 suits a GPU's matrix product).
    With `normalize`, k and q are passed through relu and divided by 1e-5 plus their sum.
    """
    args = (P, V, K, normalize, calibrated, shortcut)
    if backend not in ("auto", "triton") or P.dtype != torch.float32 or not P.is_cuda:
        return gates_reference(*args)
    return _backends.run("gates", backend, P.device.type, _TABLE, args, _probe)


def _triton(*args):
    from .triton import gates_triton

    return gates_triton(*args)


_TABLE = {"reference": gates_reference, "triton": _triton}


def _probe(backend: str, device_type: str) -> None:
    P = torch.linspace(-1, 1, 2 * 21, device=device_type).reshape(1, 2, 21)
    options = (4, 4, True, True, True)
    for got, want in zip(_TABLE[backend](P.requires_grad_(), *options), gates_reference(P, *options), strict=True):
        assert got is not None
        assert want is not None
        torch.testing.assert_close(got, want)
        got.sum().backward(retain_graph=True)
