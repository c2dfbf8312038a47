"""Hebbian memory: a matrix that adds up the outer product of every step with itself, M_t = M_{t-1} + k ⊗ k."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from ._matrix import MatrixMemory, project
from .base import check_flag
from .inspection import Shown, kept, outer, times, written


class HebbianState(NamedTuple):
    M: Tensor   # [B, H, H], symmetric


class Hebbian(MatrixMemory):
    """Hebbian memory: C_t = 1 and U_t = k ⊗ k, the simplest matrix memory.

        k = W_k x + b_k,   q = W_q x + b_q
        M_t = M_{t-1} + k ⊗ k
        y_t = norm(M_t q),  with `output_size`  y_t = W_o norm(M_t q) + b_o

    The rule says what is written, not how it is read: the query is learned, as in the other matrix memories. Nothing is forgotten and
    nothing divides M, so its entries grow in proportion to the length of an episode. `read_norm` (LayerNorm without affine part on what
    is read) keeps the size of y apart from that; without it y grows as well, and a policy gradient fails with it on long episodes.

    What is read is the sum of all k_s, each times k_s · q. The query starts as a copy of the key, so that most of these products start
    positive; both are learned apart from then on.
    """

    state_type = HebbianState

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 128, *, read_norm: bool = True,
                 backend: str = "auto"):
        super().__init__(input_size, output_size, memory_size, backend)
        self.read_norm = check_flag("read_norm", read_norm)
        self.key = nn.Linear(self.input_size, self.memory_size)
        self.query = nn.Linear(self.input_size, self.memory_size)
        self.out = None if output_size is None else nn.Linear(self.memory_size, self.output_size)
        # With random signs of k · q, training ends with some items of the wrong sign, among which the query cannot choose.
        self.query.load_state_dict(self.key.state_dict())

    def state_shapes(self):
        return ((self.memory_size, self.memory_size),)

    def forward(self, x: Tensor, state: HebbianState | None = None, reset: Tensor | None = None, *, resets_only_at_start: bool = False,
                starts_fresh: bool = False) -> tuple[Tensor, HebbianState]:
        """x [B, T, D], reset [B, T] bool -> y [B, T, output_size] and the state after step T."""
        state, reset = self.begin(x, state, reset, resets_only_at_start, starts_fresh)
        k, q = project(x, self.key, self.query)
        after = kernels.additive(k, k, q, M0=state.M, reset=reset, backend=self.backend)
        y = F.layer_norm(after.h, (self.memory_size,)) if self.read_norm else after.h
        return y if self.out is None else self.out(y), HebbianState(after.M)

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        M = self.step(x, state, reset)[1].M
        k, q = project(x, self.key, self.query)
        return {"M": written(M), "C": kept(x), "U": Shown(outer(k, k), "update", "k ⊗ k: what was added"),
                "h": Shown(times(M, q), "read", "what was read: M q")}
