"""Stable Hadamard Memory: a matrix written by M_t = M_{t-1} ⊙ C_t + U_t and read by M_t q_t (eqs. 2, 8, 9, 14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from ..kernels.gates.reference import positive, sum_to_one, widths
from ..states import State
from . import _acting, _inside
from .base import Memory, check_backend, check_flag, check_number, check_size
from .calibration import ROW_MODES, Calibration, Factors, Theta, auto_clip, build_calibration
from .inspection import Shown
from .options import form
from .rotary import angles, check_rotary, norm_halves, remember_halves, rotate, turns

WIDE = 192     # columns: with 64 rows cuBLAS takes 26 us for a product of 136 to 176 of them, 9 for 128, and 3 from 184 on (H200)
PAPER = {"row_mode": "step", "theta_init": 1.0, "read_norm": False, "clip": None}   # options of SHM.paper
RELEASE = {**PAPER, "row_mode": "first"}                                             # and of SHM.release


class SHMState(NamedTuple):
    """The memory, and the counter that its random rows are drawn from. A reset clears M and keeps the clock running."""

    M: Tensor       # [B, V, K], float32 or wider
    clock: Tensor   # [B] int64


class Folded(NamedTuple):
    """What steps of SHM and a layer behind it share, see `Memory.fold`."""

    weight: Tensor      # of output layer and the layer behind it
    bias: Tensor
    joint: Tensor       # weights of all projections


class SHM(Memory):
    """Stable Hadamard Memory, in the form that did best in our runs; `SHM.paper` and `SHM.release` are the other two.

        memory = hm.SHM(input_size=64, output_size=64, memory_size=128)
        y, state = memory(x)                       # x [B, T, 64] -> y [B, T, 64]
        y, state = memory(x, state, reset)         # reset [B, T] bool: True where a new episode begins

    With x̂ = LayerNorm(x): k and q are relu(W x̂) divided by their sums, v = W_v x̂, eta = sigmoid(w_eta x̂),

        C_t = 1 + tanh(theta_t ⊗ W_c x̂)            eq. 14, theta_t a row of a learned table
        M_t = M_{t-1} ⊙ C_t + eta v ⊗ k            eqs. 8, 9
        y_t = W_o (norm(M_t q) + W_s x̂ + b_s) + b_o   eq. 2

    memory_size is the height of M (value width); key_size its width, the same unless given.
    row_mode: "first" (always row 0 of theta), "step" (a random row at every step, the paper), "episode" (one per episode).
    calibration: "theta", "exp", "drift", "neural_theta", "fixed", "random", "none", or a `hm.Calibration` (class or instance) of your own.
        "exp" has no drift of log C in place of mean one, "drift" a learned one; both are bounded, by 2 or as "exp:1.5" says.
    theta_rows: rows L of the table. theta_init: scale of its Xavier start (or of neural_theta's last layer); 0 starts at C = 1.
    soft_keys: 0 is relu. Above it, k and q are made by a smooth relu of that width s, x + s for x >= 0 and s exp(x / s) below: with relu an
        entry that is 0 has no gradient, and a query that is 0 everywhere, or in all entries but one, never learns again.
    tied_start: the query layer starts as a copy of the key layer, and is learned apart from then on. What was written by a step that looks
        like this one is then read from the start, so that recall by content is learned sooner.
    rotary: the last half of M's rows is written and read through keys and queries that turn by fixed angles at every step
        (`memory/rotary.py`), so that a query can ask for what was written some steps ago; each half of the read has its norm. Recall of
        single steps is learned many times sooner. Not with row_mode="episode", whose clock counts episodes.
    rotary_keys: the rotary rows have layers for keys and queries of their own, where they share those of the other rows otherwise.
    rotary_gain: first value of a learned number that multiplies what the rotary rows read; None: there is none. A single number grows where
        the rows help, and hardly moves where they are noise that a policy would learn by heart.
    clip: limits the entries of M to ±clip after each write; None: nothing does. "auto": 1e8 for the calibrations that can double an entry
        at every step ("theta", "exp", "drift", "neural_theta"); None for the others and your own. backend: of `hm.kernels.shm`.

    Differs from the paper; each has its flag:
    - `row_mode="first"`, `theta_init=0`: rows drawn at each step act as noise that a policy gradient does not average out, and a
      start at C = 1 keeps early gradients alive. `SHM.paper` has the paper's random rows and Xavier start.
    - `read_norm`: LayerNorm (no affine part) on M q, whose size varies by orders of magnitude otherwise.
    - `clip`: a learned C above 1 makes M overflow within some hundred steps, and gradients of cells that are never written to. With a clip
      those are limited to ±1e12.
    - `input_norm`, `normalize_keys`, `shortcut`: LayerNorm on x, relu and sum-to-one for k and q, and W_s x̂ + b_s, as released.
    """

    state_type = SHMState

    _padding: Tensor
    _turns: Tensor
    rotary_gain: nn.Parameter | None
    _own_forward = False     # of a subclass: `through` must call it

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._own_forward = cls.forward is not SHM.forward

    def __init__(
        self,
        input_size: int,
        output_size: int | None = None,
        memory_size: int = 128,
        *,
        key_size: int | None = None,
        row_mode: str = "first",
        calibration: str | Calibration | Callable[[int, int, int], Calibration] = "theta",
        theta_rows: int = 128,
        theta_init: float = 0.0,
        read_norm: bool = True,
        input_norm: bool = True,
        normalize_keys: bool = True,
        soft_keys: float = 0.0,
        tied_start: bool = False,
        shortcut: bool = True,
        rotary: bool = False,
        rotary_keys: bool = False,
        rotary_gain: float | None = None,
        clip: float | Literal["auto"] | None = "auto",
        backend: str = "auto",
    ):
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.memory_size = check_size("memory_size", memory_size)
        self.key_size = self.memory_size if key_size is None else check_size("key_size", key_size)
        self.output_size = self.memory_size if output_size is None else check_size("output_size", output_size)
        self.row_mode, self.backend, self.normalize_keys = row_mode, check_backend("shm", backend), normalize_keys
        flags = {"read_norm": read_norm, "input_norm": input_norm, "normalize_keys": normalize_keys, "shortcut": shortcut, "rotary": rotary,
                 "rotary_keys": rotary_keys, "tied_start": tied_start}
        for name, flag in flags.items():
            check_flag(name, flag)
        self.soft_keys = check_number("soft_keys", soft_keys)
        if self.soft_keys < 0 or (self.soft_keys > 0 and not normalize_keys):
            raise ValueError(f"soft_keys must be 0 or more, and 0 with normalize_keys=False, got {soft_keys}; it is the width of a bend")
        if check_number("theta_init", theta_init) < 0:
            raise ValueError(f"theta_init must be 0 or more, got {theta_init}; it is a scale of random numbers")
        if not isinstance(row_mode, str) or row_mode not in ROW_MODES:
            raise ValueError(f"unknown row_mode {row_mode!r}; choose from {', '.join(ROW_MODES)}")
        D, V, K = self.input_size, self.memory_size, self.key_size
        if input_norm and D == 1:
            raise ValueError("input_norm would make a single feature constant; pass input_norm=False with input_size=1")
        self.norm = nn.LayerNorm(D) if input_norm else None
        self.key = nn.Linear(D, K, bias=False)
        self.query = nn.Linear(D, K, bias=False)
        self.value = nn.Linear(D, V, bias=False)
        self.eta = nn.Linear(D, 1, bias=False)
        check_size("theta_rows", theta_rows)
        self.calibration = build_calibration(calibration, D, V, K, row_mode=row_mode, rows=theta_rows, init=theta_init)
        if isinstance(clip, str):
            if clip != "auto":
                raise ValueError(f"clip must be a positive number, None or 'auto', got {clip!r}")
            clip = auto_clip(self.calibration)
        kernels.check_clip(clip)
        self.rotary = rotary
        if rotary:
            check_rotary(V, K, self.calibration.ticks)
        elif rotary_keys or rotary_gain is not None:
            raise ValueError(f"rotary_keys and rotary_gain belong to rotary rows, got {rotary_keys} and {rotary_gain} with rotary=False; "
                             "leave them out, or pass rotary=True")
        self.rotary_key = nn.Linear(D, K, bias=False) if rotary_keys else None
        self.rotary_query = nn.Linear(D, K, bias=False) if rotary_keys else None
        if tied_start:
            self.query.load_state_dict(self.key.state_dict())
            if self.rotary_key is not None and self.rotary_query is not None:
                self.rotary_query.load_state_dict(self.rotary_key.state_dict())
        gain = None if rotary_gain is None else nn.Parameter(torch.tensor(check_number("rotary_gain", rotary_gain)))
        self.register_parameter("rotary_gain", gain)
        self.register_buffer("_turns", turns(K) if rotary else None, persistent=False)
        self.clip: float | None = clip   # type: ignore[assignment]
        self.shortcut = nn.Linear(D, V) if shortcut else None
        self.read_norm = nn.LayerNorm(V, elementwise_affine=False) if read_norm else None
        self.out = nn.Linear(V, self.output_size)
        width = 2 * K + V + (K if isinstance(self.calibration, Theta) else 0) + (V if shortcut else 0) + 1 + (2 * K if rotary_keys else 0)
        self._rounding = -width % 8     # rows of zeros that round the joint projection up to 8s; acting on a GPU it takes all of them
        self.register_buffer("_padding", torch.zeros(max(self._rounding, WIDE - width), D), persistent=False)

    @classmethod
    @form(PAPER)
    def paper(cls, input_size: int, output_size: int | None = None, memory_size: int = 128, **options: Any) -> SHM:
        """The paper's memory: a random row of theta at every step, Xavier start, nothing on the read, no limit.

        Additions to the paper, from its released code: `input_norm`, `normalize_keys` and `shortcut`; switch them off by name.
        """
        return cls(input_size, output_size, memory_size, **{**PAPER, **options})

    @classmethod
    @form(RELEASE)
    def release(cls, input_size: int, output_size: int | None = None, memory_size: int = 128, **options: Any) -> SHM:
        """The released code's memory: `SHM.paper` with row 0 of theta at every step."""
        return cls(input_size, output_size, memory_size, **{**RELEASE, **options})

    @classmethod
    def choose_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        chosen = dict(options)
        if options.get("key_size", 0) is None and "memory_size" in options:
            chosen["key_size"] = options["memory_size"]
        if isinstance(options.get("clip"), str) and options["clip"] == "auto" and "calibration" in options:
            chosen["clip"] = auto_clip(options["calibration"])
        return chosen

    def initial_state(self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
                      generator: torch.Generator | None = None) -> SHMState:
        """An empty memory; the clock starts at a random place, drawn with `generator`, where the calibration uses one."""
        check_size("batch_size", batch_size)
        device, dtype = self.state_options(device, dtype)
        M = torch.zeros(batch_size, self.memory_size, self.key_size, device=device, dtype=dtype)
        if self.calibration.ticks is None:
            return SHMState(M, torch.zeros(batch_size, dtype=torch.int64, device=device))
        source = device if generator is None else generator.device
        return SHMState(M, torch.randint(1 << 62, (batch_size,), device=source, generator=generator).to(device))

    def forward(self, x: Tensor, state: SHMState | None = None, reset: Tensor | None = None,
                rows: Tensor | None = None, *, resets_only_at_start: bool = False, starts_fresh: bool = False) -> tuple[Tensor, SHMState]:
        """x [B, T, D], reset [B, T] bool -> y [B, T, output_size] and the state after step T.

        rows [B, T] int64 sets the rows of theta instead of the clock's draw (for tests and published traces).
        """
        return self._forward(x, state, reset, rows, None, resets_only_at_start, starts_fresh)

    def through(self, layer: nn.Linear, x: Tensor, state: State | None = None, reset: Tensor | None = None, *,
                resets_only_at_start: bool = False, starts_fresh: bool = False) -> tuple[Tensor, State]:
        """`layer` on what `forward` gives. Its weights and the output layer's are multiplied first, so nothing is `output_size` wide."""
        if self._own_forward or not _acting.are_linear(self.out, layer):
            return super().through(layer, x, state, reset, resets_only_at_start=resets_only_at_start, starts_fresh=starts_fresh)
        last = layer.weight @ self.out.weight, F.linear(self.out.bias, layer.weight, layer.bias)
        return self._forward(x, state, reset, None, last, resets_only_at_start, starts_fresh)

    def fold(self, weight: Tensor, bias: Tensor | None) -> Any:
        """With the output layer multiplied out, and the joint projection's weights side by side. (On a CPU `step` is faster.)"""
        own = type(self).step is not SHM.step or not _acting.overrides_nothing(type(self))
        if own or not _acting.are_linear(self.out, *self._projections):
            return super().fold(weight, bias)
        return Folded(weight @ self.out.weight, F.linear(self.out.bias, weight, bias), self._joint(True))

    def step_through(self, folded: Any, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        if not isinstance(folded, Folded):
            return super().step_through(folded, x, state, reset)
        y, after = self._forward(x[:, None], state, None if reset is None else reset[:, None], None, folded[:2], False, False, folded.joint)
        return y[:, 0], after

    def _forward(self, x: Tensor, state: Any, reset: Tensor | None, rows: Tensor | None, last: tuple[Tensor, Tensor] | None,
                 resets_only_at_start: bool, starts_fresh: bool, joint: Tensor | None = None) -> tuple[Tensor, SHMState]:
        """`forward` with weight and bias `last` in place of the output layer's, and the weights `joint` of all projections."""
        self.check_inputs(x, state, reset)
        if state is None:
            state = self.initial_state(x.shape[0], device=x.device)
        if state.M.shape[1:] != (self.memory_size, self.key_size):
            raise ValueError(f"state.M must have shape [B, {self.memory_size}, {self.key_size}], got {list(state.M.shape)}")
        if not state.M.is_floating_point():
            raise TypeError(f"state.M must have a floating dtype, got {state.M.dtype}")
        if state.clock.dtype != torch.int64 or state.clock.ndim != 1:
            raise TypeError(f"state.clock must be an int64 tensor of shape [B], got {state.clock.dtype} {list(state.clock.shape)}; "
                            "keep what initial_state() gave, or use hm.states.to_vector and from_vector")
        clock = self._clocks(state.clock, x.shape[1], reset)                       # [B, T]
        M: Tensor | None = state.M
        if reset is not None and resets_only_at_start and x.shape[1] > 1:
            M, reset = None if starts_fresh else torch.where(reset[:, 0, None, None], 0.0, state.M), None
        x = x if self.norm is None else self.norm(x)
        k, q, v, vc, shortcut, bias, turning = self._project(x) if joint is None else self._project(x, joint)
        C = self._calibrate(x, clock, rows, vc)
        h, after = self._remember(C, v, k, q, M, reset, clock, turning)
        y = self._read(h, shortcut, bias, last)
        return y, SHMState(after, state.clock if self._ticks is None else clock[:, -1].clone())

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """One step: x [B, input_size], reset [B] bool -> y [B, output_size] and the next state; without gradients on a CPU, in one call."""
        done = _acting.step(self, x, state, reset)
        if done is None:
            return super().step(x, state, reset)
        y, M, clock = done
        return y, SHMState(M, clock)

    @torch.no_grad()
    def inspect(self, x: Tensor, state: State, reset: Tensor | None = None) -> dict[str, Shown]:
        """M, C, U, eta and h = M q."""
        return _inside.look(self, x, state, reset)

    @property
    def _projections(self) -> list[nn.Linear]:
        """The linear maps of x, in the order of `widths`; behind those the rotary rows' own, where `kernels.gates` sees padding."""
        vc = self.calibration.vc if isinstance(self.calibration, Theta) else None
        layers = (self.key, self.query, self.value, vc, self.shortcut, self.eta, self.rotary_key, self.rotary_query)
        return [layer for layer in layers if layer is not None]

    def _joint(self, wide: bool) -> Tensor:
        """The weights of the projections, one below the other. wide: with all rows of zeros that suit a GPU that acts."""
        rows = self._padding if wide else self._padding[: self._rounding]
        return torch.cat([*(layer.weight for layer in self._projections), rows])

    def _project(self, x: Tensor, joint: Tensor | None = None) -> tuple[
            Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, tuple[Tensor, Tensor] | None]:
        """k, q [B, T, K], gated v [B, T, V]; vc [B, T, K], shortcut [B, T, V] and a bias still to be added, None where there is none; and
        keys and queries of the rotary rows, not turned yet.

        All linear maps of x are one matrix product. A layer that was replaced, or has a hook, is called instead.
        """
        table, shortcut, bias, layers = isinstance(self.calibration, Theta), self.shortcut, None, self._projections
        if _acting.are_linear(*layers):
            P = F.linear(x, self._joint(x.is_cuda and not torch.is_grad_enabled()) if joint is None else joint)
            bias = None if shortcut is None else shortcut.bias
        else:
            P = torch.cat([layer(x) for layer in layers], dim=-1)
        found = kernels.gates(P, self.memory_size, self.key_size, self.normalize_keys, table, shortcut is not None, self.backend,
                              self.soft_keys)
        turning: Any = None
        if self.rotary_key is not None:
            start = sum(widths(self.memory_size, self.key_size, table, shortcut is not None))
            own = P[..., start:start + 2 * self.key_size].unflatten(-1, (2, self.key_size))
            turning = (sum_to_one(positive(own, self.soft_keys)) if self.normalize_keys else own).unbind(-2)
        elif self.rotary:
            turning = found[:2]
        return *found, bias, turning

    def _read(self, h: Tensor, shortcut: Tensor | None, bias: Tensor | None, last: tuple[Tensor, Tensor] | None) -> Tensor:
        """y from M q: the norm, the shortcut and its bias, the output layer."""
        if last is None and _acting.are_linear(self.out):
            last = self.out.weight, self.out.bias
        eps = None if self.read_norm is None else self.read_norm.eps
        if self.rotary:
            h, eps = norm_halves(h, eps, self.rotary_gain), None
        if last is not None and h.is_cuda and not torch.is_grad_enabled():
            return kernels.readout(h, shortcut, bias, *last, eps, self.backend)
        if eps is not None:
            h = F.layer_norm(h, (self.memory_size,), None, None, eps)
        if last is None:
            h = h if bias is None else h + bias
            return self.out(h if shortcut is None else h + shortcut)
        weight, offset = last
        if bias is not None and offset is not None:
            offset = F.linear(bias, weight, offset)                                # W (h + b_s) + b_o = W h + (W b_s + b_o)
        elif bias is not None:
            h = h + bias
        return F.linear(h if shortcut is None else h + shortcut, weight, offset)

    @property
    def _ticks(self) -> str | None:
        """When the clock advances: at every "step", at the start of every "episode", or never."""
        return "step" if self.rotary else self.calibration.ticks

    def _clocks(self, clock: Tensor, T: int, reset: Tensor | None) -> Tensor:
        """The clock's reading at each step [B, T]."""
        ticks = self._ticks
        if ticks == "step":
            return clock[:, None] + torch.arange(1, T + 1, device=clock.device)
        if ticks == "episode" and reset is not None:
            return clock[:, None] + reset.cumsum(dim=1)
        return clock[:, None].expand(-1, T)

    def _calibrate(self, x: Tensor, clock: Tensor, rows: Tensor | None, vc: Tensor | None) -> Factors | Tensor | None:
        if isinstance(self.calibration, Theta):
            return self.calibration(x, clock, rows, vc)
        if rows is not None:
            raise ValueError(f"rows was given, but calibration {type(self.calibration).__name__} has no table of rows")
        return self.calibration(x, clock)

    def _turn(self, x: Tensor, clock: Tensor) -> Tensor:
        """Keys, or queries, of the rotary rows [B, T, K], turned by the angles of their steps."""
        return rotate(x, *angles(clock, self._turns, x.dtype))

    def _remember(self, C: Factors | Tensor | None, v: Tensor, k: Tensor, q: Tensor, M: Tensor | None, reset: Tensor | None,
                  clock: Tensor, turning: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """h [B, T, V] and M after the last step."""
        if turning is None:
            return self._write(C, v, k, q, M, reset)
        return remember_halves(self._write, C, v, torch.stack((k, q)), self._turn(torch.stack(turning), clock), M, reset)

    def _write(self, C: Factors | Tensor | None, v: Tensor, k: Tensor, q: Tensor, M: Tensor | None,
               reset: Tensor | None) -> tuple[Tensor, Tensor]:
        if C is None:
            return kernels.shm(None, None, v, k, q, M, reset, self.clip, "none", self.backend)
        if isinstance(C, Factors):
            return kernels.shm(C.theta, C.vc, v, k, q, M, reset, self.clip, C.form, self.backend)
        if self.clip is not None:
            raise ValueError("clip works with a calibration that gives Factors or None, "
                             f"{type(self.calibration).__name__} gives a tensor C; use clip=None")
        U = v[..., :, None] * k[..., None, :]                                          # eq. 9
        return kernels.hadamard(C, U, q, M, reset, self.backend)   # type: ignore[return-value]   # a pair, because q is given

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.output_size}, memory_size={self.memory_size}, row_mode={self.row_mode!r}, clip={self.clip}"
