"""When and how SHM takes an acting step in one fused call (`kernels/shm/act_cpu.py`) instead of through `forward`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as every_module

from ..kernels import _backends
from ..kernels._ops import undisturbed
from .calibration import DriftTheta, ExpTheta, Theta

if TYPE_CHECKING:
    from .shm import SHM

_KEY = ("SHM.step", "cpu", "cpu")   # among the backends that failed


def step(memory: SHM, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Tensor, Tensor] | None:
    """y, M and the clock after one step; None where the fused call cannot replace `forward`, or where `forward` has an error to raise.

    It can on a CPU, in float32, without gradients, with theta from a table and the layers that the module was built with, where nothing
    compiles, traces, transforms, autocasts or hooks. A microsecond per line is too much here: every tensor is checked once.
    """
    if memory.backend not in ("auto", "cpu") or _KEY in _backends._failed or not _undisturbed() or not _usable(memory.backend):
        return None
    weights = _weights(memory)
    if weights is None:
        return None
    D, V, K = memory.input_size, memory.memory_size, memory.key_size
    if type(x) is not Tensor or x.ndim != 2 or not isinstance(state, memory.state_type):
        return None
    B, M, clock = x.shape[0], state.M, state.clock
    if B < 1 or not _plain(x, (B, D)) or not _plain(M, (B, V, K)) or not _plain(clock, (B,), torch.int64):
        return None
    if reset is not None and not _plain(reset, (B,), torch.bool):
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, M, *weights) if t is not None):
        return None
    clip: Any = memory.clip
    calibration: Any = memory.calibration
    if clip is not None and not (type(clip) in (int, float) and clip > 0):
        return None

    if memory._ticks == "step":      # as in `SHM._clocks`
        clock = clock + 1
    elif memory._ticks == "episode":
        clock = clock.clone() if reset is None else clock + reset
    try:
        from ..kernels.shm import act_cpu

        if not act_cpu.usable():
            return None
        y, M = act_cpu.act(
            x.contiguous(), M.contiguous(), None if reset is None else reset.contiguous(),
            None if calibration.row_mode == "first" else clock.contiguous(), act_cpu.Weights(*weights),   # type: ignore[arg-type]
            turns=memory._turns if memory.rotary else None, position=clock.contiguous(),
            norm_eps=0.0 if memory.norm is None else memory.norm.eps,
            read_eps=None if memory.read_norm is None else memory.read_norm.eps,
            normalize_keys=memory.normalize_keys, clip=clip, form=calibration.form, softness=memory.soft_keys,
        )
    except Exception as error:   # a kernel that cannot be built here
        _give_up(error)
        return None
    return y, M, clock


def _undisturbed() -> bool:
    """Whether operations on tensors just run."""
    return undisturbed() and not (
        torch.is_autocast_enabled("cpu")
        or forward_ad._current_level >= 0
        or every_module._global_forward_hooks
        or every_module._global_forward_pre_hooks
    )


def _usable(backend: str) -> bool:
    return _backends.missing("cpu", "cpu") is None and (backend == "cpu" or ("shm", "cpu", "cpu") not in _backends._failed)


def _plain(t: Any, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> bool:
    """A plain dense CPU tensor of that shape and dtype, not a subclass."""
    kind = type(t)
    if kind is not Tensor and kind is not nn.Parameter:
        return False
    return t.is_cpu and t.dtype is dtype and t.shape == shape and t.layout is torch.strided and not t.is_neg()


_OPTIONAL = ("norm", "shortcut", "read_norm")
_Absent = object()   # instead of a layer that the module does not have
_METHODS = ("forward", "_project", "_read", "_clocks", "_calibrate", "_turn", "_remember", "_write",
            "check_inputs")
_as_made: dict[type, bool] = {}


def overrides_nothing(kind: type) -> bool:
    """Whether a class overrides none of the methods that the fused call replaces."""
    if kind not in _as_made:
        from .shm import SHM

        _as_made[kind] = all(getattr(kind, name, None) is getattr(SHM, name, None) for name in _METHODS)
    return _as_made[kind]


def _weights(memory: SHM) -> list[Tensor | None] | None:
    """The fields of `act_cpu.Weights`, or None if a layer is not what SHM made it, or has a hook."""
    if not overrides_nothing(type(memory)) or altered(memory):
        return None
    D, V, K, O = memory.input_size, memory.memory_size, memory.key_size, memory.output_size
    layers: dict[str, Any] = memory._modules   # looking up an attribute of a module takes half a microsecond
    calibration: Any = layers.get("calibration")
    if type(calibration) not in (Theta, ExpTheta, DriftTheta) or altered(calibration):
        return None
    theta = calibration._parameters.get("theta")
    if theta is None or not _plain(theta, (theta.shape[0], V)) or not theta.is_contiguous():
        return None
    norm, shortcut, read_norm = (layers[name] if name in layers else memory.__dict__.get(name) for name in _OPTIONAL)
    found: list[Tensor | None] = [theta]
    for layer, kind, shape, biased in (
        (layers.get("key"), nn.Linear, (K, D), False), (layers.get("query"), nn.Linear, (K, D), False),
        (layers.get("value"), nn.Linear, (V, D), False), (layers.get("eta"), nn.Linear, (1, D), False),
        (calibration._modules.get("vc"), nn.Linear, (K, D), False), (layers.get("out"), nn.Linear, (O, V), True),
        (norm or _Absent, nn.LayerNorm, (D,), True), (shortcut or _Absent, nn.Linear, (V, D), True),
        (layers.get("rotary_key") or _Absent, nn.Linear, (K, D), False), (layers.get("rotary_query") or _Absent, nn.Linear, (K, D), False),
    ):
        if layer is _Absent:
            found += [None, None] if biased else [None]
            continue
        if type(layer) is not kind or altered(layer):
            return None
        weight: Any = layer._parameters.get("weight")
        bias: Any = layer._parameters.get("bias")
        if not _plain(weight, shape) or not weight.is_contiguous() or (bias is not None) is not biased:
            return None
        found.append(weight)
        if biased:
            if not _plain(bias, shape[:1]) or not bias.is_contiguous():
                return None
            found.append(bias)
    if read_norm is not None and (type(read_norm) is not nn.LayerNorm or altered(read_norm) or read_norm._parameters["weight"] is not None
                                  or read_norm.normalized_shape != (V,)):
        return None
    drift: Any = calibration._parameters.get("drift")
    if drift is not None and not (_plain(drift, (V,)) and drift.is_contiguous()):
        return None
    gain: Any = memory._parameters.get("rotary_gain")
    if gain is not None and not _plain(gain, ()):
        return None
    return [*found, drift, gain]


def are_linear(*layers: nn.Module) -> bool:
    """Whether each layer is its weight and bias and nothing more."""
    return all(type(layer) is nn.Linear and not altered(layer) for layer in layers)


def altered(layer: nn.Module) -> bool:
    """Whether calling a layer does more than its class defines: hooks, or another forward."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or "forward" in layer.__dict__)


def _give_up(error: Exception) -> None:
    _backends._failed[_KEY] = f"{type(error).__name__}: {error}"
    warnings.warn(
        "hadamem: the fused step of SHM failed on cpu and is not used again in this process; using forward() instead, which "
        f"is slower. Cause: {_backends._failed[_KEY][:500]}",
        RuntimeWarning,
        stacklevel=4,
    )
