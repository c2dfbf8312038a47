"""Which backends an operation has, which of them work here, and which one `backend="auto"` takes."""

from __future__ import annotations

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

NAMES = ("reference", "scan", "cpu", "triton")
PLAIN = ("reference", "scan")   # plain PyTorch, trusted without a probe
OPS: dict[str, dict[str, Callable[..., Any]]] = {}   # the backends of each, by name; filled by `register`
PREFERRED = {"cpu": ("cpu", "scan"), "cuda": ("triton", "scan")}   # by device type; anything else takes `scan`

_failed: dict[tuple[str, str, str], str] = {}   # (op, backend, device type) -> what went wrong


def register(op: str, table: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Make an operation and its backends known. The table stays live: a line added to it is one more backend."""
    OPS[op] = table
    return table


def interpreting() -> bool:
    """Whether Triton kernels run in Triton's interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def _constant(fn: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compiler.assume_constant_result without its import of the whole compiler (a second): calls are run, not traced."""
    fn._dynamo_marked_constant = True   # type: ignore[attr-defined]
    return fn


_found: dict[str, bool] = {}


@_constant
def _importable(module: str) -> bool:
    if module not in _found:
        _found[module] = importlib.util.find_spec(module) is not None
    return _found[module]


@_constant   # traced, is_exporting() is True in torch.compile as well before PyTorch 2.13
def exporting() -> bool:
    """Whether torch.export records the operations: it must find plain PyTorch, which runs without hadamem. PyTorch 2.6 cannot tell."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def missing(backend: str, device_type: str | None = None) -> str | None:
    """Why `backend` cannot run here (on that kind of device), or None if no reason is known."""
    if backend == "cpu":
        if not _importable("numba"):
            return "numba is not installed"
        if device_type not in (None, "cpu"):
            return f"it runs on CPU tensors only, the inputs are on {device_type!r}"
    if backend == "triton":
        if not _importable("triton"):
            return "triton is not installed"
        if interpreting():
            return None
        if not torch.cuda.is_available():
            return "no CUDA device is available (TRITON_INTERPRET=1 runs it on the CPU, slowly)"
        if device_type not in (None, "cuda"):
            return f"it runs on CUDA tensors only, the inputs are on {device_type!r}"
    return None


def usable(op: str | None = None) -> list[str]:
    """Names of the backends that can run here."""
    if op is not None and op not in OPS:
        raise ValueError(f"unknown op {op!r}; choose from {', '.join(OPS)}")
    return [name for name in (NAMES if op is None else OPS[op]) if missing(name) is None]


def check_name(op: str, backend: str, device_type: str) -> None:
    """Raise unless `backend` is a known name that can run on this kind of device."""
    if not isinstance(backend, str):
        raise TypeError(f"backend must be a name, one of auto, {', '.join(OPS[op])}; got {type(backend).__name__}")
    if backend == "auto":
        return
    if backend not in OPS[op]:
        raise ValueError(f"unknown backend {backend!r} for {op}; choose from auto, {', '.join(OPS[op])}")
    reason = missing(backend, device_type)
    if reason is not None:
        raise ValueError(f"backend={backend!r} of {op} cannot be used: {reason}; use backend='auto' or one of {usable(op)}")


def candidates(op: str, device_type: str) -> list[str]:
    """Backends for `auto`, best first, without those that failed before. `reference` always remains."""
    names = [n for n in PREFERRED.get(device_type, ("scan",)) if missing(n, device_type) is None]
    return [n for n in (*names, "reference") if (op, n, device_type) not in _failed]


def works(op: str, backend: str, device_type: str, probe: Callable[[str, str], None]) -> bool:
    """Whether `run` with "auto" would take this fused backend, here and now, unless a better one works."""
    return backend in candidates(op, device_type) and not _differentiated_by_functorch() and _probed(op, backend, device_type, probe)


def give_up(op: str, backend: str, device_type: str, error: BaseException) -> None:
    """Remember that a backend failed on this kind of device, and warn once."""
    key = (op, backend, device_type)
    if key in _failed:
        return
    _failed[key] = f"{type(error).__name__}: {error}"
    rest = candidates(op, device_type)
    warnings.warn(
        f"hadamem: backend {backend!r} of {op} failed on {device_type} and is not used again in this process; "
        f"using {rest[0]!r} instead, which is slower. Cause: {_failed[key][:500]}",
        RuntimeWarning,
        stacklevel=5,
    )


def run(op: str, backend: str, device_type: str, table: dict[str, Callable[..., Any]], args: Iterable[Any],
        probe: Callable[[str, str], None]) -> Any:
    """Call the backend asked for, or for "auto" the best one that works: probed once, then trusted.

    `probe(backend, device_type)` runs a tiny problem forward and backward and raises if that fails. torch.export gets the reference.
    """
    args = tuple(args)
    if exporting():
        return table["reference"](*args)
    if backend != "auto":
        return table[backend](*args)
    failures: list[str] = []
    for name in (n for n in candidates(op, device_type) if n in table):
        if name not in PLAIN:
            if _differentiated_by_functorch() or not _probed(op, name, device_type, probe):
                continue
            if torch.compiler.is_compiling():
                return table[name](*args)
            try:
                return table[name](*args)
            except _NOT_THE_BACKENDS_FAULT:
                raise
            except Exception as error:   # a kernel that cannot be built or launched, at all or for this shape
                if _unfit_for_backward(args):
                    raise
                _working.discard((op, name, device_type))
                if _probed(op, name, device_type, probe):
                    failures.append(f"hadamem: backend {name!r} of {op} failed for this call; a slower one takes it. Cause: {error}"[:600])
                continue
        result = table[name](*args)
        for failure in failures:   # only now: if the slower one fails too, its error says enough
            warnings.warn(failure, RuntimeWarning, stacklevel=4)
        return result
    raise AssertionError("the reference backend is always a candidate")


# Errors that no other backend would avoid: a wrong argument, too little memory (a slower backend needs more), a broken CUDA context.
_NOT_THE_BACKENDS_FAULT: tuple[type[Exception], ...] = (
    ValueError, TypeError, MemoryError, torch.OutOfMemoryError, *([torch.AcceleratorError] if hasattr(torch, "AcceleratorError") else []))


def _unfit_for_backward(args: tuple[Any, ...]) -> bool:
    """Whether a tensor made in inference mode is to be saved for a backward pass, which PyTorch refuses in any backend."""
    given = [x for x in args if isinstance(x, torch.Tensor)]
    return torch.is_grad_enabled() and any(x.requires_grad for x in given) and any(x.is_inference() for x in given)


_working: set[tuple[str, str, str]] = set()


def _differentiated_by_functorch() -> bool:
    """Whether torch.func.grad, jvp or the like is active: PyTorch supports no custom operator with its own backward inside these."""
    if torch.compiler.is_compiling():
        return False
    if forward_ad._current_level >= 0:
        return True
    functorch = torch._C._functorch
    stack = functorch.get_interpreter_stack()
    return bool(stack) and any(level.key() in (functorch.TransformType.Grad, functorch.TransformType.Jvp) for level in stack)


@_constant
def _probed(op: str, name: str, device_type: str, probe: Callable[[str, str], None]) -> bool:
    key = (op, name, device_type)
    if key in _working:
        return True
    if key in _failed:
        return False
    if device_type == "cuda" and torch.cuda.is_current_stream_capturing():
        return True      # a capture allows no probe: trust the backend
    error = _failure(lambda: probe(name, device_type))
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        raise error          # says nothing about the backend
    if error is not None:
        give_up(op, name, device_type, error)
        return False
    _working.add(key)
    return True


def _failure(call: Callable[[], None]) -> Exception | None:
    """What `call` raises in another thread, which the caller's modes do not reach (inference, autocast, transforms, default device)."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="hadamem-probe")
    thread.start()
    thread.join()
    return errors[0] if errors else None
