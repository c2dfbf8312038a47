"""Properties of the module: saving, copying, the state as a vector, other dtypes and devices."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import Tensor, nn

from ... import states
from ..trial import TOLERANCES, Broken, Trial


def state_dict(trial: Trial) -> None:
    """A saved and loaded state_dict restores the module."""
    x, state, reset = trial.x(), trial.state(), trial.resets()
    want, _ = trial.run(x, state, reset)
    file = io.BytesIO()
    torch.save(trial.module.state_dict(), file)
    file.seek(0)
    other = _copied(trial.module)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(0.5).add_(0.25)
    other.load_state_dict(torch.load(file, weights_only=True))
    trial.same(trial.run(x, state, reset, other)[0], want, "y of a copy with the loaded state_dict")


def deepcopy(trial: Trial) -> None:
    """A deep copy gives the same y and shares no parameters."""
    x, state, reset = trial.x(), trial.state(), trial.resets()
    want, _ = trial.run(x, state, reset)
    other = _copied(trial.module)
    trial.same(trial.run(x, state, reset, other)[0], want, "y of a copy")
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(0.5).add_(0.25)
    trial.same(trial.run(x, state, reset)[0], want, "y of the original after its copy was changed")


def vector(trial: Trial) -> None:
    """The state survives hadamem.states.to_vector() and from_vector()."""
    state = trial.state()
    vector = states.to_vector(state)
    width = getattr(trial.module, "state_width", vector.shape[-1])
    if width != vector.shape[-1]:
        raise Broken(f"module.state_width must be what hadamem.states.to_vector gives, {vector.shape[-1]}, got {width}")
    if vector.dtype != torch.float32 or vector.ndim != 2 or vector.shape[0] != trial.B:
        raise Broken(f"hadamem.states.to_vector must give float32 [B, n], got {vector.dtype} {list(vector.shape)}")
    back = states.from_vector(trial.module, vector)
    for name, a, b in zip(state._fields, back, state, strict=True):
        if a.dtype != b.dtype or not torch.equal(a, b):
            raise Broken(f"state.{name} is not the same after hadamem.states.to_vector and from_vector")
    trial.same(trial.run(trial.x(), back)[0], trial.run(trial.x(), state)[0], "y from the restored state")
    _, after = trial.run(trial.x().requires_grad_())
    restored = states.from_vector(trial.module, states.to_vector(after))
    for name, a, b in zip(state._fields, restored, after, strict=True):
        if b.requires_grad and not a.requires_grad:
            raise Broken(f"no gradient flows through hadamem.states.to_vector and from_vector into state.{name}")


def float64(trial: Trial) -> None:
    """A copy in float64 works."""
    _moved(trial, _copied(trial.module).to(torch.float64), torch.float64, trial.device)


def cuda(trial: Trial) -> None:
    """A copy on the GPU works."""
    _moved(trial, _copied(trial.module).to("cuda"), trial.dtype, torch.device("cuda", torch.cuda.current_device()))


def _moved(trial: Trial, module: Any, dtype: torch.dtype, device: torch.device) -> None:
    """A converted copy gives the same values up to rounding, in its own dtype and on its own device."""
    x, state, reset = trial.x(), trial.state(used=False), trial.resets()
    wide = torch.promote_types(dtype, torch.float32)
    kinds = [wide.to_complex() if s.is_complex() else wide if s.is_floating_point() else s.dtype for s in state]
    there = type(state)(*(s.to(device, kind) for s, kind in zip(state, kinds, strict=True)))
    y, after = trial.run(x.to(device, dtype), there, reset.to(device), module)
    if y.dtype != dtype or y.device != device:
        raise Broken(f"y must be {dtype} on {device}, got {y.dtype} on {y.device}")
    want, _ = trial.run(x, state, reset)
    rtol, atol = trial.tolerances.get(trial.dtype, TOLERANCES[torch.float32])
    error, limit = (y.to(want) - want).abs().max().item(), 10 * (atol + rtol * want.abs().max().item())
    if not error <= limit:
        raise Broken(f"y differs by {error:.2g} from y in {trial.dtype} on {trial.device} (allowed {limit:.1g})")
    fresh = module.initial_state(trial.B)
    for name, a, b, kind in zip(fresh._fields, fresh, after, kinds, strict=True):
        if {a.device, b.device} != {device} or {a.dtype, b.dtype} != {kind}:
            raise Broken(f"state.{name} must be {kind} on {device}, got {a.dtype} on {a.device} from "
                         f"initial_state() and {b.dtype} on {b.device} from forward()")


def _copied(module: nn.Module) -> nn.Module:
    """A deep copy. PyTorch makes none of a tensor that it could differentiate, and so none of a module that keeps one."""
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if any(isinstance(x, Tensor) and x.grad_fn is not None for x in (value if isinstance(value, (tuple, list)) else (value,))):
                raise Broken(f"the module keeps a tensor that forward() made, {'.'.join(filter(None, (name, attribute)))}: return it as a "
                             "part of the state, and store nothing")
    return copy.deepcopy(module)
