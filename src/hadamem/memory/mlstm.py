"""mLSTM (xLSTM): a matrix memory with a scalar forget gate and an exponential input gate, in the stabilised form."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from ._matrix import MatrixMemory, at_least_float32, project
from .base import check_number
from .inspection import Shown, outer, times


class MLSTMState(NamedTuple):
    """C and n are in units of exp(m): the memory of the equations is exp(m) C, and exp(m) n its normaliser."""

    C: Tensor   # [B, H, H]
    n: Tensor   # [B, H]
    m: Tensor   # [B]; no gradient passes through it, and nothing that is read depends on the choice of units


class MLSTM(MatrixMemory):
    """mLSTM: C_t = f 1 and U_t = i v ⊗ k in the framework, one number each for all cells.

    With q, v, o~ = W x + b and k = (W_k x + b_k) / sqrt(H), i = exp(w_i x + b_i), f = sigmoid(w_f x + b_f):

        C_t = f C_{t-1} + i v ⊗ k,   n_t = f n_{t-1} + i k
        y_t = W_o (sigmoid(o~) ⊙ C_t q / max(|n_t · q|, 1)) + b_o

    i overflows float32 from 88.7 on. C and n are therefore kept in units of exp(m), m_t = max(log f + m_{t-1}, log i), and the floor of the
    denominator is exp(-m_t) instead of 1: the same output, and no overflow.

    forget_bias: b_f at the start. 0, as published, forgets half at every step; 3 to 6 remember longer.

    Differs from the published code: that loops over time nowhere. Called on a whole sequence, it combines every step with the initial
    state alone and so has no memory of the steps between. Here the recurrence runs, as it does there if called step by step.
    """

    state_type = MLSTMState

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 128, *, forget_bias: float = 0.0,
                 backend: str = "auto"):
        super().__init__(input_size, output_size, memory_size, backend)
        D, H = self.input_size, self.memory_size
        self.query, self.key, self.value, self.gate = (nn.Linear(D, H) for _ in range(4))
        self.input_gate, self.forget_gate = nn.Linear(D, 1), nn.Linear(D, 1)
        self.out = nn.Linear(H, self.output_size)
        with torch.no_grad():
            for layer in (self.query, self.key, self.value, self.gate, self.input_gate, self.forget_gate):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.xavier_uniform_(layer.bias[None])
            self.input_gate.bias.zero_()
            self.forget_gate.bias.fill_(check_number("forget_bias", forget_bias))

    def state_shapes(self):
        return (self.memory_size, self.memory_size), (self.memory_size,), ()

    def forward(self, x: Tensor, state: MLSTMState | None = None, reset: Tensor | None = None, *, resets_only_at_start: bool = False,
                starts_fresh: bool = False) -> tuple[Tensor, MLSTMState]:
        """x [B, T, D], reset [B, T] bool -> y [B, T, output_size] and the state after step T."""
        state, reset = self.begin(x, state, reset, resets_only_at_start, starts_fresh)
        q, k, v, gate, log_gain, log_decay = self._project(x)
        h, C, m, z, n = kernels.additive(v, k, q, log_decay, log_gain, state.C, state.n, state.m, reset, True, self.backend)
        assert z is not None
        assert n is not None
        assert m is not None
        floor = torch.exp(-m).to(z.dtype).clamp(min=torch.finfo(z.dtype).tiny)       # it underflows to 0, and 0 / 0 is nan
        h = h / torch.maximum(z.abs(), floor)[..., None]
        y = self.out((torch.sigmoid(gate) * h).to(v.dtype))
        return y, MLSTMState(C, n, m[:, -1].clone())

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v, the output gate before its sigmoid, log i and log f."""
        q, k, v, gate, i, f = project(x, self.query, self.key, self.value, self.gate, self.input_gate, self.forget_gate)
        i, f = at_least_float32(i[..., 0]), F.logsigmoid(at_least_float32(f[..., 0]))
        return at_least_float32(q), k * self.memory_size ** -0.5, v, gate, i, f

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        M, n, m = self.step(x, state, reset)[1]
        q, k, v, _, log_gain, log_decay = self._project(x)
        floor = torch.exp(-m).clamp(min=torch.finfo(m.dtype).tiny)
        h = times(M, q) / torch.maximum((n * q).sum(-1).abs(), floor)[..., None]
        return {"M": Shown(M, "state", "the memory in units of exp(m)"),
                "f": Shown(log_decay.exp(), "factor", "the forget gate, one number for all cells"),
                "U": Shown(torch.exp(log_gain - m)[:, None, None] * outer(v, k), "update", "i v ⊗ k in units of exp(m)"),
                "m": Shown(m, "gate", "the logarithm of the units"), "h": Shown(h, "read", "what was read, divided by its normaliser")}
