"""s_t = a_t ⊙ s_{t-1} + u_t as an associative scan in plain PyTorch: O(log T) depth, O(T) work, no division.

Two neighbouring steps are one step with the factor a_2 a_1 and the update a_2 u_1 + u_2. Joining neighbours halves the length; scanning
that gives every other state, and one step from each the states between. A factor that is the same at all steps stays one row: at each
level it is squared. A reset in the later of two steps cuts off the earlier one, by selection.
"""

from __future__ import annotations

import torch
from torch import Tensor


def diagonal_scan(a: Tensor, u: Tensor, s0: Tensor | None, reset: Tensor | None) -> Tensor:
    """u [B, T, *N]; a [B, T, *N], or [1, 1, *N] for all rows and steps; s0 [B, *N]; reset [B, T] -> every s_t [B, T, *N]."""
    if s0 is None and u.shape[1] == 1:
        s0 = torch.zeros_like(u[:, 0])     # a single step: keeps `a` in the graph, with gradient zero
    cut = None if reset is None else reset.reshape(*reset.shape, *[1] * (u.ndim - 2))
    if s0 is not None:
        first = times(a[:, :1], _kept(s0[:, None], cut, slice(0, 1))) + u[:, :1]
        u = torch.cat((first, u[:, 1:]), dim=1)
    return _scan(a, u, cut)


def _scan(a: Tensor, u: Tensor, cut: Tensor | None) -> Tensor:
    """Every state from a zero state before the first step."""
    T = u.shape[1]
    if T == 1:
        return u
    even, odd, later = slice(0, T - 1, 2), slice(1, T, 2), slice(2, T, 2)
    if a.shape[1] == 1:
        a_pairs, a_odd, a_later = a * a, a, a
    else:
        a_odd, a_later = a[:, odd], a[:, later]
        a_pairs = times(a_odd, _kept(a[:, even], cut, odd))   # masked first: inf and nan of a dropped episode stay out of the product
    u_pairs = times(a_odd, _kept(u[:, even], cut, odd)) + u[:, odd]
    states = _scan(a_pairs, u_pairs, None if cut is None else cut[:, even] | cut[:, odd])   # after the odd steps
    if T == 2:
        return torch.cat((u[:, :1], states), dim=1)
    between = times(a_later, _kept(states[:, :(T - 1) // 2], cut, later)) + u[:, later]
    return interleave(torch.cat((u[:, :1], between), dim=1), states)


def _kept(x: Tensor, cut: Tensor | None, steps: slice) -> Tensor:
    """What came before those steps, without what they drop."""
    return x if cut is None else torch.where(cut[:, steps], 0.0, x)


def times(P: Tensor, x: Tensor) -> Tensor:
    """P x, where a P that overflowed leaves zero at zero: step by step, 0 times any number of finite factors is 0, not nan."""
    return torch.where(P.isinf() & (x == 0), 0.0, P) * x


def interleave(even: Tensor, odd: Tensor) -> Tensor:
    """[a0, a2, ...], [a1, a3, ...] -> [a0, a1, a2, ...] along dim 1; `even` may be one longer."""
    n = odd.shape[1]
    pairs = torch.stack((even[:, :n], odd), dim=2).flatten(1, 2)
    return pairs if even.shape[1] == n else torch.cat((pairs, even[:, n:]), dim=1)
