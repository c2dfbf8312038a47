"""Outer products under one decay: chunks of matrix products equal the plain loop, whatever the gates, the resets and the lengths."""

from __future__ import annotations

import pytest
import torch

from hadamem import kernels

from .test_backends_match_reference import compare

SIZES = [(1, 1, 4, 4), (3, 2, 1, 1), (2, 63, 5, 5), (2, 64, 3, 7), (2, 65, 7, 3), (2, 130, 24, 24)]   # B, T, V, K
GATES = {
    "none": None,
    "mild": lambda d, g: (-d.abs(), g),
    "decay": lambda d, g: (-d.abs(), None),
    "gain": lambda d, g: (None, 3 * g),
    "hot": lambda d, g: (-d.abs(), 95 + 5 * g),
    "forgetful": lambda d, g: (torch.where(d > 0.5, -1e5, -40 * d.abs()), 20 * g),      # decays of exp(-1e5) = 0 among those of nearly 1
    "shut": lambda d, g: (-d.abs(), torch.where(g > 0, -torch.inf, g)),
}


def made(B, T, V, K, dtype, device="cpu", gates="none", resets=0.0, seed=0, start=True):
    """Arguments of `additive`: what is differentiated, and what is not."""
    r = torch.Generator().manual_seed(seed)
    draw = {n: torch.randn(*s, generator=r, dtype=torch.float64)
            for n, s in dict(v=(B, T, V), k=(B, T, K), q=(B, T, K), M0=(B, V, K), n0=(B, K), m0=(B,), d=(B, T), g=(B, T)).items()}
    reset = torch.rand(B, T, generator=r) < resets if resets else None
    decay, gain = (None, None) if GATES[gates] is None else GATES[gates](draw.pop("d"), draw.pop("g"))
    leaves = {n: draw[n] for n in ("v", "k", "q", *(("M0", "n0") if start else ()))}
    leaves |= {n: x for n, x in (("log_decay", decay), ("log_gain", gain)) if x is not None}
    fixed = {"m0": draw["m0"]} if GATES[gates] is not None and start else {}
    there = {n: x.to(device, dtype) for n, x in fixed.items()} | {"reset": None if reset is None else reset.to(device)}
    return {n: x.to(device, dtype).requires_grad_() for n, x in leaves.items()}, there


def run(backend, leaves, fixed):
    out = kernels.additive(**leaves, **fixed, normalizer=True, backend=backend)
    r = torch.Generator().manual_seed(9)
    results = {n: x for n, x in out._asdict().items() if x is not None}
    loss = sum((x * torch.randn(x.shape, generator=r, dtype=torch.float64).to(x)).sum() for n, x in results.items() if n != "m")
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return {n: x.detach() for n, x in results.items()} | {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}


