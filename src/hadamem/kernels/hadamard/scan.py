"""M_t = M_{t-1} ⊙ C_t + U_t as an associative scan in plain PyTorch: O(log T) depth, O(T) work, no division.

A stretch of steps is the map x -> P x + Q; two stretches compose to (P2 P1, P2 Q1 + Q2). With a clip the map is
x -> clamp(P x + Q, low, high), and since clamping commutes with a monotone map these compose too (for C >= 0, which
every bounded calibration has). A reset in the later stretch cuts off the earlier one, by selection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Stretch(NamedTuple):
    """What a run of consecutive steps does to the memory before it."""

    P: Tensor             # [B, T, V, K]
    Q: Tensor             # [B, T, V, K]
    cut: Tensor           # [B, T, 1, 1] bool: the run holds a reset, what came before is dropped
    low: Tensor | None    # [B, T, V, K], only with a clip
    high: Tensor | None


def hadamard_scan(
    C: Tensor, U: Tensor, M0: Tensor | None, reset: Tensor | None, *, clip: float | None = None
) -> Tensor:
    """C, U [B, T, V, K]; M0 [B, V, K]; reset [B, T] -> every M_t [B, T, V, K]. `clip` needs C >= 0."""
    if reset is None:
        reset = torch.zeros(U.shape[:2], dtype=torch.bool, device=U.device)
    low = high = None
    if clip is not None:
        low, high = torch.full_like(U, -clip), torch.full_like(U, clip)
    total = _inclusive_scan(Stretch(C, U, reset[:, :, None, None], low, high))
    M = total.Q
    if M0 is None and U.shape[1] == 1:
        M0 = torch.zeros_like(U[:, 0])     # a single step: keeps C in the graph, with gradient zero
    if M0 is not None:
        M = _times(total.P, torch.where(total.cut, 0.0, M0[:, None])) + M
    if total.low is not None:
        M = _limit(M, total.low, total.high)
    return M


def _compose(first: Stretch, second: Stretch) -> Stretch:
    """`first`, then `second`. Masking before the product keeps inf and nan of a dropped episode out of the result."""
    P = _times(second.P, torch.where(second.cut, 0.0, first.P))
    Q = _times(second.P, torch.where(second.cut, 0.0, first.Q)) + second.Q
    cut = first.cut | second.cut
    if second.low is None or second.high is None or first.low is None or first.high is None:
        return Stretch(P, Q, cut, None, None)
    huge = torch.finfo(Q.dtype).max / 4
    Q = Q.clamp(-huge, huge)     # beyond, low and high decide alone; an infinite Q could meet its opposite and make nan
    low = _times(second.P, torch.where(second.cut, 0.0, first.low)) + second.Q
    high = _times(second.P, torch.where(second.cut, 0.0, first.high)) + second.Q
    return Stretch(P, Q, cut, _limit(low, second.low, second.high), _limit(high, second.low, second.high))


def _times(P: Tensor, x: Tensor) -> Tensor:
    """P x, where a P that overflowed leaves zero at zero: step by step, 0 times any number of finite factors is 0, not nan."""
    return torch.where(P.isinf() & (x == 0), 0.0, P) * x


def _limit(x: Tensor, low: Tensor, high: Tensor | None) -> Tensor:
    """x between low and high. At a tie the gradient is x's alone, as clamp has it; minimum and maximum would share it out."""
    assert high is not None
    return torch.where(x > high, high, torch.where(x < low, low, x))


def _pick(x: Stretch, where: slice) -> Stretch:
    return Stretch(*(None if t is None else t[:, where] for t in x))   # type: ignore[arg-type]


def _join(x: Stretch, y: Stretch, how: Callable[[Tensor, Tensor], Tensor]) -> Stretch:
    return Stretch(*(None if a is None or b is None else how(a, b) for a, b in zip(x, y, strict=True)))   # type: ignore[arg-type]


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """[a0, a2, ...], [a1, a3, ...] -> [a0, a1, a2, ...] along dim 1; `even` may be one longer."""
    n = odd.shape[1]
    pairs = torch.stack((even[:, :n], odd), dim=2).flatten(1, 2)
    return pairs if even.shape[1] == n else torch.cat((pairs, even[:, n:]), dim=1)


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
    return _join(even, odd, _interleave)
