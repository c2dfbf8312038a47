"""From one joint projection of the features to the vectors that SHM's recurrence takes, in one kernel where there is one.

Around a fast recurrence these few element-wise steps would cost a dozen launches, and as many passes over memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _backends
from .._probe import check, ramp
from .reference import gates_reference

Gates = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def gates(P: Tensor, V: int, K: int, normalize: bool, calibrated: bool, shortcut: bool, backend: str = "auto",
          softness: float = 0.0) -> Gates:
    """Cut P [B, T, width] into k, q [B, T, K], v [B, T, V] times sigmoid(eta), vc [B, T, K] or None, shortcut [B, T, V] or None.

    The last axis of P holds, one after the other: k, q, v, vc (if `calibrated`), the shortcut (if `shortcut`), eta (one number), and
    possibly padding, which is ignored (a width that is a multiple of 8 suits a GPU's matrix product).
    With `normalize`, k and q are passed through relu and divided by 1e-5 plus their sum; softness: see `reference.positive`.
    """
    args = (P, V, K, normalize, calibrated, shortcut, float(softness))
    if backend not in ("auto", "triton") or P.dtype != torch.float32 or not P.is_cuda:
        return gates_reference(*args)
    return _backends.run("gates", backend, P.device.type, BACKENDS, args, _probe)


def _triton(*args):
    from .triton import gates_triton

    return gates_triton(*args)


BACKENDS = _backends.register("gates", {"reference": gates_reference, "triton": _triton})


def _probe(backend: str, device_type: str) -> None:
    P = ramp(1, 2, 21, device=device_type)
    for softness in (0.0, 0.1):
        check(BACKENDS[backend], gates_reference, (P, 4, 4, True, True, True, softness), tolerance=1e-5)
