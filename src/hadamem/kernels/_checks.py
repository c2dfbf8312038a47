"""Checks at the public edge of the kernels. Each error names the argument, its value, and the fix."""

from __future__ import annotations

import numbers
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor

from ..names import shorten


def check_dense(name: str, x: object) -> Tensor:
    """`x`, which is an ordinary tensor: one with strides."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.layout != torch.strided or x.is_nested:
        kind = "a nested tensor" if x.is_nested else f"a tensor with the layout {x.layout}"
        raise TypeError(f"{name} must be a dense torch.Tensor, got {kind}; convert it with {name}.to_dense(), or pad it")
    return x


def check_tensor(name: str, x: object, shape: tuple[int | None, ...], like: Tensor, like_name: str) -> None:
    """`x` is a floating tensor of `shape` (None: any size) on the device of `like`."""
    x = check_dense(name, x)
    if not x.is_floating_point():
        raise TypeError(f"{name} must have a floating dtype, got {x.dtype}; convert it with {name}.float()")
    check_number_tensor(name, x, shape, like, like_name)


def check_number_tensor(name: str, x: object, shape: tuple[int | None, ...], like: Tensor, like_name: str) -> None:
    """`check_tensor` that takes complex tensors too."""
    x = check_dense(name, x)
    if not (x.is_floating_point() or x.is_complex()):
        raise TypeError(f"{name} must have a floating or complex dtype, got {x.dtype}; convert it with {name}.float()")
    if x.dtype.itemsize == 1:
        raise TypeError(f"{name} must have a dtype of 16 bits or more, got {x.dtype}; convert it with {name}.float()")
    if x.ndim != len(shape) or any(want is not None and got != want for got, want in zip(x.shape, shape, strict=False)):
        wanted = "[" + ", ".join("any" if s is None else str(s) for s in shape) + "]"
        raise ValueError(f"{name} must have shape {wanted} to go with {like_name} {list(like.shape)}, got {list(x.shape)}")
    if x.device != like.device:
        raise ValueError(f"{name} is on {x.device} but {like_name} is on {like.device}; move it with {name}.to({like_name}.device)")


def check_reset(reset: object, B: int, T: int, device: torch.device) -> None:
    if reset is None:
        return
    if not isinstance(reset, Tensor):
        raise TypeError(f"reset must be a bool torch.Tensor of shape [B, T], got {type(reset).__name__}")
    check_dense("reset", reset)
    if reset.dtype != torch.bool:
        raise TypeError(f"reset must be a bool tensor (True: this step opens a new episode), got {reset.dtype}; "
                        "convert it with reset.bool()")
    if tuple(reset.shape) != (B, T):
        raise ValueError(f"reset must have shape [B, T] = [{B}, {T}], got {list(reset.shape)}")
    if reset.device != device:
        raise ValueError(f"reset is on {reset.device} but the inputs are on {device}; move it with reset.to({str(device)!r})")


CLIPS = 1e-30, 1e30   # beyond, float32 loses the limit itself, or products with it


def check_clip(clip: object) -> None:
    if clip is None:
        return
    if isinstance(clip, bool) or not isinstance(clip, numbers.Real):
        raise TypeError(f"clip must be a positive number or None, got {type(clip).__name__}")
    if not CLIPS[0] <= cast(float, clip) <= CLIPS[1]:   # a Real compares like a float; mypy does not know it
        raise ValueError(f"clip must be positive, from {CLIPS[0]:g} to {CLIPS[1]:g}, got {shorten(clip)}; use clip=None for no limit")


# Asked once, at import: Dynamo cannot trace the question.
_WITH_AUTOCAST = frozenset(name for name in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(name))


def without_autocast(device_type: str) -> AbstractContextManager[None]:
    """Autocast switched off, on devices that have it."""
    return torch.autocast(device_type, enabled=False) if device_type in _WITH_AUTOCAST else nullcontext()


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The widest dtype among the inputs, at least float32: state and recurrence never run in half precision."""
    dtype = torch.float32
    for x in tensors:
        if x is not None:
            dtype = torch.promote_types(dtype, x.dtype)
    return dtype
