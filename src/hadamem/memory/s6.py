"""S6, the selective state space of a Mamba block: many decaying traces whose rates the input sets at every step."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from .base import Memory, check_backend, check_size, check_state
from .inspection import Shown

WINDOW = 4   # steps that the convolution sees


class S6State(NamedTuple):
    """What the recurrence carries, and the last inputs of the convolution, oldest first."""

    window: Tensor   # [B, 2D, 4]
    S: Tensor        # [B, 2D, N]


class S6(Memory):
    """Mamba's block: a short causal convolution, the selective recurrence, a gate.

        memory = hm.S6(input_size=64, output_size=64)
        y, state = memory(x, state, reset)

    With u, z = W_in x (2D channels each), u = silu(conv(u)), and Delta, B_t, C_t linear maps of u (Delta through softplus),

        S_t = exp(Delta ⊗ 1 ⊙ A) ⊙ S_{t-1} + (Delta ⊙ u) ⊗ B_t,      A = -exp(A_log)        the factor is in (0, 1]: S cannot explode
        y = W_out ((S_t C_t + d ⊙ u) ⊙ silu(z))

    memory_size is N, the states per channel (the memory has 2D N cells); output_size adds a linear layer after the block, None
    omits it (y is then D wide).

    Differs from the code released with SHM: Delta starts between 1e-3 and 1e-1, as in Mamba, where the release leaves it near 0.7 and so
    forgets within a step or two; the state handed in is used and the convolution's window carried, where the release starts every call
    from zero; episodes end at resets, also in the window.
    """

    state_type = S6State

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 16, *, backend: str = "auto"):
        super().__init__()
        self.input_size = D = check_size("input_size", input_size)
        self.memory_size = N = check_size("memory_size", memory_size)
        self.output_size = D if output_size is None else check_size("output_size", output_size)
        self.backend = check_backend("selective", backend)
        self.channels, self.rank = 2 * D, -(-D // 16)
        self.in_proj = nn.Linear(D, 2 * self.channels, bias=False)
        self.conv = nn.Conv1d(self.channels, self.channels, WINDOW, groups=self.channels)
        self.x_proj = nn.Linear(self.channels, self.rank + 2 * N, bias=False)
        self.delta = nn.Linear(self.rank, self.channels)
        self.A_log = nn.Parameter(torch.arange(1, N + 1, dtype=torch.get_default_dtype()).log().repeat(self.channels, 1))
        self.skip = nn.Parameter(torch.ones(self.channels))
        self.out_proj = nn.Linear(self.channels, D, bias=False)
        self.out = None if output_size is None else nn.Linear(D, self.output_size)
        with torch.no_grad():
            nn.init.uniform_(self.delta.weight, -self.rank ** -0.5, self.rank ** -0.5)
            step = torch.exp(torch.empty(self.channels).uniform_(math.log(1e-3), math.log(1e-1))).clamp(min=1e-4)
            self.delta.bias.copy_(step + torch.log(-torch.expm1(-step)))   # the inverse of softplus

    def initial_state(self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
                      generator: torch.Generator | None = None) -> S6State:
        check_size("batch_size", batch_size)
        device, dtype = self.state_options(device, dtype)
        return S6State(*(torch.zeros(batch_size, self.channels, n, device=device, dtype=dtype) for n in (WINDOW, self.memory_size)))

    def forward(self, x: Tensor, state: S6State | None = None, reset: Tensor | None = None) -> tuple[Tensor, S6State]:
        """x [B, T, D], reset [B, T] bool -> y [B, T, output_size] and the state after step T."""
        self.check_inputs(x, state, reset)
        state = self.initial_state(x.shape[0], device=x.device) if state is None else state
        check_state("window", state.window, (self.channels, WINDOW))
        check_state("S", state.S, (self.channels, self.memory_size))
        state = self.widen(state)
        u, z, delta, B, C, window = self._select(x, state, reset)
        h, S = self._remember(delta, u, B, C, state.S, reset)
        y = self.out_proj((h + self.skip * u) * F.silu(z))
        return y if self.out is None else self.out(y), S6State(window, S)

    def _select(self, x: Tensor, state: S6State, reset: Tensor | None) -> tuple[Tensor, ...]:
        """u, z, Delta [B, T, 2D] and B, C [B, T, N] of every step, and the window after the last."""
        u, z = self.in_proj(x).chunk(2, dim=-1)
        u, window = self._convolve(u, state.window, reset)
        delta, B, C = self.x_proj(u).split((self.rank, self.memory_size, self.memory_size), dim=-1)
        return u, z, F.softplus(self.delta(delta).to(state.S.dtype)), B, C, window

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        S = self.step(x, state, reset)[1].S
        _, _, delta, *_ = self._select(x[:, None], self.widen(state), None if reset is None else reset[:, None])
        decay = torch.exp(-delta[:, 0, :, None] * torch.exp(self.A_log.to(S.dtype)))
        return {"S": Shown(S.flatten(1), "state", "the traces, those of one channel side by side"),
                "A": Shown(decay.flatten(1), "factor", "the decay exp(Delta A) that the input chose"),
                "Delta": Shown(delta.mean((1, 2)), "gate", "mean step size over the channels: how much is overwritten")}

    def _remember(self, delta: Tensor, u: Tensor, B: Tensor, C: Tensor, S: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """S_t C_t at every step [B, T, 2D], and the last S."""
        h, S = kernels.selective(delta, -torch.exp(self.A_log.to(S.dtype)), delta * u, B, C, S, reset, self.backend)
        return h.to(u.dtype), S

    def _convolve(self, u: Tensor, window: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        """silu of the causal convolution within each episode, and the window after the last step. u [B, T, 2D]."""
        assert self.conv.bias is not None
        T, weight, total = u.shape[1], self.conv.weight.to(window.dtype), self.conv.bias.to(window.dtype)
        if T == 1:
            past = window[..., 1:] if reset is None else torch.where(reset[..., None], 0.0, window[..., 1:])
            window = torch.cat((past, u.mT.to(window.dtype)), dim=-1)
            return F.silu((window * weight[:, 0]).sum(-1) + total)[:, None].to(u.dtype), window
        past = torch.cat((window.mT, u.to(window.dtype)), dim=1)                              # [B, 4 + T, 2D]
        after, other = [], None
        for lag in range(WINDOW):
            seen = past[:, WINDOW - lag:WINDOW - lag + T]                                     # the input `lag` steps before
            if reset is not None and lag > 0:                                                 # of another episode?
                late = reset if lag == 1 else F.pad(reset[:, :-(lag - 1)], (lag - 1, 0))[:, :T]
                other = late if other is None else other | late
                seen = torch.where(other[..., None], 0.0, seen)
            total = total + weight[:, 0, WINDOW - 1 - lag] * seen
            after.append(seen[:, -1])
        return F.silu(total).to(u.dtype), torch.stack(after[::-1], dim=-1)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.output_size}, memory_size={self.memory_size}"
