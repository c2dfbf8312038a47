"""What SHM does in one step, for people who look inside it: the calibration and the update as matrices, and what was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernels.shm.forms import calibrate, logits
from ..states import State
from .calibration import Factors
from .inspection import Shown, outer, times, written
from .rotary import pair

if TYPE_CHECKING:
    from .shm import SHM


def look(memory: SHM, x: Tensor, state: State, reset: Tensor | None) -> dict[str, Shown]:
    """M, C, U, eta and h = M q after one step."""
    M = memory.step(x, state, reset)[1].M
    clock = memory._clocks(state.clock, 1, None if reset is None else reset[:, None])
    x = x[:, None] if memory.norm is None else memory.norm(x[:, None])
    k, q, v, vc, _, _, turning = memory._project(x)
    C = memory._calibrate(x, clock, None, vc)
    if isinstance(C, Factors):
        C = calibrate(logits(C.theta, C.vc, C.form), C.form)
    C = torch.ones_like(M) if C is None else paired(memory, C[:, 0].detach())
    U, h = updates(memory, v, k, clock, turning)[:, 0], times(M, q[:, 0])
    if turning is not None:
        n = memory.memory_size - memory.memory_size // 2
        h = torch.cat([h[:, :n], times(M[:, n:], memory._turn(turning[1], clock)[:, 0])], 1)
    return {
        "M": written(M),
        "C": Shown(C, "factor", "the calibration: what the old memory was multiplied with"),
        "U": Shown(U, "update", "the update eta v ⊗ k: what was added"),
        "eta": Shown(torch.sigmoid(memory.eta(x))[:, 0, 0], "gate", "how strongly the step was written"),
        "h": Shown(h, "read", "what was read: M q"),
    }


def paired(memory: SHM, C: Tensor) -> Tensor:
    """C [..., V, K] as it is applied: alike for both entries of a pair in the rotary rows."""
    if not memory.rotary:
        return C
    n = memory.memory_size - memory.memory_size // 2
    return torch.cat([C[..., :n, :], pair(C[..., n:, :])], -2)


def updates(memory: SHM, v: Tensor, k: Tensor, clock: Tensor, turning: tuple[Tensor, Tensor] | None) -> Tensor:
    """U [B, T, V, K] (eq. 9)."""
    if turning is None:
        return outer(v, k)
    n = memory.memory_size - memory.memory_size // 2
    return torch.cat([outer(v[..., :n], k), outer(v[..., n:], memory._turn(turning[0].to(k.dtype), clock))], -2)
