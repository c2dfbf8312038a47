"""Choosing a backend, falling back, mixed precision, and the errors for bad arguments."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch

from hadamem import kernels
from hadamem.kernels import _backends

shm_module = importlib.import_module("hadamem.kernels.shm")


def vectors(B=2, T=3, V=4, K=5, **options):
    generator = torch.Generator().manual_seed(1)
    shapes = {"theta": (B, T, V), "vc": (B, T, K), "v": (B, T, V), "k": (B, T, K), "q": (B, T, K)}
    return {n: torch.randn(*s, generator=generator).to(**options) for n, s in shapes.items()}


# --- fallback


@pytest.fixture
def fresh_backends(monkeypatch):
    monkeypatch.setattr(_backends, "_failed", {})
    monkeypatch.setattr(_backends, "_working", set())
    monkeypatch.setitem(_backends.PREFERRED, "cpu", ("cpu", "scan"))


def broken(calls, fine=0):
    def backend(*args):
        calls.append(args)
        if len(calls) > fine:
            raise RuntimeError("no compiler found")
        return shm_module.shm_reference(*args)

    return backend


@pytest.mark.usefixtures("fresh_backends")
@pytest.mark.parametrize("fine", [0, 1], ids=["fails-when-probed", "fails-later"])
def test_failing_backend_falls_back_with_one_warning(monkeypatch, fine):
    calls = []
    monkeypatch.setitem(shm_module.BACKENDS, "cpu", broken(calls, fine))
    args = vectors()
    with pytest.warns(RuntimeWarning, match="backend 'cpu' of shm failed on cpu .*no compiler found") as seen:
        h, M = kernels.shm(**args)
    assert len(seen) == 1
    want = kernels.shm(**args, backend="reference")
    torch.testing.assert_close(h, want[0])
    torch.testing.assert_close(M, want[1])
    tried = len(calls)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernels.shm(**args)
    assert len(calls) == tried   # not tried again


@pytest.mark.usefixtures("fresh_backends")
def test_wrong_numbers_count_as_failure(monkeypatch):
    """The probe compares: a backend that computes nonsense is not trusted."""
    monkeypatch.setitem(shm_module.BACKENDS, "cpu", lambda *args: tuple(x + 1 for x in shm_module.shm_reference(*args)))
    args = vectors()
    with pytest.warns(RuntimeWarning, match="AssertionError"):
        h, _ = kernels.shm(**args)
    torch.testing.assert_close(h, kernels.shm(**args, backend="reference")[0])


@pytest.mark.usefixtures("fresh_backends")
def test_backend_asked_for_by_name_does_not_fall_back(monkeypatch):
    monkeypatch.setitem(shm_module.BACKENDS, "cpu", broken([]))
    with pytest.raises(RuntimeError, match="no compiler found"):
        kernels.shm(**vectors(), backend="cpu")


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="needs PyTorch 2.7")
@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_torch_export_finds_plain_operations(backend):
    class Op(torch.nn.Module):
        def forward(self, given):
            return kernels.shm(**given, backend=backend)

    given = vectors(T=1)
    program = torch.export.export(Op(), (given,), strict=False)
    assert {node.target.namespace for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)} == {"aten"}
    torch.testing.assert_close(program.module()(given), kernels.shm(**given, backend="reference"))


def test_backends_lists_names():
    assert {"reference", "scan"} <= set(kernels.backends()) <= set(_backends.NAMES)
    assert kernels.backends("shm") == kernels.backends("hadamard")
    with pytest.raises(ValueError, match="unknown op 'rnn'"):
        kernels.backends("rnn")


def test_missing_package_is_not_usable(monkeypatch):
    monkeypatch.setattr(_backends, "_importable", lambda module: False)
    assert kernels.backends() == ["reference", "scan"]
    with pytest.raises(ValueError, match="backend='cpu' of shm cannot be used: numba is not installed"):
        kernels.shm(**vectors(), backend="cpu")
    h, _ = kernels.shm(**vectors())
    torch.testing.assert_close(h, kernels.shm(**vectors(), backend="reference")[0])


# --- mixed precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["auto", "reference", "scan"])
def test_half_inputs_keep_a_wide_state(backend, dtype):
    half = vectors(dtype=dtype)
    h, M = kernels.shm(**half, backend=backend)
    want, want_M = kernels.shm(**{n: x.float() for n, x in half.items()}, backend="reference")
    assert h.dtype == dtype
    assert M.dtype == torch.float32
    torch.testing.assert_close(M, want_M)
    torch.testing.assert_close(h, want.to(dtype))


def test_half_gradients_come_back_in_half():
    half = {n: x.requires_grad_() for n, x in vectors(dtype=torch.bfloat16).items()}
    h, M = kernels.shm(**half)
    (h.float().sum() + M.sum()).backward()
    assert all(x.grad.dtype == torch.bfloat16 for x in half.values())


def test_float64_memory_lifts_everything():
    args = vectors()
    h, M = kernels.shm(**args, M0=torch.zeros(2, 4, 5, dtype=torch.float64))
    assert h.dtype == torch.float32
    assert M.dtype == torch.float64


@pytest.mark.parametrize("backend", ["auto", "reference", "scan"])
def test_autocast_does_not_reach_the_recurrence(backend):
    args = vectors()
    want = kernels.shm(**args, backend=backend)
    C, U = torch.rand(2, 3, 4, 5), torch.rand(2, 3, 4, 5)
    want_h = kernels.hadamard(C, U, args["q"], backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = kernels.shm(**args, backend=backend)
        got_h = kernels.hadamard(C, U, args["q"], backend=backend)
    for a, b in zip((*got, *got_h), (*want, *want_h), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


# --- bad input: each error names the argument

ONES = torch.ones
BAD_SHM = {
    "v-not-tensor": (dict(v=[1.0]), ValueError, "v must be a tensor"),
    "v-shape": (dict(v=ONES(2, 4)), ValueError, r"v must be a tensor of shape \[B, T, V\], got \[2, 4\]"),
    "v-int": (dict(v=torch.ones(2, 3, 4, dtype=torch.int64)), TypeError, "v must have a floating dtype"),
    "v-empty": (dict(v=ONES(2, 0, 4)), ValueError, "v .* must not have empty axes"),
    "k-shape": (dict(k=ONES(2, 3)), ValueError, "k must be a tensor of shape"),
    "k-time": (dict(k=ONES(2, 7, 5)), ValueError, r"k must have shape \[2, 3, 5\]"),
    "q-width": (dict(q=ONES(2, 3, 4)), ValueError, r"q must have shape \[2, 3, 5\]"),
    "q-none": (dict(q=None), TypeError, "q must be a torch.Tensor, got NoneType"),
    "theta-none": (dict(theta=None), TypeError, "theta must be a torch.Tensor, got NoneType"),
    "theta-width": (dict(theta=ONES(2, 3, 5)), ValueError, r"theta must have shape \[2, 3, 4\]"),
    "vc-device": (dict(vc=ONES(2, 3, 5, device="meta")), ValueError, "vc is on meta but k is on cpu"),
    "M0-shape": (dict(M0=ONES(2, 5, 4)), ValueError, r"M0 must have shape \[2, 4, 5\]"),
    "M0-complex": (dict(M0=torch.ones(2, 4, 5, dtype=torch.complex64)), TypeError, "M0 must have a floating dtype"),
    "M0-device": (dict(M0=ONES(2, 4, 5, device="meta")), ValueError, "M0 is on meta"),
    "reset-float": (dict(reset=ONES(2, 3)), TypeError, r"reset must be a bool tensor .* with reset.bool\(\)"),
    "reset-list": (dict(reset=[[True]]), TypeError, "reset must be a bool torch.Tensor"),
    "reset-shape": (dict(reset=ONES(2, dtype=torch.bool)), ValueError, r"reset must have shape \[B, T\] = \[2, 3\]"),
    "reset-device": (dict(reset=torch.zeros(2, 3, dtype=torch.bool, device="meta")), ValueError, "reset is on meta"),
    "clip-negative": (dict(clip=-1.0), ValueError, "clip must be positive, from 1e-30 to 1e.30, got -1.0; use clip=None"),
    "clip-nan": (dict(clip=float("nan")), ValueError, "clip must be positive"),
    "clip-inf": (dict(clip=float("inf")), ValueError, "clip must be positive, .* got inf; use clip=None"),
    "clip-beyond-float32": (dict(clip=1e39), ValueError, "clip must be positive, from 1e-30 to 1e.30"),
    "clip-long": (dict(clip=10**5000), ValueError, "got a number of 16610 bits; use clip=None"),
    "clip-tiny": (dict(clip=1e-46), ValueError, "clip must be positive"),
    "v-sparse": (dict(v=ONES(2, 3, 4).to_sparse()), TypeError, r"v must be a dense torch.Tensor, .* v.to_dense\(\)"),
    "M0-sparse": (dict(M0=ONES(2, 4, 5).to_sparse()), TypeError, "M0 must be a dense"),
    "reset-sparse": (dict(reset=ONES(2, 3, dtype=torch.bool).to_sparse()), TypeError, "reset must be a dense"),
    "clip-text": (dict(clip="big"), TypeError, "clip must be a positive number or None, got str"),
    "calibration": (dict(calibration="relu"), ValueError, "unknown calibration 'relu' .* tanh, sigmoid, none"),
    "calibration-list": (dict(calibration=["tanh"]), TypeError, "calibration must be a name, one of tanh, .*; got list"),
    "v-float8": (dict(v=ONES(2, 3, 4).to(torch.float8_e4m3fn)), TypeError, "v must have a dtype of 16 bits or more"),
    "backend-list": (dict(backend=["cpu"]), TypeError, "backend must be a name, one of auto, reference, .*; got list"),
    "backend": (dict(backend="cuda"), ValueError, "unknown backend 'cuda' for shm; choose from auto, reference, scan"),
}


@pytest.mark.parametrize("case", BAD_SHM)
def test_shm_names_the_bad_argument(case):
    changed, kind, message = BAD_SHM[case]
    with pytest.raises(kind, match=message):
        kernels.shm(**{**vectors(), **changed})


BAD_HADAMARD = {
    "U-shape": (dict(U=ONES(2, 3, 4)), ValueError, "U must be a tensor of shape"),
    "U-empty": (dict(U=ONES(2, 0, 4, 5)), ValueError, "U .* must not have empty axes"),
    "C-shape": (dict(C=ONES(2, 3, 4, 4)), ValueError, r"C must have shape \[2, 3, 4, 5\]"),
    "C-number": (dict(C=0.9), TypeError, "C must be a torch.Tensor, got float"),
    "C-int": (dict(C=torch.ones(2, 3, 4, 5, dtype=torch.int32)), TypeError, "C must have a floating dtype"),
    "C-device": (dict(C=ONES(2, 3, 4, 5, device="meta")), ValueError, "C is on meta"),
    "q-shape": (dict(q=ONES(2, 3, 4)), ValueError, r"q must have shape \[2, 3, 5\]"),
    "M0-shape": (dict(M0=ONES(4, 5)), ValueError, r"M0 must have shape \[2, 4, 5\]"),
    "reset-int": (dict(reset=torch.zeros(2, 3, dtype=torch.int64)), TypeError, "reset must be a bool tensor"),
    "backend": (dict(backend="numba"), ValueError, "unknown backend 'numba' for hadamard"),
}


@pytest.mark.parametrize("case", BAD_HADAMARD)
def test_hadamard_names_the_bad_argument(case):
    changed, kind, message = BAD_HADAMARD[case]
    with pytest.raises(kind, match=message):
        kernels.hadamard(**{"C": ONES(2, 3, 4, 5), "U": ONES(2, 3, 4, 5), **changed})
