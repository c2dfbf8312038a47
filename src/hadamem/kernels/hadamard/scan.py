"""M_t = M_{t-1} ⊙ C_t + U_t as an associative scan in plain PyTorch: O(log T) depth, O(T) work, no division.

Without a clip it is the scan of `diagonal`. With one, a stretch of steps is the map x -> clamp(P x + Q, low, high), and since clamping
commutes with a monotone map two of them compose to a third (for C >= 0, which every bounded calibration has). A reset in the later
stretch cuts off the earlier one, by selection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .._steepness import limit_gradient
from ..diagonal.scan import diagonal_scan, interleave, times


class Stretch(NamedTuple):
    """What a run of consecutive steps does to the memory before it."""

    P: Tensor      # [B, T, V, K]
    Q: Tensor      # [B, T, V, K]
    cut: Tensor    # [B, T, 1, 1] bool: the run holds a reset, what came before is dropped
    low: Tensor    # [B, T, V, K]
    high: Tensor


def hadamard_scan(
    C: Tensor, U: Tensor, M0: Tensor | None, reset: Tensor | None, *, clip: float | None = None
) -> Tensor:
    """C, U [B, T, V, K]; M0 [B, V, K]; reset [B, T] -> every M_t [B, T, V, K]. `clip` needs C >= 0."""
    if clip is None:
        return diagonal_scan(C, U, M0, reset)
    if reset is None:
        reset = torch.zeros(U.shape[:2], dtype=torch.bool, device=U.device)
    total = _inclusive_scan(Stretch(C, limit_gradient(U), reset[:, :, None, None], torch.full_like(U, -clip), torch.full_like(U, clip)))
    if M0 is None and U.shape[1] == 1:
        M0 = torch.zeros_like(U[:, 0])     # a single step: keeps C in the graph, with gradient zero
    M = total.Q if M0 is None else times(total.P, torch.where(total.cut, 0.0, M0[:, None])) + total.Q
    return _limit(M, total.low, total.high)


def _compose(first: Stretch, second: Stretch) -> Stretch:
    """`first`, then `second`. Masking before the product keeps inf and nan of a dropped episode out of the result."""
    P, Q, low, high = (times(second.P, torch.where(second.cut, 0.0, x)) for x in (first.P, first.Q, first.low, first.high))
    huge = torch.finfo(Q.dtype).max / 4
    P = P.clamp(max=huge)                     # 0 * inf would be nan, in the backward
    Q = (Q + second.Q).clamp(-huge, huge)     # beyond, low and high decide alone; an infinite Q could meet its opposite and make nan
    Q = limit_gradient(Q)
    low, high = (_limit(x + second.Q, second.low, second.high) for x in (low, high))
    return Stretch(P, Q, first.cut | second.cut, low, high)


def _limit(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """x between low and high. At a tie the gradient is x's alone, as clamp has it; minimum and maximum would share it out."""
    return torch.where(x > high, high, torch.where(x < low, low, x))


def _pick(x: Stretch, where: slice) -> Stretch:
    return Stretch(*(t[:, where] for t in x))


def _join(x: Stretch, y: Stretch, how: Callable[[Tensor, Tensor], Tensor]) -> Stretch:
    return Stretch(*(how(a, b) for a, b in zip(x, y, strict=True)))


def _inclusive_scan(x: Stretch) -> Stretch:
    """Prefix compositions along dim 1: join neighbours, scan the half-length result, fill in the even places."""
    T = x.Q.shape[1]
    if T == 1:
        return x
    pairs = _compose(_pick(x, slice(0, T - 1, 2)), _pick(x, slice(1, T, 2)))
    odd = _inclusive_scan(pairs)
    if T > 2:
        before = _pick(odd, slice(0, (T - 1) // 2))
        later = _compose(before, _pick(x, slice(2, T, 2)))
        even = _join(x, later, lambda first, rest: torch.cat((first[:, :1], rest), dim=1))
    else:
        even = _pick(x, slice(0, 1))
    return _join(even, odd, interleave)
