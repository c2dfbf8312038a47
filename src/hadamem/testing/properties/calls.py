"""Properties of single calls: interface, initial state, arguments left unchanged, repeatable results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import states
from ..trial import Broken, Trial, is_real, same_kind


def interface(trial: Trial) -> None:
    """The module has the attributes and methods of `hadamem.Memory`, with the right shapes, dtypes and types."""
    for name in ("initial_state", "step"):
        if not callable(getattr(trial.module, name, None)):
            raise Broken(f"the module has no method {name}(); inherit from hadamem.Memory")
    output_size = getattr(trial.module, "output_size", None)
    if not isinstance(output_size, int):
        raise Broken(f"module.output_size must be an int, got {output_size!r}")
    state = trial.state(used=False)
    named = isinstance(state, tuple) and hasattr(state, "_fields")
    if not named or not all(isinstance(s, Tensor) for s in state):
        raise Broken(f"initial_state() must return a NamedTuple of tensors, got {type(state).__name__}")
    other = trial.state(B=trial.B + 1, used=False)
    for name, a, b in zip(state._fields, state, other, strict=True):
        if a.ndim < 1 or a.shape[0] != trial.B or b.shape[0] != trial.B + 1 or a.shape[1:] != b.shape[1:]:
            raise Broken(f"state.{name} must have the batch as its first axis and no other, got shapes "
                         f"{list(a.shape)} and {list(b.shape)} for batches of {trial.B} and {trial.B + 1}")
    y, after = trial.run(trial.x(), state, trial.resets())
    if tuple(y.shape) != (trial.B, trial.T, output_size):
        raise Broken(f"y must have shape [B, T, output_size] = [{trial.B}, {trial.T}, {output_size}], "
                     f"got {list(y.shape)}")
    if y.dtype != trial.dtype or y.device != trial.device:
        raise Broken(f"y must have the dtype and device of x, {trial.dtype} on {trial.device}, "
                     f"got {y.dtype} on {y.device}")
    same_kind(after, state, "the state that forward() returns")
    _, after = trial.module.step(trial.x()[:, 0], state)
    same_kind(after, state, "the state that step() returns")


def initial_state(trial: Trial) -> None:
    """initial_state() respects batch size, device, dtype and generator."""
    initial = trial.module.initial_state
    a, b = trial.state(used=False), trial.state(used=False)
    for name, s, t in zip(a._fields, a, b, strict=True):
        if not torch.equal(s, t):
            raise Broken(f"state.{name} differs between two generators with the same seed; draw from `generator` only")
        if s.device != trial.device:
            raise Broken(f"state.{name} must be on the module's device {trial.device} by default, got {s.device}")
    before = torch.get_rng_state()
    trial.state(used=False)
    if not torch.equal(before, torch.get_rng_state()):
        raise Broken("initial_state(generator=...) also draws from torch's global generator")
    for dtype in (torch.float32, torch.float64):
        for name, s in zip(a._fields, initial(trial.B, dtype=dtype), strict=True):
            wide = dtype.to_complex() if s.is_complex() else dtype
            if is_real(s) and s.dtype != wide:
                raise Broken(f"state.{name} must be {wide} for initial_state(dtype={dtype}), got {s.dtype}")
    for name, s in zip(a._fields, initial(trial.B, device="meta"), strict=True):
        if s.device.type != "meta":
            raise Broken(f"state.{name} must be on the requested device 'meta', got {s.device}")


def fresh_by_default(trial: Trial) -> None:
    """A call without a state starts from initial_state()."""
    x = trial.x()
    torch.manual_seed(7)
    y, _ = trial.run(x)
    torch.manual_seed(7)
    want, _ = trial.run(x, trial.module.initial_state(trial.B))
    trial.same(y, want, "y with state=None, against state=initial_state() under the same torch.manual_seed")


def arguments_unchanged(trial: Trial) -> None:
    """Neither forward() nor step() writes into its arguments or the module."""
    x, state, reset = trial.x(), trial.state(), trial.resets()
    parameters = {k: v.clone() for k, v in trial.module.state_dict().items()}
    before = x.clone(), states.apply(Tensor.clone, state), reset.clone()
    calls: dict[str, Callable[[], Any]] = {     # also without resets: a reset often copies the state
        "forward(reset=None)": lambda: trial.run(x, state),
        "forward()": lambda: trial.run(x, state, reset),
        "step(reset=None)": lambda: trial.module.step(x[:, 0], state),
        "step()": lambda: trial.module.step(x[:, 0], state, reset[:, 0]),
    }
    for call, make in calls.items():
        with torch.no_grad():
            make()
        if not torch.equal(x, before[0]):
            raise Broken(f"{call} wrote into x")
        if not torch.equal(reset, before[2]):
            raise Broken(f"{call} wrote into reset")
        for name, a, b in zip(state._fields, state, before[1], strict=True):
            if not torch.equal(a, b):
                raise Broken(f"{call} wrote into state.{name} in place; return a new tensor")
        for name, v in trial.module.state_dict().items():
            if not torch.equal(v, parameters[name]):
                raise Broken(f"{call} changed {name} of the module")


def repeatable(trial: Trial) -> None:
    """The same arguments give the same result, whatever was called in between."""
    x, state, reset = trial.x(), trial.state(), trial.resets()
    want, want_state = trial.run(x, state, reset)
    trial.run(trial.x(seed=2), trial.state(seed=2), None)   # changes something only if the module stores state
    got, got_state = trial.run(x, state, reset)
    trial.same(got, want, "y of the second call (does the module store its state?)")
    trial.same_state(got_state, want_state, "the second call")
