"""Kernels with random shapes, dtypes, strides and values, compared with their references; and with arguments that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from hadamem import kernels

from . import values
from .judge import Failure

CALIBRATIONS = ["tanh", "tanh", "sigmoid", "none", "exp", "exp:1.5", "drift"]
TOLERANCES = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float32: 2e-3, torch.complex64: 2e-3, torch.float16: 2e-2,
              torch.bfloat16: 1e-1}
OPS = {"shm": kernels.shm, "hadamard": kernels.hadamard, "diagonal": kernels.diagonal, "selective": kernels.selective,
       "additive": kernels.additive, "delta": kernels.delta, "gru": kernels.gru, "lstm": kernels.lstm}


def case(rng: Random) -> tuple[str, Callable[[], None]]:
    """A call of a kernel: in words, and as a function that makes it and compares it with the reference."""
    op = rng.choice(list(OPS))
    given = arguments(rng, op)
    changes, odd = [], set[str]()
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        name = rng.choice(list(given))
        how, given[name] = values.restride(rng, given[name]) if isinstance(given[name], Tensor) else ("", given[name])
        changes += [f"{name} {how}"] * bool(how)
    if rng.random() < 0.25:
        name = rng.choice([name for name, x in given.items() if isinstance(x, Tensor)])
        how, given[name] = values.special(rng, given[name], rows=True)
        odd |= {how} - {""}
        changes += [f"{name} has {how}"] * bool(how)
    spoilt = rng.choice([0, 0, 0, 1, 1, 2])
    for _ in range(spoilt):
        name = rng.choice(list(given))
        how, given[name] = values.spoil(rng, given[name])
        changes.append(f"{name} {how}")
    shared = any(isinstance(given.get(name), Tensor) for name in ("A", "W", "b")) or (op == "diagonal" and _constant(given))
    if odd and shared:      # it reaches every row
        odd.add("everywhere")
    if not spoilt and not odd and rng.random() < 0.5:
        given = {name: x.detach().requires_grad_() if isinstance(x, Tensor) and x.dtype != torch.bool and rng.random() < 0.7 else x
                 for name, x in given.items()}
    shapes = {name: list(x.shape) if isinstance(x, Tensor) else x for name, x in given.items()}
    text = f"{op}({', '.join(f'{name}={values.brief(x)}' for name, x in shapes.items())}){'; ' * bool(changes)}{', '.join(changes)}"
    return text, lambda: check(op, given, odd, spoilt > 0)


def _constant(given: dict[str, Any]) -> bool:
    a, u = given.get("a"), given.get("u")
    return isinstance(a, Tensor) and isinstance(u, Tensor) and a.ndim != u.ndim


def arguments(rng: Random, op: str) -> dict[str, Any]:
    """Arguments that fit."""
    B, T, V, K = values.size(rng, 4), rng.choice([1, 2, 3, values.size(rng, 40)]), values.size(rng), values.size(rng, 20)
    dtype = torch.float64 if rng.random() < 0.15 else torch.float32

    def x(*shape: int, scale: float = 1.0) -> Tensor:
        return values.noise(rng, shape, dtype, scale)

    def perhaps(made: Any) -> Any:
        return made if rng.random() < 0.5 else None

    backend = rng.choice(["auto", *kernels.backends(op)])
    reset = perhaps(values.flags(rng, (B, T)))
    rest = {"reset": reset, "backend": backend}
    if op == "shm":
        calibration = rng.choice(CALIBRATIONS)
        rows = 2 * V if calibration == "drift" else V
        clip = rng.choice([None, None, 1.0, 3, 1e8])
        return {"theta": x(B, T, rows), "vc": x(B, T, K), "v": x(B, T, V), "k": x(B, T, K), "q": x(B, T, K), "M0": perhaps(x(B, V, K)),
                "clip": clip, "calibration": calibration, **rest}
    if op == "hadamard":
        return {"C": 1 + 0.3 * x(B, T, V, K).tanh(), "U": x(B, T, V, K), "q": perhaps(x(B, T, K)), "M0": perhaps(x(B, V, K)), **rest}
    if op == "diagonal":
        kind = torch.complex64 if dtype == torch.float32 and rng.random() < 0.3 else dtype
        N = rng.choice([(V,), (V,), (V, K), ()])
        constant = bool(N) and rng.random() < 0.3
        return {"a": values.noise(rng, N if constant else (B, T, *N), kind, 0.5), "u": values.noise(rng, (B, T, *N), kind),
                "s0": perhaps(values.noise(rng, (B, *N), kind)), **rest}
    if op == "selective":
        return {"delta": x(B, T, V).abs(), "A": -x(V, K).abs(), "v": x(B, T, V), "k": x(B, T, K), "q": x(B, T, K),
                "S0": perhaps(x(B, V, K)), **rest}
    if op == "additive":
        gated, normalizer = rng.random() < 0.5, rng.random() < 0.5
        return {"v": x(B, T, V), "k": x(B, T, K), "q": x(B, T, K), "log_decay": -x(B, T).abs() if gated else None,
                "log_gain": x(B, T) if gated else None, "M0": perhaps(x(B, V, K)), "n0": perhaps(x(B, K)) if normalizer else None,
                "m0": perhaps(x(B)) if gated else None, "normalizer": normalizer, **rest}
    if op == "delta":
        k = torch.nn.functional.normalize(x(B, T, K), dim=-1)
        return {"v": x(B, T, V), "k": k, "q": x(B, T, K), "beta": torch.sigmoid(x(B, T)), "M0": perhaps(x(B, V, K)), **rest}
    if op == "lstm":
        return {"gi": x(B, T, 4 * V), "W": x(4 * V, V, scale=0.5), "h0": perhaps(x(B, V)), "c0": perhaps(x(B, V)), **rest}
    return {"gi": x(B, T, 3 * V), "W": x(3 * V, V, scale=0.5), "b": x(3 * V), "h0": perhaps(x(B, V)), **rest}


def check(op: str, given: dict[str, Any], odd: set[str], spoilt: bool) -> None:
    """Call it, and compare results and gradients with those of the reference."""
    got = call(op, given)
    if given["backend"] == "reference" or "everywhere" in odd:
        return
    want = call(op, {**given, "backend": "reference"})
    if [x.shape for x in got] != [x.shape for x in want] or [x.dtype for x in got] != [x.dtype for x in want]:
        raise Failure(f"results are {[(list(x.shape), x.dtype) for x in got]}, of the reference {[(list(x.shape), x.dtype) for x in want]}")
    for n, (a, b) in enumerate(zip(got, want, strict=True)):
        exact = given["backend"] == "cpu" and odd <= {"nan", "inf", "-inf"}      # another order of products may overflow elsewhere
        if odd and not exact:      # the other rows know nothing of it
            a, b = a[1:], b[1:]
        if a.device.type != "meta":
            compare(f"result {n}", a, b)


def call(op: str, given: dict[str, Any]) -> list[Tensor]:
    """Results, and the gradients of a weighted sum of them."""
    result = OPS[op](**given)
    outputs = [x for x in (result if isinstance(result, tuple) else (result,)) if x is not None]
    leaves = [x for x in given.values() if isinstance(x, Tensor) and x.requires_grad]
    if not leaves or not any(x.requires_grad for x in outputs):
        return outputs
    parts = [(x * values.noise(Random(n), tuple(x.shape)).to(x.device)).sum() for n, x in enumerate(outputs)]
    loss = sum(part.real for part in parts if part.requires_grad)
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [x.detach() for x in outputs] + [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True)]


def compare(name: str, got: Tensor, want: Tensor) -> None:
    """Finite where the reference is; close there, in units of the largest entry."""
    finite = torch.isfinite(want)
    if (~torch.isfinite(got) & finite).any():
        raise Failure(f"{name} is not finite where the reference is")
    if (torch.isfinite(got) & ~finite).any():
        raise Failure(f"{name} is finite where the reference is not")
    a, b = got[finite], want[finite]
    if not b.numel():
        return
    wide = torch.complex128 if b.is_complex() else torch.float64
    largest = b.to(wide).abs().max().item()
    error = (a.to(wide) - b.to(wide)).abs().max().item()
    if error > TOLERANCES[want.dtype] * max(largest, 1e-6):
        raise Failure(f"{name} is off by {error:.2g}, the largest entry is {largest:.2g}")
