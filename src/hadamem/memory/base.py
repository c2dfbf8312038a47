"""The one interface of every memory: features of a batch of sequences in, readouts and the carried state out."""

from __future__ import annotations

import inspect
import numbers
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels._backends import OPS
from ..kernels._checks import check_dense, check_reset
from ..names import shorten
from ..ranges import check_float
from ..states import REAL, State, vector_width, where
from .inspection import Shown, show_state

HINTS = ("resets_only_at_start", "starts_fresh")   # of a caller that knows its sequences, see Memory


class Memory(nn.Module):
    """Maps a batch of step features to memory readouts, carrying state between calls.

    A subclass sets `input_size` and `output_size`, and defines `initial_state` and `forward`; `step`, `state_size` and
    `state_width` follow from them. `hadamem.testing.check_memory` checks the contract:

    - the state is a NamedTuple of tensors with the batch as first axis; it goes in and comes out, the module never stores or changes it;
    - reset[b, t] means that step t of row b opens a new episode: the old state is dropped *before* x[b, t] is read, by selection;
    - one whole sequence, any split of it with the state carried, and single steps give the same outputs.

    `forward` may take two more keyword arguments, hints by which a caller that knows its sequences saves time. They change no result:

    - resets_only_at_start: only the first step of a sequence can open an episode, reset[:, 1:] is all False;
    - starts_fresh: the first step of every row opens one (in sequences longer than one step), so the state that comes in is not needed.
    """

    input_size: int
    output_size: int
    state_type: type | None = None   # the NamedTuple of its states, if forward() should refuse any other
    _hints: tuple[str, ...] = ()     # those of HINTS that forward() takes, found once per class

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._hints = tuple(name for name in HINTS if name in inspect.signature(cls.forward).parameters)

    def initial_state(self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
                      generator: torch.Generator | None = None) -> State:
        """A fresh state for `batch_size` rows (default device and dtype: the module's; dtype at least float32)."""
        raise NotImplementedError(f"{type(self).__name__} must define initial_state(batch_size, device, dtype, generator)")

    def forward(self, x: Tensor, state: State | None = None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """x [B, T, input_size], reset [B, T] bool -> y [B, T, output_size] and the state after step T; state None: a fresh one."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(x, state, reset)")

    def step(self, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """One step: x [B, input_size], reset [B] bool -> y [B, output_size] and the next state."""
        check_dense("x", x)
        if x.ndim != 2:
            raise ValueError(f"x must have shape [B, input_size] in step(), got {list(x.shape)}; use forward() for sequences")
        if isinstance(reset, Tensor) and reset.ndim != 1:
            raise ValueError(f"reset must have shape [B] = [{x.shape[0]}] in step(), got {list(reset.shape)}")
        y, state = self.forward(x[:, None], state, reset[:, None] if isinstance(reset, Tensor) else reset)
        return y[:, 0], state

    def through(self, layer: nn.Linear, x: Tensor, state: State | None = None, reset: Tensor | None = None, *,
                resets_only_at_start: bool = False, starts_fresh: bool = False) -> tuple[Tensor, State]:
        """`layer` on what `forward` gives. A memory that ends in a linear layer itself may multiply the two out, which is cheaper.

        The hints are passed on to a `forward` that takes them.
        """
        y, state = self.forward(x, state, reset, **self.hints(resets_only_at_start, starts_fresh))
        return layer(y), state

    def fold(self, weight: Tensor, bias: Tensor | None) -> Any:
        """Prepare for steps through a linear layer while no weight changes: what `step_through` takes. A memory may multiply out more."""
        return weight, bias

    def step_through(self, folded: Any, x: Tensor, state: State, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """The layer of `fold` on what `step` gives."""
        y, state = self.step(x, state, reset)
        return F.linear(y, *folded), state

    @torch.no_grad()
    def inspect(self, x: Tensor, state: State, reset: Tensor | None = None) -> dict[str, Shown]:
        """What to show of one step, by name: x [B, input_size], the state before it, reset [B] bool.

        Default: the state's tensors after the step. A memory that has more to show overrides it; `hadamem inspect` draws what it gives.
        """
        return show_state(self.step(x, state, reset)[1])

    def reopened(self, state: State, reset: Tensor | None) -> State:
        """The state that a step starts from: a fresh one in the rows where reset [B] is true."""
        if reset is None:
            return state
        return where(reset, self.initial_state(reset.shape[0], device=reset.device), state)

    def hints(self, resets_only_at_start: bool, starts_fresh: bool) -> dict[str, bool]:
        """The keyword arguments among these that `forward` takes: memory(x, state, reset, **memory.hints(True, True))."""
        given = {"resets_only_at_start": resets_only_at_start, "starts_fresh": starts_fresh}
        return {name: given[name] for name in self._hints}

    @classmethod
    def choose_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        """The constructor's options with those replaced that leave a choice to the class ("auto", None); see `memory.resolve_options`."""
        return options

    @property
    def state_size(self) -> int:
        """How many real numbers of memory one batch row holds (counters that only drive randomness are not counted)."""
        state = self.initial_state(1, device="meta")
        return sum(x.numel() * (2 if x.is_complex() else 1) for x in state if x.is_floating_point() or x.is_complex())

    @property
    def state_width(self) -> int:
        """How many float32 numbers `hm.states.to_vector` writes for one batch row of a state, counters included."""
        return vector_width(self)

    def state_options(self, device: Any, dtype: torch.dtype | None) -> tuple[torch.device, torch.dtype]:
        """Device and dtype for a new state: those given, else the module's, with at least float32."""
        parameter = next(self.parameters(), None)
        if device is None:
            device = parameter.device if parameter is not None else torch.get_default_device()
        if dtype is None:
            dtype = parameter.dtype if parameter is not None else torch.get_default_dtype()
        return torch.device(device), torch.promote_types(dtype, torch.float32)

    def widen(self, state: State) -> State:
        """The state in the dtype to compute with: the wider of the state's and the module's, at least float32.

        Complex fields become complex numbers of that width; counters stay as they are.
        """
        parameter, wide = next(self.parameters(), None), torch.float32
        for s in (*state, *([] if parameter is None else [parameter])):
            wide = torch.promote_types(wide, REAL.get(s.dtype, s.dtype)) if s.is_floating_point() or s.is_complex() else wide
        kinds = [torch.promote_types(wide, s.dtype) if s.is_floating_point() or s.is_complex() else s.dtype for s in state]
        return type(state)(*(s.to(kind) for s, kind in zip(state, kinds, strict=True)))

    def check_inputs(self, x: Tensor, state: State | None, reset: Tensor | None) -> None:
        """Raise a ValueError or TypeError that names the argument, its value and the fix."""
        check_dense("x", x)
        if not x.is_floating_point():
            raise TypeError(f"x must have a floating dtype, got {x.dtype}; convert it with x.float()")
        if x.ndim != 3 or x.shape[-1] != self.input_size:
            raise ValueError(f"x must have shape [B, T, input_size={self.input_size}], got {list(x.shape)}"
                             + ("; use step() for a single step" if x.ndim == 2 else ""))
        B, T = x.shape[:2]
        if B < 1 or T < 1:
            raise ValueError(f"x must hold at least one row and one step, got shape {list(x.shape)}")
        parameter = next(self.parameters(), None)
        if parameter is not None and parameter.device != x.device:
            raise ValueError(f"x is on {x.device} but the module is on {parameter.device}; move one of them with .to()")
        if parameter is not None and parameter.dtype != x.dtype and not _autocasts(x):
            raise TypeError(f"x is {x.dtype} but the module's parameters are {parameter.dtype}; convert x with x.to({parameter.dtype}) "
                            f"or the module with .to({x.dtype})")
        if state is not None:
            kind: type[Any] = self.state_type or tuple
            if not isinstance(state, kind) or not all(isinstance(s, Tensor) for s in state):
                raise TypeError(f"state must be what initial_state() or an earlier call returned (a {kind.__name__}), "
                                f"got {type(state).__name__}")
            for name, s in zip(getattr(state, "_fields", range(len(state))), state, strict=False):
                check_dense(f"state.{name}", s)
                if s.is_floating_point() and s.dtype.itemsize == 1:
                    raise TypeError(f"state.{name} must have a dtype of 16 bits or more, got {s.dtype}; pass what initial_state() returned")
                if s.ndim < 1 or s.shape[0] != B:
                    raise ValueError(f"state.{name} must have batch size {B} like x, got shape {list(s.shape)}")
                if s.device != x.device:
                    raise ValueError(f"state.{name} is on {s.device} but x is on {x.device}; move it with hm.states.apply")
        check_reset(reset, B, T, x.device)


def _autocasts(x: Tensor) -> bool:
    return torch.amp.is_autocast_available(x.device.type) and torch.is_autocast_enabled(x.device.type)


LARGEST_SIZE, MOST_ROUNDS = 2**24, 1024      # of an axis; of layers, and of steps within a step: more would never end


def check_size(name: str, value: object, most: int = LARGEST_SIZE) -> int:
    """A whole number from 1 to `most`, or an error that names the argument."""
    if isinstance(value, bool) or not (isinstance(value, (int, torch.SymInt)) or hasattr(value, "__index__")):
        raise TypeError(f"{name} must be a positive int, got {shorten(value)}")
    try:
        size = operator.index(value)   # takes numpy's integers too
    except TypeError:      # an array that holds no single integer
        raise TypeError(f"{name} must be a positive int, got {shorten(value)}") from None
    if size <= 0:
        raise ValueError(f"{name} must be positive, got {shorten(size)}")
    if size > most:
        raise ValueError(f"{name} must be at most {most}, got {shorten(size)}")
    return size


def check_number(name: str, value: object) -> float:
    """A finite number, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):   # takes numpy's floats too
        raise TypeError(f"{name} must be a number, got {value!r}; pass a float")
    return check_float(name, value)


def check_flag(name: str, value: object) -> bool:
    """True or False, or an error that names the argument."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}; pass a bool")
    return value


def check_backend(op: str, backend: str, *others: str) -> str:
    """"auto", a backend that the operation has (here or elsewhere), or one of the others that a memory has; or an error that lists them."""
    known = ("auto", *OPS[op], *others)
    if not isinstance(backend, str) or backend not in known:
        raise ValueError(f"unknown backend {backend!r}; choose from {', '.join(known)}")
    return backend


def check_state(name: str, x: Tensor, shape: tuple[int, ...], kind: str = "floating", fix: str = "") -> None:
    """A field of a state has `shape` after its batch axis and a dtype of that kind ("floating" or "complex"), or an error that names it."""
    if tuple(x.shape[1:]) != shape:
        wanted = ", ".join(map(str, ("B", *shape)))
        raise ValueError(f"state.{name} must have shape [{wanted}], got {list(x.shape)}" + (f"; {fix}" if fix else ""))
    if not (x.is_complex() if kind == "complex" else x.is_floating_point()):
        raise TypeError(f"state.{name} must have a {kind} dtype, got {x.dtype}")
