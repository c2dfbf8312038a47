"""`random.mix` and `random.integers` in one kernel, for CUDA tensors: eager PyTorch launches a dozen.

Triton is imported at the first use. Without it, under torch.compile (which fuses by itself) and under transforms, the plain operations
are used.
"""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor


def usable(counter: Tensor) -> bool:
    return counter.is_cuda and type(counter) is Tensor and not torch.compiler.is_compiling() and _present()


@cache
def _present() -> bool:
    return importlib.util.find_spec("triton") is not None and torch.version.hip is None


def mix(counter: Tensor) -> Tensor:
    counter = counter.contiguous()
    out = torch.empty_like(counter)
    _launch(counter, counter, 1, out, kind=0)
    return out


def integers(counter: Tensor, high: int | Tensor) -> Tensor:
    if isinstance(high, Tensor):
        counter, highs = (x.contiguous() for x in torch.broadcast_tensors(counter, high))
        out = torch.empty_like(counter)
        _launch(counter, highs, 1, out, kind=2)
    else:
        counter = counter.contiguous()
        out = torch.empty_like(counter)
        _launch(counter, counter, high, out, kind=1)
    return out


def _launch(counter: Tensor, highs: Tensor, high: int, out: Tensor, kind: int) -> None:
    n, block = out.numel(), 256
    if n:
        with on(out):
            _kernels().draw_kernel[(-(-n // block),)](counter, highs, out, high, n, KIND=kind, BLOCK=block, num_warps=4)


def on(x: Tensor) -> AbstractContextManager[Any]:
    """The device of x, for a launch; nothing to do in Triton's interpreter."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@cache
def _kernels() -> Any:
    from . import kernels

    return kernels
