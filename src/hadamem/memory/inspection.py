"""What a memory shows of one step to people who look at it: named tensors, each with its role."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..states import State

ROLES = ("state", "factor", "update", "read", "gate", "attention")
KINDS = {1: "scalar", 2: "vector", 3: "matrix"}   # by the number of axes, the batch included


class Shown(NamedTuple):
    """One tensor to show, after one step.

    role: "state" what is carried on; "factor" what the old state was multiplied with, cell by cell; "update" what was added to it; "read"
    what was taken from it; "gate" a number that decides about these; "attention" the weights of the steps seen so far.
    """

    values: Tensor           # scalar [B], vector [B, N], matrix [B, R, N]; attention: [B, heads, steps], the present step last
    role: str = "state"
    help: str = ""           # one line for the reader

    @property
    def kind(self) -> str:
        """scalar, vector, matrix or attention."""
        return self.role if self.role == "attention" else KINDS[self.values.ndim]


def show_state(state: State) -> dict[str, Shown]:
    """The numbers of a state by name: complex ones as magnitudes, more than two axes flattened; counters and empty fields left out."""
    found = {}
    for n, x in enumerate(state):
        name = state._fields[n] if hasattr(state, "_fields") else f"state {n}"
        if x.numel() == 0 or not (x.is_floating_point() or x.is_complex()):
            continue
        x = x.abs() if x.is_complex() else x
        found[name] = Shown(x if x.ndim <= 3 else x.flatten(1))
    return found


def outer(a: Tensor, b: Tensor) -> Tensor:
    """[B, R], [B, N] -> [B, R, N]."""
    return a[..., :, None] * b[..., None, :]


def times(M: Tensor, q: Tensor) -> Tensor:
    """M q: [B, R, N], [B, N] -> [B, R]."""
    return (M @ q.to(M.dtype)[..., None])[..., 0]


def written(M: Tensor) -> Shown:
    """A matrix memory after its step."""
    return Shown(M, "state", "the memory after the step")


def kept(x: Tensor) -> Shown:
    """The factor of a memory that multiplies its state by nothing: 1 for every row of x [B, D]."""
    return Shown(torch.ones_like(x[:, 0]), "factor", "C = 1: nothing is forgotten")
