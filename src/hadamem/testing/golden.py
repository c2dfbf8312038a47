"""Compares hadamem with golden files: inputs, outputs and gradients recorded from published implementations.

A file is a `.npz` whose `meta` entry is JSON that names its model. Model files hold weights `w.*`, input `x`, `reset`,
`state0.*`, and the results: `y`, `states.*` after every step, `state1.*` after the last, and the gradients `g.*` of
sum(y * cot). Files of `shm_core` and `hmf_core` hold arguments and results of the kernels `shm` and `hadamard`. Keys
that a file lacks are not compared.
"""

from __future__ import annotations

import contextlib
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import kernels, reference
from ..kernels._backends import interpreting
from ..memory import Memory

DTYPES = (torch.float64, torch.float32)
TOLERANCES = {   # (values, gradients), relative to the largest absolute entry of the array
    torch.float64: (1e-10, 1e-8),
    torch.float32: (2e-4, 2e-3),
}
UNREADABLE = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile)
ROUGH = {"hot", "clamp"}   # extreme values on purpose: float32 is less accurate
ROUGH_FLOAT32 = (5e-3, 5e-3)


@dataclass(frozen=True)
class Difference:
    """The error of one array, relative to its largest entry, and the tolerance."""

    key: str
    where: str        # backend and dtype
    error: float
    tolerance: float

    @property
    def fraction(self) -> float:
        return self.error / self.tolerance if math.isfinite(self.error) else math.inf

    def __str__(self) -> str:
        return f"{self.key} on {self.where}: relative error {self.error:.2g}, allowed {self.tolerance:.2g}"


@dataclass
class FileResult:
    """The outcome of one golden file: its differences, a failure, or `evidence` (listed, not compared)."""

    name: str
    model: str = "?"
    variant: str = "?"
    backends: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    failure: str | None = None
    evidence: bool = False

    @property
    def worst(self) -> Difference | None:
        return max(self.differences, key=lambda d: d.fraction, default=None)

    @property
    def ok(self) -> bool:
        return self.failure is None and all(d.fraction <= 1 for d in self.differences)

    def __str__(self) -> str:
        head = f"{self.name:<46} {self.model:<16} {self.variant:<14}"
        if self.failure is not None:
            return f"{head} FAIL  {self.failure}"
        if self.evidence:
            return f"{head} evidence only, not compared"
        assert self.worst is not None
        head = f"{head} {','.join(self.backends):<26} worst {self.worst.fraction:8.2g} of tolerance"
        if self.ok:
            return f"{head}  ok"
        bad = sorted((d for d in self.differences if d.fraction > 1), key=lambda d: -d.fraction)
        rest = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
        return f"{head}  FAIL  {'; '.join(map(str, bad[:4]))}{rest}"


def check_golden(directory: str | Path, models: Iterable[str] | None = None, *, backends: Iterable[str] | None = None,
                 report: Callable[[FileResult], None] | None = None) -> list[FileResult]:
    """Check every golden file of a folder.

    models: only files of these. backends: only these of `hm.kernels.backends()`. report: called with each result. A
    file of a model that is not implemented fails.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"golden folder {str(directory)!r} does not exist")
    paths = sorted(directory.glob("*.npz"))
    if not paths:
        raise ValueError(f"golden folder {str(directory)!r} holds no .npz files")
    wanted = None if models is None else list(models)
    if wanted is not None:
        names = {_model_of(path) for path in paths}
        unknown = [m for m in wanted if m not in names]
        if unknown or not wanted:
            raise ValueError(f"no golden file of model {', '.join(unknown) or '(none given)'} in {str(directory)!r}; "
                             f"it holds {', '.join(sorted(n for n in names if n))}")
    results = []
    for path in paths:
        if wanted is not None and _model_of(path) not in wanted:
            continue
        results.append(check_file(path, backends=backends))
        if report is not None:
            report(results[-1])
    return results


def check_file(path: str | Path, *, backends: Iterable[str] | None = None,
               dtypes: Iterable[torch.dtype] = DTYPES) -> FileResult:
    """Compare one golden file on every usable backend and in every dtype."""
    path = Path(path)
    result = FileResult(path.stem)
    try:
        data, meta = read(path)
    except UNREADABLE as error:
        result.failure = f"cannot be read: {error}"
        return result
    result.model = str(meta.get("model"))
    result.variant = "-".join(str(meta[key]) for key in ("variant", "extra") if meta.get(key))
    if result.variant.startswith("quirk"):
        result.evidence = True
        return result
    check = {"shm_core": _check_shm, "hmf_core": _check_hadamard}.get(result.model, _check_model)
    if check is _check_model and result.model not in reference.MODELS:
        known = ", ".join((*reference.MODELS, "shm_core", "hmf_core"))
        result.failure = f"unknown model {result.model!r}; implemented: {known}"
        return result
    try:
        for backend, device in _places(result.model, None if backends is None else list(backends)):
            result.backends.append(backend if device == "cpu" or backend == "triton" else f"{backend}@{device}")
            for dtype in dtypes:
                where = f"{result.backends[-1]} {str(dtype).removeprefix('torch.')}"
                rough = dtype == torch.float32 and meta.get("extra") in ROUGH
                values, gradients = ROUGH_FLOAT32 if rough else TOLERANCES[dtype]
                for key, got in check(data, meta, backend, device, dtype):
                    difference = relative_error(got, data[key.removesuffix(" (steps)")], _cancelled(data, key))
                    allowed = gradients if key.startswith("g.") else values
                    result.differences.append(Difference(key, where, difference, allowed))
    except Exception as error:   # report it and check the other files
        where = result.backends[-1] if result.backends else "no backend"
        result.failure = f"{where}: {type(error).__name__}: {error}"
        return result
    if not result.differences:
        result.failure = "nothing in it could be compared"
    return result


def read(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and the meta entry of a golden file."""
    with np.load(path, allow_pickle=False) as file:
        if "meta" not in file:
            raise ValueError("it has no 'meta' entry")
        data = {key: file[key] for key in file.files if key != "meta"}
        meta = json.loads(str(file["meta"]))
    if not isinstance(meta, dict):
        raise ValueError("its 'meta' entry is not a JSON object")
    return data, meta


