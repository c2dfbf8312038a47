"""Fast weights (Ba et al. 2016): a recurrent net whose state is pulled towards its own recent past by a decaying outer-product memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._sequential import sequential
from .base import MOST_ROUNDS, Memory, check_number, check_size, check_state
from .inspection import Shown, outer, written


class FastWeightsState(NamedTuple):
    M: Tensor   # [B, H, H]
    h: Tensor   # [B, H]


class FastWeights(Memory):
    """Fast weights with a settling loop; y = h, or with `output_size` a linear map of it. memory_size is the hidden size H.

        b_t = W_h h_{t-1} + W_x x_t + b,   h = relu(b_t),   `settle` times:  h ← relu(norm(b_t + M_{t-1} h)),   h_t = h
        M_t = decay M_{t-1} + rate h_t ⊗ h_t                                        C = decay, U = rate h ⊗ h

    U depends on M through h, so the steps are computed one after the other. The layer norm is what keeps h bounded.
    W_h starts at 0.05 times the identity, as published.
    """

    state_type = FastWeightsState

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 128, *, settle: int = 1, decay: float = 0.95,
                 rate: float = 0.5):
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.memory_size = H = check_size("memory_size", memory_size)
        self.output_size = H if output_size is None else check_size("output_size", output_size)
        self.settle = check_size("settle", settle, MOST_ROUNDS)
        self.decay, self.rate = check_number("decay", decay), check_number("rate", rate)
        if not 0 <= decay <= 1:
            raise ValueError(f"decay must be in [0, 1], got {decay}; above 1 the memory grows without bound")
        if H == 1:
            raise ValueError("memory_size must be at least 2, got 1; the layer norm would make a single unit constant")
        self.input = nn.Linear(self.input_size, H)
        self.recur = nn.Linear(H, H, bias=False)
        nn.init.eye_(self.recur.weight).data.mul_(0.05)
        self.norm = nn.LayerNorm(H)
        self.out = None if output_size is None else nn.Linear(H, self.output_size)

    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        check_size("batch_size", batch_size)
        device, dtype = self.state_options(device, dtype)
        H = self.memory_size
        return FastWeightsState(torch.zeros(batch_size, H, H, device=device, dtype=dtype),
                                torch.zeros(batch_size, H, device=device, dtype=dtype))

    def forward(self, x, state=None, reset=None, *, resets_only_at_start=False):
        self.check_inputs(x, state, reset)
        state = self.initial_state(x.shape[0], device=x.device) if state is None else state
        check_state("M", state.M, (self.memory_size, self.memory_size))
        check_state("h", state.h, (self.memory_size,))
        M, h = self.widen(state)
        if reset is not None and (resets_only_at_start or x.shape[1] == 1):
            M, h, reset = torch.where(reset[:, :1, None], 0.0, M), torch.where(reset[:, :1], 0.0, h), None
        hs, M, h = self._steps(self.input(x).to(h.dtype), M, h, reset)
        y = hs.to(x.dtype)
        return y if self.out is None else self.out(y), FastWeightsState(M, h)

    @sequential
    def _steps(self, b: Tensor, M: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """b [B, T, H] what the inputs give -> h of every step [B, T, H], and M, h after the last."""
        W, scale, shift = (p.to(h.dtype) for p in (self.recur.weight.t(), self.norm.weight, self.norm.bias))
        hs = []
        for t, b_t in enumerate(b.unbind(1)):
            if reset is not None:
                M, h = torch.where(reset[:, t, None, None], 0.0, M), torch.where(reset[:, t, None], 0.0, h)
            b_t = torch.addmm(b_t, h, W)                                                                  # [B, H]
            h = torch.relu(b_t)
            for _ in range(self.settle):
                settled = torch.baddbmm(b_t[..., None], M, h[..., None])[..., 0]
                h = torch.relu(F.layer_norm(settled, scale.shape, scale, shift, self.norm.eps))
            M = torch.baddbmm(M, h[:, :, None], h[:, None], beta=self.decay, alpha=self.rate)
            hs.append(h)
        return torch.stack(hs, dim=1), M, h

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        M, h = self.step(x, state, reset)[1]
        return {"M": written(M), "C": Shown(torch.full_like(M[:, 0, 0], self.decay), "factor", "the decay, a constant"),
                "U": Shown(self.rate * outer(h, h), "update", "rate h ⊗ h: what was added"), "h": Shown(h, "state", "the hidden state")}

    def extra_repr(self) -> str:
        return (f"{self.input_size}, {self.output_size}, memory_size={self.memory_size}, settle={self.settle}, decay={self.decay}, "
                f"rate={self.rate}")
