"""Sequences cut into chunks for recurrences that are matrix products inside a chunk: the cut, who sees whom, and what is not finite.

In a matrix product every step of a chunk is combined with every other, and 0 * inf is nan. So numbers that are not finite are removed
before the product (`finite`), and nan is put back afterwards at those steps that had seen them (`seen`). No step depends on the future, on
another episode or on the memory before its reset, in values or in gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64   # steps; the work inside a chunk grows with it, the number of states between chunks shrinks


class Chunks(NamedTuple):
    """How T steps are divided into N chunks of C, and which of them belong to the same episode."""

    N: int
    C: int
    sees: Tensor            # [C, C] or [B, N, C, C] bool: step s (column) is not after t (row) and of its episode
    fresh: Tensor | None    # [B, N, C] bool: an episode opened in the chunk up to this step, the memory before the chunk is gone

    def cut(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """x [B, T, ...] -> [B, N, C, ...], with `fill` for steps that are not there."""
        missing = self.N * self.C - x.shape[1]
        if missing:
            x = F.pad(x, (*[0] * (2 * x.ndim - 4), 0, missing), value=fill)
        return x.unflatten(1, (self.N, self.C))

    def ends(self) -> tuple[Tensor | None, Tensor | None]:
        """cut [B, N]: the chunk holds a reset; lives [B, N, C]: the step is of the episode that continues after the chunk."""
        if self.fresh is None:
            return None, None
        return self.fresh[..., -1], self.sees[..., -1, :]

    def reached(self, bad: Tensor, T: int) -> Tensor:
        """bad [B, N]: memories before a chunk that are not finite -> the steps [B, T] that read them."""
        steps = bad[..., None].expand(-1, -1, self.C)
        return (steps if self.fresh is None else steps & ~self.fresh).flatten(1, 2)[:, :T]


def chunks(B: int, T: int, reset: Tensor | None, device: torch.device) -> Chunks:
    """As many chunks as `CHUNK` makes necessary, of equal length."""
    N = -(-T // CHUNK)
    C = -(-T // N)
    order = torch.ones(C, C, dtype=torch.bool, device=device).tril()
    if reset is None:
        return Chunks(N, C, order, None)
    reset = F.pad(reset, (0, N * C - T)).unflatten(1, (N, C))
    episode = reset.cumsum(-1)                                                    # [B, N, C], 0: the one from before the chunk
    return Chunks(N, C, (episode[..., :, None] == episode[..., None, :]) & order, episode > 0)


def finite(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] with zeros for the vectors that are not finite, and where those are [...]."""
    bad = not_finite(x)
    return torch.where(bad[..., None], 0.0, x), bad


def not_finite(x: Tensor) -> Tensor:
    """Which vectors of x [..., K] hold something that is not finite [...]. (A test of their sum would not do: it may overflow.)"""
    return (x.detach() * 0).sum(-1) != 0


def seen(bad: Tensor, reset: Tensor | None) -> Tensor:
    """bad [B, T] -> whether a bad step lies at or before t, in t's episode [B, T]."""
    time = torch.arange(1, bad.shape[1] + 1, device=bad.device)
    last = torch.where(bad, time, 0).cummax(1).values
    if reset is None:
        return last > 0
    return (last > 0) & (last >= torch.where(reset, time, 0).cummax(1).values)


def nan_where(bad: Tensor, like: Tensor) -> Tensor:
    """nan where `bad`, else 0; to be added, so that gradients pass."""
    return torch.where(bad, torch.nan, torch.zeros((), dtype=like.dtype, device=like.device))


def carry(first: Tensor, update: Tensor, keep: Tensor | None, cut: Tensor | None) -> tuple[Tensor, Tensor]:
    """states_{n+1} = keep_n states_n + update_n: first [B, ...], update [B, N, ...], keep and cut [B, N] -> states before each chunk
    [B, N, ...], and the one after the last. Where `cut`, the state before is dropped."""
    state, states = first, []
    shape = (-1, *[1] * (first.ndim - 1))
    for n, new in enumerate(update.unbind(1)):
        states.append(state)
        if cut is not None:
            state = state.masked_fill(cut[:, n].reshape(shape), 0.0)
        state = (state if keep is None else state * keep[:, n].reshape(shape)) + new
    return torch.stack(states, dim=1), state
