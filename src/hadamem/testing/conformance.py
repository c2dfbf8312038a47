"""Checks of the contract of `hadamem.Memory` on any module with its interface.

    from hadamem.testing import check_memory
    check_memory(MyMemory(input_size=8, output_size=6))   # a report, or an AssertionError that lists every failed check
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .. import lookup
from ..memory import list_memories, make_memory, own
from .properties import find_properties
from .report import Check, Report, explain
from .trial import TOLERANCES, Broken, Trial


def check_memory(
    module: nn.Module,
    *,
    input_size: int | None = None,
    expect_memory: bool = True,
    batch_size: int = 3,
    length: int = 12,
    long_length: int = 1024,
    tolerances: Mapping[torch.dtype, tuple[float, float]] | None = None,
    seed: int = 0,
    raise_on_failure: bool = True,
) -> Report:
    """Check every property that `hadamem.Memory` promises; raise an AssertionError that lists those that fail.

    input_size: features per step; read from the module by default.
    expect_memory: False for a control that must *not* depend on the past.
    batch_size, length: of the random inputs. long_length: steps of the gradient check.
    tolerances: dtype -> (rtol, atol), replacing entries of `TOLERANCES`; rtol is relative to the largest entry.
    seed: of inputs and states.
    raise_on_failure: False returns the report also when checks fail.

    The module runs in eval mode, on its own device and in its own dtype; copies of it run in float64 and, if there is
    one, on a GPU. Its mode, parameters and gradients are restored.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}"
                        + ("; build it first" if isinstance(module, type) else ""))
    if input_size is None:
        input_size = getattr(module, "input_size", None)
    if not isinstance(input_size, int) or input_size < 1:
        raise ValueError(f"module.input_size must be a positive int, got {input_size!r}; set it, or pass input_size=")
    if batch_size < 2 or length < 8:
        raise ValueError(f"batch_size must be at least 2 and length at least 8, got {batch_size} and {length}")
    table = {**TOLERANCES, **(tolerances or {})}
    trial = Trial(module, input_size, batch_size, length, long_length, table, seed, expect_memory)
    report = Report(type(module).__name__)
    cause: Exception | None = None
    with _restored(module):
        for name, (check, fix) in find_properties(trial).items():
            torch.manual_seed(0x5EED + seed)   # unlikely to be the seed the module was built with
            try:
                check(trial)
                report.checks.append(Check(name, True))
            except Broken as broken:
                report.checks.append(Check(name, False, str(broken), f"to do: {fix}" if fix else ""))
            except Exception as error:
                report.checks.append(Check(name, False, f"raised {type(error).__name__}: {error}", explain(error)))
                if raise_on_failure and cause is None:
                    cause = error       # keep its traceback
    if raise_on_failure and not report.ok:
        count = f"{len(report.failures)} of {len(report.checks)}"
        raise AssertionError(f"{report.subject} breaks {count} properties of a memory:\n{report.complaint()}") from cause
    return report


def check_spec(spec: str, input_size: int = 8, output_size: int = 6, options: Mapping[str, Any] | None = None,
               **settings: Any) -> Report:
    """Build the memory that `spec` names and run `check_memory` on it; returns the report.

    spec: "package.module:Class", or a name from `hm.list_memories()`. options: keywords for the class or function.
    settings: keywords for `check_memory`.
    """
    module = resolve(spec, input_size, output_size, **(options or {}))
    settings = {"input_size": getattr(module, "input_size", input_size), "expect_memory": spec != "none", **settings}
    report = check_memory(module, **{"raise_on_failure": False, **settings})
    report.subject = spec
    return report


def resolve(spec: str, input_size: int = 8, output_size: int = 6, **options: Any) -> nn.Module:
    """Find the module that `spec` names, or build it from the sizes and options if `spec` names a class or function."""
    if spec in list_memories():
        return make_memory(spec, input_size, output_size, **options)
    if not all(spec.partition(":")):
        known = ", ".join(list_memories())
        raise ValueError(f"memory {spec!r} must be written package.module:Class, or be one of {known}")
    found = lookup.load(spec)
    if isinstance(found, nn.Module):
        if options:
            raise ValueError(f"{spec!r} is a module, not a class, and takes no options; got {', '.join(options)}")
        return found
    module = own.build(spec, found, input_size, output_size, options)
    if not isinstance(module, nn.Module):
        raise ValueError(f"{spec!r} must build a torch.nn.Module, got {type(module).__name__}")
    return module


@contextlib.contextmanager
def _restored(module: nn.Module) -> Iterator[None]:
    """Put `module` in eval mode; restore modes, values, random generators and TF32 settings at the end."""
    modes = [(m, m.training) for m in module.modules()]
    values = {name: v.detach().clone() for name, v in module.state_dict().items()}
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    tf32 = matmul.allow_tf32, cudnn.allow_tf32
    with torch.random.fork_rng(devices), torch.enable_grad():
        module.eval()
        matmul.allow_tf32 = cudnn.allow_tf32 = False     # the tolerances assume full float32
        try:
            yield
        finally:
            with torch.no_grad():
                for name, v in module.state_dict().items():
                    if not torch.equal(v, values[name]):
                        v.copy_(values[name])
            for m, mode in modes:
                m.training = mode
            matmul.allow_tf32, cudnn.allow_tf32 = tf32
