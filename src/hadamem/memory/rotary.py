"""Rotary keys: pairs of entries of k and q are turned by angles that grow with every step.

The product of a query and a key then depends on how many steps lie between them, and on nothing else of the time: turning W_q by five
steps' angles asks for what was written five steps ago, at any time. (RoFormer's rotary position embedding, with other frequencies.)

The frequencies lie between 0 and half a turn per step, spread evenly by the golden ratio, with no common period. The fast ones tell
neighbouring steps apart; without them (RoFormer's fastest is 1 radian) recall of single steps is learned several times later. All are
whole numbers of turns per PERIOD steps: angles are exact however long the clock has run.

What multiplies the memory must treat both entries of a pair alike (`pair`), or the time itself would matter again.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PERIOD = 1 << 16                       # steps after which every angle returns
GOLDEN = (math.sqrt(5) - 1) / 2


def turns(size: int) -> Tensor:
    """The frequencies for keys of `size` entries: turns per PERIOD steps, int64 [size // 2]."""
    share = (torch.arange(1, size // 2 + 1, dtype=torch.float64) * GOLDEN) % 1
    return (share * (PERIOD // 2)).round().clamp(min=1).long()


def angles(clock: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [..., size // 2] of the angles at clock [...]."""
    place = clock[..., None] % PERIOD * frequencies % PERIOD
    angle = place.to(torch.promote_types(dtype, torch.float32)) * (2 * math.pi / PERIOD)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def pair(x: Tensor) -> Tensor:
    """x [..., size] with the second entry of every pair replaced by its first."""
    n = x.shape[-1] // 2
    return torch.cat([x[..., :n], x[..., :n], x[..., 2 * n:]], dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., size], entry i turned together with entry size // 2 + i; the last entry of an odd size stays."""
    n = cos.shape[-1]
    a, b = x[..., :n], x[..., n:2 * n]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., 2 * n:]], dim=-1)
