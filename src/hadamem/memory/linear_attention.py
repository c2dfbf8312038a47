"""Linear attention (Linear Transformer): causal attention with a kernel in place of the softmax, as a matrix memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from . import _matrix
from ._matrix import MatrixMemory, at_least_float32, perceptron, project
from .inspection import Shown, kept, outer, times, written

EPS = 1e-5


class LinearAttentionState(NamedTuple):
    M: Tensor   # [B, H, H]  sum of v ⊗ φ(k)
    Z: Tensor   # [B, H]     sum of φ(k)


class LinearAttention(MatrixMemory):
    """Linear attention: C_t = 1 and U_t = v ⊗ φ(k), divided at the read by the sum of all weights.

    With x̂ = LayerNorm(x), k, q, v = W x̂ without bias, φ(z) = elu(z) + 1 > 0:

        M_t = M_{t-1} + v ⊗ φ(k),   Z_t = Z_{t-1} + φ(k)
        y_t = MLP(M_t φ(q) / (Z_t · φ(q) + 1e-5)) + W_s x̂ + b_s

    What is read is an average of the values of all steps so far, the present one included. MLP is two layers of `memory_size` with relu
    after each. `output_size` adds a linear layer at the end. `input_norm=False` leaves out the LayerNorm.
    """

    state_type = LinearAttentionState

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 128, *, input_norm: bool = True,
                 backend: str = "auto"):
        super().__init__(input_size, output_size, memory_size, backend)
        D, H = self.input_size, self.memory_size
        self.norm = _matrix.input_norm(D, input_norm)
        self.key, self.query, self.value = (nn.Linear(D, H, bias=False) for _ in range(3))
        self.ff = perceptron(H)
        self.shortcut = nn.Linear(D, H)
        self.out = None if output_size is None else nn.Linear(H, self.output_size)

    def state_shapes(self):
        return (self.memory_size, self.memory_size), (self.memory_size,)

    def forward(self, x: Tensor, state: LinearAttentionState | None = None, reset: Tensor | None = None, *,
                resets_only_at_start: bool = False, starts_fresh: bool = False) -> tuple[Tensor, LinearAttentionState]:
        """x [B, T, D], reset [B, T] bool -> y [B, T, output_size] and the state after step T."""
        state, reset = self.begin(x, state, reset, resets_only_at_start, starts_fresh)
        k, q, v, shortcut = self._project(x)
        after = kernels.additive(v, k, q, M0=state.M, n0=state.Z, reset=reset, normalizer=True, backend=self.backend)
        assert after.z is not None
        assert after.n is not None
        o = after.h / (after.z[..., None] + EPS)
        y = self.ff(o.to(v.dtype)) + shortcut
        return y if self.out is None else self.out(y), LinearAttentionState(after.M, after.n)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """φ(k), φ(q), v and the shortcut."""
        x = x if self.norm is None else self.norm(x)
        k, q, v, shortcut = project(x, self.key, self.query, self.value, self.shortcut)
        k, q = (F.elu(at_least_float32(z)) + 1 for z in (k, q))
        return k, q, v, shortcut

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        M, Z = self.step(x, state, reset)[1]
        k, q, v, _ = self._project(x)
        total = (Z * q).sum(-1, keepdim=True) + EPS
        return {"M": written(M), "C": kept(x), "U": Shown(outer(v, k), "update", "v ⊗ φ(k): what was added"),
                "Z": Shown(Z, "state", "sum of the keys"), "h": Shown(times(M, q) / total, "read", "the average that was read")}