def check(got, want, label, dtype):
    compare({n: x.double() for n, x in got.items()}, {n: x.cpu().double() for n, x in want.items()}, label, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("resets", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("gates", GATES)
def test_scan_equals_the_loop(gates, resets, dtype):
    for size in SIZES:
        arguments = made(*size, dtype, gates=gates, resets=resets)
        wide = made(*size, torch.float64, gates=gates, resets=resets)
        check(run("scan", *arguments), run("reference", *wide), f"{gates} {resets} {size}", dtype)


def test_the_equations_with_numbers():
    """f = 1/2, i = 2 by hand: M_1 = 2 v k, M_2 = M_1 / 2 + 2 v k, in units of exp(m)."""
    one, half, two = torch.ones(1, 2, 1), torch.log(torch.tensor([[0.5, 0.5]])), torch.log(torch.tensor([[2.0, 2.0]]))
    for backend in ("reference", "scan"):
        out = kernels.additive(3 * one, one, one, half, two, normalizer=True, backend=backend)
        torch.testing.assert_close(torch.exp(out.m) * out.h[..., 0], torch.tensor([[6.0, 9.0]]))
        torch.testing.assert_close(torch.exp(out.m) * out.z, torch.tensor([[2.0, 3.0]]))
        torch.testing.assert_close(torch.exp(out.m[0, -1]) * out.M, torch.full((1, 1, 1), 9.0))
        plain = kernels.additive(3 * one, one, one, backend=backend)
        assert plain.h.flatten().tolist() == [3.0, 6.0]
        assert (plain.m, plain.z, plain.n) == (None, None, None)


def test_true_values_do_not_depend_on_the_units():
    leaves, fixed = made(2, 70, 4, 4, torch.float64, gates="mild", resets=0.05)
    out = kernels.additive(**leaves, **fixed, normalizer=True)
    unit = torch.exp(fixed["m0"] - 3)
    moved = {**leaves, "M0": leaves["M0"] * unit[:, None, None], "n0": leaves["n0"] * unit[:, None]}
    zero = kernels.additive(**moved, reset=fixed["reset"], m0=torch.full((2,), 3.0).double(), normalizer=True)
    torch.testing.assert_close(torch.exp(zero.m)[..., None] * zero.h, torch.exp(out.m)[..., None] * out.h)


SICK = [(gates, sick, bad) for bad in (float("inf"), float("nan")) for sick in ("v", "k", "q", "M0", "n0", "log_gain")
        for gates in ("none", "mild") if sick != "log_gain" or (gates == "mild" and bad != float("inf"))]      # inf is taken as exp(10^4)


@pytest.mark.parametrize(("gates", "sick", "bad"), SICK)
def test_what_is_not_finite_ends_at_a_reset_and_begins_at_its_step(gates, sick, bad):
    """It is in no step before it, none of another row, none after the reset; nor in the gradients of those."""
    B, T, at, end = 2, 150, 70, 100
    leaves, _ = made(B, T, 3, 4, torch.float64, gates=gates)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[:, end] = reset[:, 40] = True
    state = sick in ("M0", "n0")
    sane = torch.ones(B, T, dtype=torch.bool)
    sane[0, slice(40) if state else slice(at, end)] = False
    results = []
    for poison in (False, True):
        args = {n: x.detach().clone() for n, x in leaves.items()}
        if poison:
            args[sick][0, ... if state else at] = bad
        args = {n: x.requires_grad_() for n, x in args.items()}
        out = kernels.additive(**args, reset=reset, normalizer=True, backend="scan")
        if poison and sick != "n0":
            hit = out.h[0, :40] if state else out.h[0, at] if sick == "q" else out.h[0, at:end]
            assert not hit.isfinite().any()
        grads = torch.autograd.grad(out.h[sane].sum() + out.z[sane].sum() + out.M.sum() + out.n.sum(), list(args.values()))
        results.append([out.h[sane], out.z[sane], out.M, out.n, *(g[sane] for g in grads[:3])])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_a_state_that_overflowed_is_dropped_by_a_reset():
    T = 200
    v, k, q = (torch.full((1, T, 2), x, requires_grad=True) for x in (1e30, 1e30, 1.0))
    reset = torch.zeros(1, T, dtype=torch.bool)
    reset[0, 150] = True
    small = torch.where(torch.arange(T)[:, None] < 150, 1.0, 1e-30)
    h, M, *_ = kernels.additive(v * small, k * small, q, reset=reset)
    assert not h[0, :150].isfinite().any()
    torch.testing.assert_close(h[0, 150:, 0], 2 * torch.arange(1.0, 51.0))
    torch.testing.assert_close(M, torch.full((1, 2, 2), 50.0))
    dq = torch.autograd.grad(h[0, 150:].sum(), q)[0]
    assert dq[0, 150:].isfinite().all()


def test_a_query_whose_products_overflow_is_alone_with_it():
    v, k, q = (torch.randn(1, 6, 3, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        q[0, 4], k[0, 2] = 1e38, 1e10
    results = []
    for backend in ("reference", "scan"):
        h = kernels.additive(v, k, q, backend=backend).h
        assert not h[0, 4].isfinite().any()
        h = h[:, [0, 1, 2, 3, 5]]
        results.append([h, *torch.autograd.grad(h.sum(), (v, k, q))])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_long_sequences_stay_finite_and_exact():
    """10^4 steps with gates of any size: the last chunk equals a loop that starts from the state before it."""
    leaves, _ = made(1, 10_000, 4, 4, torch.float32, gates="forgetful", resets=0.001, start=False)
    args = {n: x.detach() for n, x in leaves.items()}
    before = kernels.additive(**{n: x[:, :-50] for n, x in args.items()}, normalizer=True)
    want = kernels.additive(**{n: x[:, -50:] for n, x in args.items()}, M0=before.M, n0=before.n, m0=before.m[:, -1], normalizer=True,
                            backend="reference")
    got = kernels.additive(**args, normalizer=True)
    torch.testing.assert_close(got.h[:, -50:], want.h, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.m[:, -50:], want.m)
    assert got.h.isfinite().all()


def test_arguments_are_named():
    x = torch.ones(2, 3, 4)
    with pytest.raises(ValueError, match=r"v must be a tensor of shape \[B, T, V\], got \[2, 3\]"):
        kernels.additive(x[..., 0], x, x)
    with pytest.raises(ValueError, match=r"q must have shape \[2, 3, 4\] to go with v"):
        kernels.additive(x, x, x[..., :2])
    with pytest.raises(ValueError, match=r"log_decay must have shape \[2, 3\]"):
        kernels.additive(x, x, x, log_decay=x)
    with pytest.raises(ValueError, match="n0 was given without normalizer=True"):
        kernels.additive(x, x, x, n0=x[:, 0])
    with pytest.raises(ValueError, match="m0 was given without log_decay or log_gain"):
        kernels.additive(x, x, x, m0=x[:, 0, 0])
    with pytest.raises(ValueError, match="unknown backend 'triton' for additive; choose from auto, reference, scan"):
        kernels.additive(x, x, x, backend="triton")


def test_half_precision_is_computed_in_float32():
    x = torch.randn(2, 70, 4)
    out = kernels.additive(x.bfloat16(), x.bfloat16(), x.bfloat16(), log_gain=x[..., 0].bfloat16())
    assert out.h.dtype == torch.bfloat16
    assert out.M.dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.parametrize("gates", ["none", "mild", "hot", "forgetful"])
@pytest.mark.parametrize("resets", [0.0, 0.05])
def test_on_the_gpu_as_on_the_cpu(gates, resets):
    size = (3, 1000, 128, 128)
    got = run("scan", *made(*size, torch.float32, "cuda", gates=gates, resets=resets))
    check(got, run("scan", *made(*size, torch.float64, gates=gates, resets=resets)), gates, torch.float32)


@pytest.mark.gpu
def test_a_hundred_thousand_steps_on_the_gpu():
    leaves, fixed = made(1, 100_000, 128, 128, torch.float32, "cuda", gates="mild", resets=0.001)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = kernels.additive(**leaves, **fixed, normalizer=True)
    out.h.sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 100 * 100_000 * 128 * 4      # [B, T, H, H] would be 128 times a vector's 51 MB
    assert all(x.grad.isfinite().all() for x in leaves.values() if x.grad is not None)
