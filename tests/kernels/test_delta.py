"""The delta rule: chunks of matrix products equal the plain loop, forward and backward."""

from __future__ import annotations

import pytest
import torch

from hadamem import kernels

from .test_backends_match_reference import compare

SIZES = [(1, 1, 4, 4), (3, 2, 1, 1), (2, 63, 5, 5), (2, 64, 3, 7), (2, 65, 7, 3), (2, 130, 24, 24)]   # B, T, V, K


def made(B, T, V, K, dtype, device="cpu", resets=0.0, unit=0.9, seed=0):
    r = torch.Generator().manual_seed(seed)
    shapes = dict(v=(B, T, V), k=(B, T, K), q=(B, T, K), beta=(B, T), M0=(B, V, K))
    leaves = {n: torch.randn(*s, generator=r, dtype=torch.float64) for n, s in shapes.items()}
    leaves["k"] = unit * torch.nn.functional.normalize(leaves["k"], dim=-1)
    leaves["beta"] = leaves["beta"].sigmoid()
    reset = (torch.rand(B, T, generator=r) < resets).to(device) if resets else None
    return {n: x.to(device, dtype).requires_grad_() for n, x in leaves.items()}, reset


def run(backend, leaves, reset):
    h, M = kernels.delta(**leaves, reset=reset, backend=backend)
    r = torch.Generator().manual_seed(9)
    loss = sum((x * torch.randn(x.shape, generator=r, dtype=torch.float64).to(x)).sum() for x in (h, M))
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return {"h": h.detach(), "M": M.detach(), **{f"d{n}": g for n, g in zip(leaves, grads, strict=True)}}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("resets", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("unit", [0.3, 1.0])
def test_scan_equals_the_loop(unit, resets, dtype):
    for size in SIZES:
        got = run("scan", *made(*size, dtype, resets=resets, unit=unit))
        want = run("reference", *made(*size, torch.float64, resets=resets, unit=unit))
        compare({n: x.double() for n, x in got.items()}, want, f"{size} {resets}", dtype)


@pytest.mark.parametrize("backend", ["reference", "scan"])
def test_a_full_write_replaces_what_the_key_held(backend):
    """With beta = 1 and |k| = 1, the key's value is exactly the last one written for it, and other orthogonal keys keep theirs."""
    keys, values = torch.eye(4)[[0, 1, 0, 2, 1]], torch.randn(5, 3)
    _, M = kernels.delta(values[None], keys[None], keys[None], torch.ones(1, 5), backend=backend)
    torch.testing.assert_close(M[0] @ torch.eye(4), torch.stack((values[2], values[4], values[3], torch.zeros(3)), dim=1))


@pytest.mark.parametrize("sick", ["v", "k", "q", "beta", "M0"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_ends_at_a_reset_and_begins_at_its_step(sick, bad):
    B, T, at, end = 2, 150, 70, 100
    leaves, _ = made(B, T, 3, 4, torch.float64)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[:, end] = reset[:, 40] = True
    sane = torch.ones(B, T, dtype=torch.bool)
    sane[0, slice(40) if sick == "M0" else slice(at, end)] = False
    results = []
    for poison in (False, True):
        args = {n: x.detach().clone() for n, x in leaves.items()}
        if poison:
            args[sick][0, ... if sick == "M0" else at] = bad
        args = {n: x.requires_grad_() for n, x in args.items()}
        h, M = kernels.delta(**args, reset=reset, backend="scan")
        if poison:
            assert not (h[0, :40] if sick == "M0" else h[0, at] if sick == "q" else h[0, at:end]).isfinite().any()
        grads = torch.autograd.grad(h[sane].sum() + M.sum(), list(args.values()))
        results.append([h[sane], M, *(g[sane] for g in grads[:4])])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


OVERFLOWS = {   # what is written to row 0, all of it finite: {argument: {step: value}}; "k" in multiples of the key of step 90
    "values": dict(v={90: 3e38, 91: -3e38}, k={91: 1.0}, beta={90: 1.0, 91: 1.0}),
    "in a later chunk": dict(v={90: 3e38}, k={101: 4.0}, beta={90: 1.0, 101: 1.0}),
    "keys": dict(k={90: 1e25, 92: 1e25}),
    "queries": dict(q={90: 1e38, 95: 1e38}, k={90: 1e10}),
    "rates": dict(beta={90: 1e30, 91: 1e30, 92: 1e30}),
    "products": dict(k=dict.fromkeys(range(90, 99), 1e6)),
}


@pytest.mark.parametrize("case", OVERFLOWS)
def test_what_overflows_ends_at_a_reset_and_begins_at_its_step(case):
    """0 * inf inside a chunk must reach no other step, forward or backward: those before and after are the loop's."""
    leaves, _ = made(2, 150, 3, 4, torch.float32)       # three chunks of 50 steps
    reset = torch.zeros(2, 150, dtype=torch.bool)
    reset[:, 40] = reset[:, 120] = True
    sane = torch.ones(2, 150, dtype=torch.bool)
    sane[0, 90:120] = False
    args = {n: x.detach().clone() for n, x in leaves.items()}
    for name, steps in OVERFLOWS[case].items():
        for t, value in steps.items():
            args[name][0, t] = value * leaves["k"].detach()[0, 90] if name == "k" else value
    results = []
    for backend in ("reference", "scan"):
        inputs = [x.clone().requires_grad_() for x in args.values()]
        h, M = kernels.delta(*inputs, reset, backend)
        if backend == "scan":
            assert not h.isfinite().all()
        results.append([h[sane], M, *(g[sane] for g in torch.autograd.grad(h[sane].sum() + M.sum(), inputs)[:4])])
    for want, got in zip(*results, strict=True):
        assert want.isfinite().all()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_overflow_in_the_numbers():
    v, one = torch.tensor([1.0, 3e38, -3e38, 1.0, 2.0]).reshape(1, 5, 1), torch.ones(1, 5, 1)
    h, M = kernels.delta(v, one, one, one[..., 0], None, torch.tensor([[False, False, False, True, False]]), "scan")
    assert h.flatten()[[0, 1, 3, 4]].tolist() == [1.0, v[0, 1].item(), 1.0, 2.0]
    assert not h[0, 2].isfinite()
    assert M.item() == 2


def test_long_sequences_stay_bounded():
    """No step may make the memory larger than the largest value written to it, over |k|."""
    leaves, reset = made(1, 5000, 4, 4, torch.float32, resets=0.001, unit=1.0)
    args = {n: x.detach() for n, x in leaves.items()}
    h, M = kernels.delta(**args, reset=reset)
    want, last = kernels.delta(**{n: x.double() for n, x in args.items()}, reset=reset, backend="reference")
    torch.testing.assert_close(h.double(), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(M.double(), last, rtol=1e-4, atol=1e-4)


def test_arguments_are_named():
    x = torch.ones(2, 3, 4)
    with pytest.raises(ValueError, match=r"beta must have shape \[2, 3\] to go with v"):
        kernels.delta(x, x, x, x)
    with pytest.raises(ValueError, match=r"M0 must have shape \[2, 4, 4\]"):
        kernels.delta(x, x, x, x[..., 0], x)
    with pytest.raises(TypeError, match="reset must be a bool tensor"):
        kernels.delta(x, x, x, x[..., 0], reset=x[..., 0])
    with pytest.raises(ValueError, match="unknown backend 'cpu' for delta; choose from auto, reference, scan"):
        kernels.delta(x, x, x, x[..., 0], backend="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("resets", [0.0, 0.05])
def test_on_the_gpu_as_on_the_cpu(resets):
    size = (3, 1000, 128, 128)
    got = run("scan", *made(*size, torch.float32, "cuda", resets=resets))
    want = run("scan", *made(*size, torch.float64, resets=resets))
    compare({n: x.double() for n, x in got.items()}, want, f"cuda {resets}", torch.float32)
