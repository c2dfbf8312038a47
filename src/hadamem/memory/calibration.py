"""What multiplies the memory before each write: the paper's calibrations C_t, and the base class for your own.

A calibration is a small module. It takes the features of every step and returns one of:

- `Factors(theta, vc)`: C_t = 1 + tanh(theta_t ⊗ vc_t), computed inside the fused kernel and never stored;
- a tensor C [B, T, V, K]: any calibration, through `hm.kernels.hadamard`;
- None: C = 1.

Your own takes about ten lines. Here the memory forgets at a learned rate per column:

    class Forgetting(hm.Calibration):
        def __init__(self, input_size, value_size, key_size):
            super().__init__()
            self.value_size, self.rate = value_size, nn.Linear(input_size, key_size)

        def forward(self, x, clock):
            C = torch.sigmoid(self.rate(x))[..., None, :]                    # [B, T, 1, K]
            return C.expand(*x.shape[:2], self.value_size, -1)               # [B, T, V, K]

    memory = hm.SHM(64, 64, memory_size=32, calibration=Forgetting)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import random


class Factors(NamedTuple):
    """A calibration the fused kernels build from two vectors: C = 1 + tanh(theta ⊗ vc), or another form of `kernels.shm`."""

    theta: Tensor        # [B, T, V]
    vc: Tensor           # [B, T, K]
    form: str = "tanh"


class Calibration(nn.Module):
    """Base class: `forward(x, clock)` returns Factors, a tensor C [B, T, V, K], or None for C = 1.

    x [B, T, D] are the (normalised) features. clock [B, T] int64 is the state's counter at each step, the only source of randomness a
    calibration may use (`hadamem.random` turns it into numbers): so a replayed state replays the draws.
    """

    ticks: str | None = None   # when the clock advances: at every "step", at the start of every "episode", or never

    def forward(self, x: Tensor, clock: Tensor) -> Factors | Tensor | None:
        raise NotImplementedError(f"{type(self).__name__} must define forward(x, clock)")


ROW_MODES = ("step", "episode", "first")


class Theta(Calibration):
    """C_t = 1 + tanh(theta[l_t] ⊗ W_c x_t) with l_t a row of a learned table (eq. 14).

    row_mode "step": a row drawn at random at every step, the paper's Random theta; "episode": drawn once per episode; "first": always
    row 0, the paper's Fixed theta and what its released code does. `init` scales Xavier's bound; 0 starts at C = 1.
    """

    def __init__(self, input_size: int, value_size: int, key_size: int, *, rows: int = 128, row_mode: str = "first", init: float = 1.0):
        super().__init__()
        if row_mode not in ROW_MODES:
            raise ValueError(f"unknown row_mode {row_mode!r}; choose from {', '.join(ROW_MODES)}")
        self.row_mode, self.init = row_mode, init
        self.ticks = None if row_mode == "first" else row_mode
        self.theta = nn.Parameter(torch.empty(rows, value_size))
        self.vc = nn.Linear(input_size, key_size, bias=False)   # linear, no bias: keeps E tanh(z) = 0 for symmetric inputs
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.theta, gain=self.init) if self.init else nn.init.zeros_(self.theta)
        self.vc.reset_parameters()

    def rows(self, clock: Tensor) -> Tensor:
        """The row l_t used at each clock reading."""
        if self.row_mode == "first":
            return torch.zeros_like(clock)
        return random.integers(clock, self.theta.shape[0])

    def forward(self, x: Tensor, clock: Tensor, rows: Tensor | None = None, vc: Tensor | None = None) -> Factors:
        """`rows` [B, T] overrides the draw; `vc` is W_c x if the caller has it already."""
        vc = self.vc(x) if vc is None else vc
        if rows is None and self.row_mode == "first":
            return Factors(self.theta[0].expand(*clock.shape, -1), vc)
        rows = self.rows(clock) if rows is None else rows
        return Factors(nn.functional.embedding(rows, self.theta), vc)   # its backward sums in a fixed order


class NeuralTheta(Calibration):
    """C_t = 1 + tanh(f(x_t) ⊗ W_c x_t) with f a network of one hidden layer (the paper leaves its size open).

    z is quadratic in x, so its tanh has no zero mean and entries of M may grow without bound: `init` scales f's last layer at the start (0
    starts at C = 1), and `SHM(clip=...)` limits them.
    """

    def __init__(self, input_size: int, value_size: int, key_size: int, *, hidden_size: int | None = None, init: float = 1.0):
        super().__init__()
        hidden_size = value_size if hidden_size is None else hidden_size
        self.theta = nn.Sequential(nn.Linear(input_size, hidden_size), nn.Tanh(), nn.Linear(hidden_size, value_size))
        with torch.no_grad():
            for p in self.theta[-1].parameters():
                p.mul_(init)
        self.vc = nn.Linear(input_size, key_size, bias=False)

    def forward(self, x: Tensor, clock: Tensor) -> Factors:
        return Factors(self.theta(x), self.vc(x))


class FixedC(Calibration):
    """C_t = Theta, one learned matrix used as it is (Prop. 3). Its products are powers, so it starts in U(0, 1)."""

    def __init__(self, input_size: int, value_size: int, key_size: int):
        super().__init__()
        self.C = nn.Parameter(torch.rand(value_size, key_size))

    def forward(self, x: Tensor, clock: Tensor) -> Tensor:
        return self.C.expand(*clock.shape, -1, -1)


class RandomC(Calibration):
    """C_t drawn at random at every step, with mean 1 and nothing to learn.

    "tanh" draws 1 + tanh(z) with z ~ N(0, std²), inside (0, 2); "normal" draws N(1, std²). The paper names no variance.
    """

    ticks = "step"

    def __init__(self, input_size: int, value_size: int, key_size: int, *, std: float = 0.25, kind: str = "tanh"):
        super().__init__()
        if kind not in ("tanh", "normal"):
            raise ValueError(f"unknown kind {kind!r} of random C; choose from tanh, normal")
        self.shape, self.std, self.kind = (value_size, key_size), std, kind

    def forward(self, x: Tensor, clock: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        z = self.std * random.normal(random.spread(clock, self.shape[0] * self.shape[1]), dtype).unflatten(-1, self.shape)
        return 1 + (torch.tanh(z) if self.kind == "tanh" else z)


class NoCalibration(Calibration):
    """C = 1: everything written is added up and kept."""

    def __init__(self, input_size: int, value_size: int, key_size: int):
        super().__init__()

    def forward(self, x: Tensor, clock: Tensor) -> None:
        return None


CALIBRATIONS: dict[str, type[Calibration]] = {
    "theta": Theta,                 # Random theta or Fixed theta, by row_mode
    "neural_theta": NeuralTheta,
    "fixed": FixedC,
    "random": RandomC,
    "none": NoCalibration,
}
