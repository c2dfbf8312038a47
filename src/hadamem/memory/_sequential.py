"""Loops over time of memories whose steps depend on the memory itself, so that no scan computes them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from ..kernels._checks import without_autocast

F = TypeVar("F", bound=Callable[..., Any])
_caller = threading.local()   # .compiles: the loop is called from code that is being compiled


def sequential(loop: F) -> F:
    """A method (x, ...) that runs as it is: in the dtype of its arguments, also under autocast, and outside of compiled graphs.

    torch.compile would unroll all T steps, which takes minutes, so the graph breaks around the loop, as it does around torch.nn.GRU;
    a loop of many small operations has its step compiled instead, see `one_step`.
    (`torch.compiler.disable` is called late because it imports the compiler, which takes longer than importing hadamem.)
    """

    def uncast(self: Any, x: torch.Tensor, *args: Any) -> Any:
        with without_autocast(x.device.type):
            return loop(self, x, *args)

    def inside(*args: Any) -> Any:
        _caller.compiles = True
        try:
            return uncast(*args)
        finally:
            _caller.compiles = False

    @functools.wraps(loop)
    def run(*args: Any) -> Any:
        return torch.compiler.disable(inside)(*args) if torch.compiler.is_compiling() else uncast(*args)

    return run   # type: ignore[return-value]


def one_step(step: F, x: torch.Tensor) -> F:
    """The step of a loop, a plain function: itself, or on a GPU compiled where the loop's caller is.

    On a CPU the compiler takes longer than it saves. A second batch size makes the compiled step's batch dynamic, so that others follow
    without a compilation.
    """
    return _compiled(step) if x.is_cuda and getattr(_caller, "compiles", False) else step


@functools.cache
def _compiled(step: F) -> F:
    return cast(F, torch.compile(step))
