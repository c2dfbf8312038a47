"""Fast weight programmers: a matrix written by the delta rule, or by plain addition."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import kernels
from ..kernels.gates.reference import sum_to_one
from . import _matrix
from ._matrix import MatrixMemory, perceptron, project
from .inspection import Shown, kept, outer, times, written

VARIANTS = ("delta", "additive")


class FWPState(NamedTuple):
    M: Tensor   # [B, H, H]


class FWP(MatrixMemory):
    """Fast weight programmer: a matrix written by the delta rule, or by plain addition.

    With x̂ = LayerNorm(x), k and q are relu(W x̂) divided by 1e-5 plus their sums, v = W_v x̂:

        variant="delta":      M_t = M_{t-1} + beta (v - M_{t-1} k) ⊗ k,   beta = sigmoid(w_beta x̂)
                              y_t = W_o (M_t q + W_s x̂ + b_s) + b_o
        variant="additive":   M_t = M_{t-1} + v ⊗ k
                              y_t = MLP(M_t q) + W_s x̂ + b_s

    The delta rule (the default) corrects what a key held so far towards the new value; as |k| <= 1 and beta < 1 it cannot diverge. It is
    no Hadamard memory: M_{t-1} is multiplied by I - beta k kᵀ from the right, which mixes its columns.
    The additive rule is POPGym's block: C_t = 1, U_t = v ⊗ k; M grows with the episode. MLP is two layers of `memory_size` with relu after
    each; `output_size` adds a linear layer at the end. POPGym limits its running sum to ±1e20, which no memory in use reaches; here
    there is no limit. `input_norm=False` leaves out the LayerNorm.
    """

    state_type = FWPState

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 128, *, variant: str = "delta",
                 input_norm: bool = True, backend: str = "auto"):
        super().__init__(input_size, output_size, memory_size, backend)
        if not isinstance(variant, str) or variant not in VARIANTS:
            raise ValueError(f"unknown variant {variant!r}; choose from {', '.join(VARIANTS)}")
        D, H = self.input_size, self.memory_size
        self.variant, delta = variant, variant == "delta"
        self.norm = _matrix.input_norm(D, input_norm)
        self.key, self.query, self.value = (nn.Linear(D, H, bias=False) for _ in range(3))
        self.beta = nn.Linear(D, 1, bias=False) if delta else None
        self.ff = None if delta else perceptron(H)
        self.shortcut = nn.Linear(D, H)
        self.out = nn.Linear(H, self.output_size) if delta or output_size is not None else None

    def state_shapes(self):
        return ((self.memory_size, self.memory_size),)

    def forward(self, x: Tensor, state: FWPState | None = None, reset: Tensor | None = None, *, resets_only_at_start: bool = False,
                starts_fresh: bool = False) -> tuple[Tensor, FWPState]:
        """x [B, T, D], reset [B, T] bool -> y [B, T, output_size] and the state after step T."""
        state, reset = self.begin(x, state, reset, resets_only_at_start, starts_fresh)
        k, q, v, shortcut, *rest = self._project(x)
        if rest:
            h, M = kernels.delta(v, k, q, torch.sigmoid(rest[0][..., 0]), state.M, reset, self.backend)
        else:
            h, M, *_ = kernels.additive(v, k, q, M0=state.M, reset=reset, backend=self.backend)
        y = (h if self.ff is None else self.ff(h)) + shortcut
        return y if self.out is None else self.out(y), FWPState(M)

    def _project(self, x: Tensor) -> list[Tensor]:
        """k, q, v, the shortcut and, for the delta rule, beta before its sigmoid."""
        x = x if self.norm is None else self.norm(x)
        layers = [self.key, self.query, self.value, self.shortcut]
        k, q, *rest = project(x, *layers, *([] if self.beta is None else [self.beta]))
        return [sum_to_one(torch.relu(k)), sum_to_one(torch.relu(q)), *rest]

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        M = self.step(x, state, reset)[1].M
        k, q, v, _, *rest = self._project(x)
        h = Shown(times(M, q), "read", "what was read: M q")
        if not rest:
            return {"M": written(M), "C": kept(x), "U": Shown(outer(v, k), "update", "v ⊗ k: what was added"), "h": h}
        change = M - self.reopened(state, reset).M
        return {"M": written(M), "U": Shown(change, "update", "M - M before: the correction by the delta rule"),
                "beta": Shown(torch.sigmoid(rest[0][..., 0]), "gate", "how far the value was corrected"), "h": h}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, variant={self.variant!r}"
