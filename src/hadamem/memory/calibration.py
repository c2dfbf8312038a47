"""What multiplies the memory before each write: the paper's calibrations C_t, and the base class for your own.

A calibration is a small module. It takes the features of every step and returns one of:

- `Factors(theta, vc)`: C_t = 1 + tanh(theta_t ⊗ vc_t), or another form, computed inside the fused kernel and never stored;
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

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .. import random
from ..kernels.shm.forms import check_bound


class Factors(NamedTuple):
    """A calibration the fused kernels build from two vectors: C = 1 + tanh(theta ⊗ vc), or another form of `kernels.shm`."""

    theta: Tensor        # [B, T, V]; [B, T, 2 V] for the form "drift", which adds the second half to theta ⊗ vc
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
CLIP = 1e8     # above what a memory in use holds, far below what overflows in its squares


class Theta(Calibration):
    """C_t = 1 + tanh(theta[l_t] ⊗ W_c x_t) with l_t a row of a learned table (eq. 14).

    row_mode "step": a row drawn at random at every step, the paper's Random theta; "episode": drawn once per episode; "first": always
    row 0, the paper's Fixed theta and what its released code does. `init` scales Xavier's bound; 0 starts at C = 1.
    """

    form = "tanh"   # of `kernels.shm`

    def __init__(self, input_size: int, value_size: int, key_size: int, *, rows: int = 128, row_mode: str = "first", init: float = 1.0):
        super().__init__()
        if not isinstance(row_mode, str) or row_mode not in ROW_MODES:
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

    def table(self) -> Tensor:
        """What the rows are taken from."""
        return self.theta

    def forward(self, x: Tensor, clock: Tensor, rows: Tensor | None = None, vc: Tensor | None = None) -> Factors:
        """`rows` [B, T] overrides the draw; `vc` is W_c x if the caller has it already."""
        vc = self.vc(x) if vc is None else vc
        if rows is None and self.row_mode == "first":
            return Factors(self.table()[0].expand(*clock.shape, -1), vc, self.form)
        if rows is None:
            rows = self.rows(clock)
        else:
            _check_rows(rows, clock, self.theta.shape[0])
        return Factors(nn.functional.embedding(rows, self.table()), vc, self.form)   # its backward sums in a fixed order


class ExpTheta(Theta):
    """C_t = e^z bent to [1 / bound, bound], z = theta[l_t] ⊗ W_c x_t. log C is odd: products keep their median where z is symmetric.

        C = (1 + r tanh(z / 2r)) / (1 - r tanh(z / 2r)),   r = (bound - 1) / (bound + 1)

    Near 0 it is 1 + z, as `Theta`'s C is. There E[C] = 1 and E[log C] < 0, and a typical product decays; here E[log C] = 0 and E[C] > 1.
    """

    name = "exp"

    def __init__(self, input_size: int, value_size: int, key_size: int, *, bound: float = 2.0, **options: Any):
        super().__init__(input_size, value_size, key_size, **options)
        self.bound = check_bound(bound)
        self.form = self.name if bound == 2 else f"{self.name}:{self.bound!r}"


class DriftTheta(ExpTheta):
    """`ExpTheta` with z = theta[l_t] ⊗ W_c x_t + drift ⊗ 1: each row of M learns whether to fade or to grow, whatever the input.

    About drift[i] is added to log C of row i at every step, within its bounds. It starts at 0, and learns from there even where theta is 0.
    """

    name = "drift"

    def __init__(self, input_size: int, value_size: int, key_size: int, **options: Any):
        super().__init__(input_size, value_size, key_size, **options)
        self.drift = nn.Parameter(torch.zeros(value_size))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if "drift" in self._parameters:      # not yet there when `Theta` calls this
            nn.init.zeros_(self.drift)

    def table(self) -> Tensor:
        return torch.cat([self.theta, self.drift.expand_as(self.theta)], dim=1)


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
    "exp": ExpTheta,                # the next two also with a bound, as in "exp:1.5"
    "drift": DriftTheta,
    "neural_theta": NeuralTheta,
    "fixed": FixedC,
    "random": RandomC,
    "none": NoCalibration,
}


def find_calibration(name: str) -> tuple[type[Calibration], dict[str, Any]]:
    """The class behind a name, and the option that the name brings: "exp:1.5" is `ExpTheta` with bound=1.5."""
    first, colon, bound = name.partition(":")
    kind = CALIBRATIONS.get(first)
    if kind is None or (colon and not issubclass(kind, ExpTheta)):
        raise ValueError(f"unknown calibration {name!r}; choose from {', '.join(CALIBRATIONS)} or pass a hm.Calibration")
    return kind, {"bound": check_bound(bound)} if colon else {}


def build_calibration(calibration: Any, D: int, V: int, K: int, **theta: Any) -> Calibration:
    """The module that a name, a module or a function of the sizes stands for. theta: options of `Theta`."""
    if isinstance(calibration, str):
        kind, options = find_calibration(calibration)
        if issubclass(kind, NeuralTheta):
            return kind(D, V, K, init=theta["init"])
        return kind(D, V, K, **theta, **options) if issubclass(kind, Theta) else kind(D, V, K)
    built = calibration
    if callable(calibration) and not isinstance(calibration, nn.Module):
        _check_takes(calibration, D, V, K)
        built = calibration(D, V, K)
    if not isinstance(built, Calibration):
        raise TypeError(f"calibration must be a name, a hm.Calibration or a function that makes one, got {type(built).__name__}")
    return built


def auto_clip(calibration: Any) -> float | Literal["auto"] | None:
    """The value of clip="auto" for a calibration: a name, a class or an instance. "auto" for a function, whose result is not known yet."""
    kind = CALIBRATIONS.get(calibration.partition(":")[0]) if isinstance(calibration, str) else calibration
    kind = type(kind) if isinstance(kind, Calibration) else kind
    if not isinstance(kind, type):
        return "auto"
    return CLIP if issubclass(kind, Theta | NeuralTheta) else None


def _check_rows(rows: Tensor, clock: Tensor, L: int) -> None:
    wanted = f"rows must be an int64 tensor of shape {list(clock.shape)} with entries in 0..{L - 1}"
    if not isinstance(rows, Tensor):
        raise TypeError(f"{wanted}, got {type(rows).__name__}")
    if rows.dtype != torch.int64 or rows.shape != clock.shape:
        raise ValueError(f"{wanted}, got {rows.dtype} {list(rows.shape)}")
    if rows.device.type == "cpu" and not torch.compiler.is_compiling() and not 0 <= int(rows.min()) <= int(rows.max()) < L:
        raise ValueError(f"{wanted}, got entries {int(rows.min())}..{int(rows.max())}")   # on a GPU the check would wait for the device


def _check_takes(make: Callable[..., Any], D: int, V: int, K: int) -> None:
    try:
        inspect.signature(make).bind(D, V, K)
    except TypeError as error:
        raise TypeError("calibration must be a name, a hm.Calibration or a function of the sizes of input, value and key that makes one; "
                        f"{getattr(make, '__name__', 'it')} cannot be called so: {error}") from error
    except ValueError:      # a builtin without a signature
        return