def relative_error(got: Tensor, want: np.ndarray, scale: float | None = None) -> float:
    """Largest absolute difference over the largest absolute entry of `want` (over 1 where that is 0), or over `scale` if given.

    Infinite where shapes differ or a value is not finite.
    """
    wide = torch.complex128 if got.is_complex() or np.iscomplexobj(want) else torch.float64
    a, b = got.detach().cpu().to(wide), torch.as_tensor(np.array(want)).to(wide)
    if a.shape != b.shape:
        return math.inf
    if a.numel() == 0:
        return 0.0
    error = float((a - b).abs().max()) / (scale or float(b.abs().max()) or 1.0)
    return error if math.isfinite(error) else math.inf


def _cancelled(data: Mapping[str, np.ndarray], key: str) -> float | None:
    """The scale to compare a gradient with if it is recorded as rounding noise; None otherwise.

    An example is mLSTM's input gate bias at extreme gains: it scales both numerator and denominator, so its gradient
    cancels. The digits of such noise differ between computations, so it is compared at the scale of the other weights.
    """
    if not key.startswith("g.w."):
        return None
    largest = max(float(np.abs(x).max()) for name, x in data.items() if name.startswith("g.w.") and x.size)
    return largest if 0 < float(np.abs(data[key]).max()) < 1e-14 * largest else None


def _model_of(path: Path) -> str | None:
    try:
        return str(read(path)[1].get("model"))
    except UNREADABLE:
        return None


def _places(model: str, only: list[str] | None) -> list[tuple[str, str]]:
    """(backend, device) pairs to check: all usable ones, or "torch" for a memory that uses none of our kernels."""
    cuda = torch.cuda.is_available()
    op = {"hmf_core": "hadamard", "shm_core": "shm"}.get(model) or reference.MODELS[model].op
    if op is None:
        return [("torch", "cpu"), *([("torch", "cuda")] if cuda else [])]
    places = [(b, "cuda" if b == "triton" and not interpreting() else "cpu") for b in kernels.backends(op)]
    places += [("scan", "cuda")] if cuda else []
    if only is not None:
        unknown = sorted(set(only) - set(kernels.backends()))
        if unknown:
            raise ValueError(f"backend {', '.join(unknown)} is not usable here; choose from {', '.join(kernels.backends())}")
        places = [(b, d) for b, d in places if b in only] or places   # an op without any of them is still checked
    return places


Data = Mapping[str, np.ndarray]
Compared = Iterator[tuple[str, Tensor]]   # (key in the file, our result)
Choice = Mapping[str, Tensor]             # random choices fixed by the record, as keywords of forward()


def _inputs(data: Data, names: Iterable[str], device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: _input(data[name], device, dtype).requires_grad_() for name in names if name in data}


