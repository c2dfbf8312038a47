"""Fast and Forgetful Memory: traces that decay and turn at fixed rates, read by a gated linear map (eq. 7)."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from ..kernels._backends import exporting
from ..kernels.diagonal.pairs import diagonal_pairs
from .base import Memory, check_backend, check_size, check_state
from .inspection import Shown

HORIZON = 1024                                                       # steps: the longest period, and what the slowest decay lasts for
STEEPEST = math.log(sys.float_info.max) / HORIZON - 0.01             # of the log decay per step; the published code overflows beyond it
SHALLOWEST = 1e-8


class FFMState(NamedTuple):
    S: Tensor   # [B, m, c] complex


class FFM(Memory):
    """Fast and Forgetful Memory.

        memory = hm.FFM(input_size=64, output_size=64, memory_size=128)      # 128 x 4 complex traces
        y, state = memory(x, state, reset)

    With y, thru, g_in, g_out four linear maps of x,

        S_t = gamma ⊙ S_{t-1} + (y ⊙ sigmoid(g_in)) ⊗ 1         gamma_ij = exp(a_i + i b_j), the same at every step
        out = LN(W S_t) ⊙ sigmoid(g_out) + thru ⊙ (1 - sigmoid(g_out))

    memory_size is m, the number of decays a_i (learned, at first with half-lives of 1 to 154 steps), context is c, the number of
    frequencies b_j (learned, periods 1 to 1024). The first frequency starts at a full turn per step: it does not oscillate, so context=1 is
    a plain trace.

    Differs from the published code: this runs the recurrence itself, where that multiplies by gamma^1023 and divides again (right in
    float64 only); `a` is kept within its limits at single steps too, by limiting the value used, not the stored one.
    """

    state_type = FFMState

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 128, *, context: int = 4, backend: str = "auto"):
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.memory_size = m = check_size("memory_size", memory_size)
        self.context = c = check_size("context", context)
        self.output_size = m if output_size is None else check_size("output_size", output_size)
        if self.output_size == 1:
            raise ValueError("output_size must be at least 2: the LayerNorm of a single output is constant, and nothing could be read")
        self.backend = check_backend("diagonal", backend)
        self.pre = nn.Linear(self.input_size, 2 * m + 2 * self.output_size)
        self.log_decay = nn.Parameter(torch.linspace(-STEEPEST + 0.01, math.log(0.01) / HORIZON, m))   # a [m]
        self.frequency = nn.Parameter(2 * math.pi / torch.linspace(1, HORIZON, c))                     # b [c]
        self.mix = nn.Linear(2 * m * c, self.output_size)

    def initial_state(self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
                      generator: torch.Generator | None = None) -> FFMState:
        check_size("batch_size", batch_size)
        device, dtype = self.state_options(device, dtype)
        wide = torch.promote_types(dtype, torch.complex64)
        return FFMState(torch.zeros(batch_size, self.memory_size, self.context, device=device, dtype=wide))

    def forward(self, x: Tensor, state: FFMState | None = None, reset: Tensor | None = None) -> tuple[Tensor, FFMState]:
        """x [B, T, D], reset [B, T] bool -> y [B, T, output_size] and the state after step T."""
        self.check_inputs(x, state, reset)
        state = self.initial_state(x.shape[0], device=x.device) if state is None else state
        check_state("S", state.S, (self.memory_size, self.context), "complex")
        state = self.widen(state)
        m, O = self.memory_size, self.output_size
        y, thru, g_in, g_out = self.pre(x).split((m, O, m, O), dim=-1)
        wide = state.S.real.dtype
        trace = (y * torch.sigmoid(g_in)).to(wide)[..., None].expand(-1, -1, -1, self.context)        # [B, T, m, c]
        S = self._remember(trace, state.S, reset)                                                     # [B, T, m, c, 2], eq. 7
        z = self.mix(S.flatten(2).to(self.mix.weight.dtype))                                          # [B, T, O]
        y = torch.lerp(thru, F.layer_norm(z, (O,)).to(thru.dtype), torch.sigmoid(g_out))
        return y, FFMState(torch.view_as_complex(S[:, -1].clone()))                                   # clone: S must not be kept alive

    def _remember(self, trace: Tensor, S: Tensor, reset: Tensor | None) -> Tensor:
        """The traces at every step, their real and imaginary parts side by side."""
        gamma = self._gamma(trace.dtype)
        if exporting():
            return diagonal_pairs(torch.view_as_real(gamma), trace, torch.view_as_real(S), reset)
        return torch.view_as_real(kernels.diagonal(gamma, trace, S, reset, self.backend))

    def _gamma(self, dtype: torch.dtype) -> Tensor:
        """exp(a + i b) [m, c]. Where `a` is out of its limits the limit is used, and its gradient passes."""
        a, b = self.log_decay.to(dtype), self.frequency.to(dtype)
        a = a + (a.clamp(-STEEPEST, -SHALLOWEST) - a).detach()
        return torch.polar(torch.exp(a)[:, None].expand(-1, self.context), b.expand(self.memory_size, -1))

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        S = self.step(x, state, reset)[1].S
        decay = self._gamma(S.real.dtype).abs().flatten().expand(S.shape[0], -1)
        return {"S": Shown(S.abs().flatten(1), "state", "magnitudes of the traces, those of one decay side by side"),
                "gamma": Shown(decay, "factor", "magnitudes of the decays, constant in time")}

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.output_size}, memory_size={self.memory_size}, context={self.context}"