def _input(x: np.ndarray, device: str, dtype: torch.dtype) -> Tensor:
    if np.iscomplexobj(x):
        dtype = {torch.float64: torch.complex128, torch.float32: torch.complex64}[dtype]
    return torch.tensor(x, device=device, dtype=torch.bool if x.dtype == np.bool_ else dtype)


def _reset(data: Data, device: str) -> Tensor | None:
    return torch.tensor(data["reset"], device=device) if "reset" in data else None


def _check_shm(data: Data, meta: Mapping[str, Any], backend: str, device: str, dtype: torch.dtype) -> Compared:
    args: dict[str, Any] = _inputs(data, ("theta", "vc", "v", "k", "q", "M0"), device, dtype)
    h, M = kernels.shm(**args, reset=_reset(data, device), clip=meta.get("clip"), backend=backend)
    loss = (h * _input(data["cot_h"], device, dtype)).sum() + (M * _input(data["cot_MT"], device, dtype)).sum()
    loss.backward()
    yield "h", h
    yield "MT", M
    yield from _gradients(data, args)


def _check_hadamard(data: Data, meta: Mapping[str, Any], backend: str, device: str, dtype: torch.dtype) -> Compared:
    args = _inputs(data, ("C", "U", "q", "M0"), device, dtype)
    reset = _reset(data, device)
    M = kernels.hadamard(args["C"], args["U"], None, args.get("M0"), reset, backend)
    h, _ = kernels.hadamard(args["C"], args["U"], args["q"], args.get("M0"), reset, backend)
    (h * _input(data["cot"], device, dtype)).sum().backward()
    assert isinstance(M, Tensor)
    yield "M", M
    yield "h", h
    yield from _gradients(data, args)


def _gradients(data: Data, args: Mapping[str, Tensor]) -> Compared:
    for name, x in args.items():
        if f"g.{name}" in data:
            yield f"g.{name}", torch.zeros_like(x) if x.grad is None else x.grad


def _check_model(data: Data, meta: Mapping[str, Any], backend: str, device: str, dtype: torch.dtype) -> Compared:
    weights = {key.removeprefix("w."): _input(x, device, dtype) for key, x in data.items() if key.startswith("w.")}
    memory = reference.load(meta["model"], weights, meta.get("hparams"))
    if backend != "torch":
        memory.backend = backend   # type: ignore[assignment]
    x = _input(data["x"], device, dtype).requires_grad_()
    initial = _inputs(data, (key for key in data if key.startswith("state0.")), device, dtype)
    reset = _reset(data, device)
    rows = data.get("choice.theta_rows")
    choice = {} if rows is None or not rows.any() else {"rows": torch.tensor(rows, device=device)}

    state0 = reference.state(memory, initial) if initial else None
    with _exact(device):
        y, state = memory(x, state0, reset, **choice)
        yield "y", y
        for name, array in reference.arrays(memory, state).items():
            if f"state1.{name}" in data:
                yield f"state1.{name}", torch.as_tensor(array)
        if "cot" in data:
            (y * _input(data["cot"], device, dtype)).sum().backward()
            yield from _gradients(data, {"x": x, **initial})
            for name, array in reference.gradients(memory).items():
                if f"g.w.{name}" in data:
                    yield f"g.w.{name}", torch.as_tensor(array)
        if any(key.startswith("states.") for key in data) or not initial:
            yield from _check_steps(data, memory, x.detach(), state0, reset, choice)


@torch.no_grad()
def _steps(memory: Memory, x: Tensor, state: Any, reset: Tensor | None,
           choice: Choice) -> tuple[Tensor, dict[str, Tensor]]:
    ys, kept = [], []
    for t in range(x.shape[1]):
        now = slice(t, t + 1)
        chosen = {name: c[:, now] for name, c in choice.items()}
        y, state = memory(x[:, now], state, None if reset is None else reset[:, now], **chosen)
        ys.append(y[:, 0])
        kept.append({name: torch.as_tensor(a) for name, a in reference.arrays(memory, state).items()})
    return torch.stack(ys, dim=1), {name: torch.stack([s[name] for s in kept], dim=1) for name in kept[0]}


def _check_steps(data: Data, memory: Memory, x: Tensor, state: Any, reset: Tensor | None, choice: Choice) -> Compared:
    y, states = _steps(memory, x, state, reset, choice)
    yield "y (steps)", y
    for name, array in states.items():
        if f"states.{name}" in data:
            yield f"states.{name}", array


@contextlib.contextmanager
def _exact(device: str) -> Iterator[None]:
    """Turn TF32 off while comparing: its 10 bits are less than the tolerance."""
    if device == "cpu":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
