"""Every op on every backend equals the reference, forward and backward."""

from __future__ import annotations

import pytest
import torch

from hadamem import kernels
from hadamem.kernels.shm.forms import find_form

TOLERANCES = {torch.float32: dict(rtol=1e-4, atol=2e-5), torch.float64: dict(rtol=1e-9, atol=1e-11)}
# B, T, V, K: odd on purpose
SIZES = [(1, 1, 4, 4), (3, 63, 5, 5), (2, 130, 24, 24), (2, 9, 3, 7), (1, 17, 33, 6), (5, 2, 1, 1)]
TINY = [(1, 1, 4, 4), (2, 17, 5, 5), (1, 33, 24, 24), (2, 3, 3, 7), (1, 130, 3, 4)]   # for Triton's interpreter
INTERPRETED = not torch.cuda.is_available()


def sizes(backend: str) -> list[tuple[int, int, int, int]]:
    return TINY if backend == "triton" and INTERPRETED else SIZES


def device_of(backend: str) -> str:
    return "cuda" if torch.cuda.is_available() and backend != "cpu" else "cpu"


def inputs(names: dict[str, tuple[int, ...]], dtype: torch.dtype, device: str, scale=1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = {n: scale * torch.randn(*shape, generator=generator, dtype=torch.float64) for n, shape in names.items()}
    return {n: x.to(device, dtype).requires_grad_() for n, x in made.items()}


def compare(got: dict, want: dict, label: str, dtype: torch.dtype) -> None:
    for name in want:
        scale = max(1.0, float(want[name].abs().max()))
        torch.testing.assert_close(got[name].cpu() / scale, want[name] / scale, **TOLERANCES[dtype],
                                   msg=lambda m, n=name: f"{label} {n}: {m}")


def run_shm(backend, args, cotangents, reset, clip, calibration) -> dict:
    vectors = [args.get(n) for n in ("theta", "vc", "v", "k", "q", "M0")]
    h, M = kernels.shm(*vectors, reset, clip, calibration, backend)
    leaves = {n: x for n, x in args.items() if calibration != "none" or n not in ("theta", "vc")}
    grads = torch.autograd.grad([h, M], list(leaves.values()), cotangents, materialize_grads=True)
    return {"h": h.detach(), "M_T": M.detach(), **{f"d{n}": g for n, g in zip(leaves, grads, strict=True)}}


SETTINGS = {   # every option that changes what a kernel does
    "plain": dict(),
    "M0": dict(M0=True),
    "resets": dict(M0=True, resets=True),
    "clip": dict(M0=True, clip=0.8),
    "resets-clip": dict(resets=True, clip=0.8),
    "sigmoid": dict(M0=True, resets=True, calibration="sigmoid"),
    "sigmoid-clip": dict(M0=True, clip=0.5, calibration="sigmoid"),
    "none": dict(M0=True, resets=True, calibration="none"),
    "none-clip": dict(resets=True, clip=0.5, calibration="none"),
    "exp": dict(M0=True, resets=True, calibration="exp"),
    "exp-clip": dict(M0=True, resets=True, clip=0.8, calibration="exp:1.5"),
    "drift": dict(M0=True, resets=True, calibration="drift"),
    "drift-clip": dict(M0=True, clip=0.8, calibration="drift:2.5"),
}


def shm_cases() -> list:
    """All combinations; for the slow interpreter, float64 on the shortest only and few settings on the longest."""
    found = []
    for backend in kernels.backends("shm"):
        for size in sizes(backend):
            for setting in SETTINGS:
                for dtype in TOLERANCES:
                    slow = backend == "triton" and INTERPRETED
                    some, longest = ("resets", "clip", "drift", "drift-clip"), ("resets", "drift")
                    few = {True: longest, size[1] <= 100: some, size[1] <= 20: tuple(SETTINGS)}[True]
                    left_out = setting not in few or (size[1] > 4 and dtype == torch.float64)
                    if backend != "reference" and not (slow and left_out):
                        label = f"{backend}-{setting}-B{size[0]}T{size[1]}V{size[2]}K{size[3]}-{str(dtype)[6:]}"
                        found.append(pytest.param(backend, size, setting, dtype, id=label))
    return found


@pytest.mark.parametrize(("backend", "size", "setting", "dtype"), shm_cases())
def test_shm_matches_reference(backend, size, setting, dtype):
    options, (B, T, V, K), device = SETTINGS[setting], size, device_of(backend)
    settings = options.get("clip"), options.get("calibration", "tanh")
    rows = 2 * V if find_form(settings[1]).drift else V
    names = {"theta": (B, T, rows), "vc": (B, T, K), "v": (B, T, V), "k": (B, T, K), "q": (B, T, K)}
    names |= {"M0": (B, V, K)} if options.get("M0") else {}
    args = inputs(names, dtype, device, scale=0.7)
    generator = torch.Generator().manual_seed(5)
    reset = torch.rand(B, T, generator=generator) < 0.15 if options.get("resets") else None
    cotangents = [torch.randn(B, T, V, generator=generator), torch.randn(B, V, K, generator=generator)]
    judge = {n: x.detach().cpu().requires_grad_() for n, x in args.items()}
    want = run_shm("reference", judge, [c.to(dtype) for c in cotangents], reset, *settings)
    there = None if reset is None else reset.to(device)
    got = run_shm(backend, args, [c.to(device, dtype) for c in cotangents], there, *settings)
    compare(got, want, f"{backend} {setting}", dtype)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=["float32", "float64"])
@pytest.mark.parametrize("backend", kernels.backends("shm")[1:])
def test_limits_reached_in_the_middle_only(backend, dtype):
    B, T, V, K = 1, 77, 3, 4
    device, clip, loud = device_of(backend), 0.6, slice(41, 44)
    args = inputs({"theta": (B, T, V), "vc": (B, T, K), "v": (B, T, V), "k": (B, T, K), "q": (B, T, K)}, dtype, device, scale=0.2)
    with torch.no_grad():
        args["v"][:, :] *= 0.01
        args["v"][:, loud] *= 3e4
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 70] = True
    cotangents = [torch.ones(B, T, V, dtype=dtype), torch.ones(B, V, K, dtype=dtype)]
    judge = {n: x.detach().cpu().requires_grad_() for n, x in args.items()}
    want = run_shm("reference", judge, cotangents, reset, clip, "tanh")
    free = run_shm("reference", judge, cotangents, reset, None, "tanh")
    assert (want["dv"][:, loud] == 0).double().mean() > 0.5                 # no gradient passes where it was limited,
    assert (want["dv"][:, :32] != free["dv"][:, :32]).any()                 # and less comes to the segments before,
    assert torch.equal(want["dv"][:, 70:], free["dv"][:, 70:])              # while the next episode knows nothing of it
    got = run_shm(backend, args, [c.to(device) for c in cotangents], reset.to(device), clip, "tanh")
    compare(got, want, backend, dtype)


@pytest.mark.parametrize("backend", kernels.backends("shm")[1:])
def test_a_limit_that_is_not_met_stops_no_gradient(backend):
    """Not even nan, where C is so small that products of it vanish."""
    B, T, V, K = 1, 70, 3, 4
    device = device_of(backend)
    args = inputs({"theta": (B, T, V), "vc": (B, T, K), "v": (B, T, V), "k": (B, T, K), "q": (B, T, K)}, torch.float32, device)
    with torch.no_grad():
        args["theta"].fill_(-3.0)
        args["vc"].fill_(3.0)
    end = torch.zeros(B, V, K, device=device)
    end[0, 0, 0] = torch.nan
    cotangents = [torch.zeros(B, T, V, device=device), end]
    for clip in (None, 1e8):
        got = run_shm(backend, args, cotangents, None, clip, "sigmoid")
        assert got["dv"][0, :, 0].isnan().all()
        assert not got["dv"][0, :, 1:].isnan().any()


@pytest.mark.parametrize("calibration", ["tanh", "exp:3"])
@pytest.mark.parametrize("backend", kernels.backends("shm"))
def test_with_a_limit_gradients_stay_finite_where_nothing_is_written(backend, calibration):
    """The gradient of a cell that doubles at every step and is never written to overflows; a key of 0 times inf would be nan."""
    B, T, V, K, dead = 1, 300, 3, 4, 2
    device = device_of(backend)
    args = inputs({"theta": (B, T, V), "vc": (B, T, K), "v": (B, T, V), "k": (B, T, K), "q": (B, T, K)}, torch.float32, device, scale=0.1)
    with torch.no_grad():
        args["theta"][:] = 3.0
        args["vc"][..., dead] = 9.0
        args["k"][..., dead] = 0.0
        args["M0"] = torch.zeros(B, V, K, device=device, requires_grad=True)
    cotangents = [torch.ones(B, T, V, device=device), torch.ones(B, V, K, device=device)]
    got = run_shm(backend, args, cotangents, None, 1e8, calibration)
    judge = {n: x.detach().cpu().double().requires_grad_() for n, x in args.items()}
    want = run_shm("reference", judge, [c.cpu().double() for c in cotangents], None, None, calibration)
    assert want["dk"][..., dead].abs().max() > 1e60
    assert all(x.isfinite().all() for x in got.values())
    for x in (got, want):
        x["dk"][..., dead] = x["dM0"][..., dead] = 0
    compare(got, {n: x.float() for n, x in want.items()}, backend, torch.float32)


def run_hadamard(backend, args, cotangents, reset, with_q) -> dict:
    result = kernels.hadamard(args["C"], args["U"], args.get("q"), args.get("M0"), reset, backend)
    results = dict(zip(("h", "M_T"), result, strict=True)) if with_q else {"M": result}
    grads = torch.autograd.grad(list(results.values()), list(args.values()), cotangents, materialize_grads=True)
    return {**{n: x.detach() for n, x in results.items()}, **{f"d{n}": g for n, g in zip(args, grads, strict=True)}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("setting", ["plain", "M0", "M0-resets", "resets-q", "M0-resets-q"])
@pytest.mark.parametrize(("backend", "size"), [(b, s) for b in kernels.backends("hadamard")[1:] for s in sizes(b)])
def test_hadamard_matches_reference(backend, size, setting, dtype):
    (B, T, V, K), device, with_q = size, device_of(backend), setting.endswith("q")
    names = {"C": (B, T, V, K), "U": (B, T, V, K)} | ({"q": (B, T, K)} if with_q else {})
    names |= {"M0": (B, V, K)} if "M0" in setting else {}
    args = inputs(names, dtype, device, scale=0.8)
    with torch.no_grad():
        args["C"][:, ::3] = 0   # exact zeros are legal
    reset = torch.rand(B, T, generator=torch.Generator().manual_seed(5)) < 0.15 if "resets" in setting else None
    shapes = [(B, T, V), (B, V, K)] if with_q else [(B, T, V, K)]
    cotangents = [torch.randn(*s, generator=torch.Generator().manual_seed(6 + i)) for i, s in enumerate(shapes)]
    judge = {n: x.detach().cpu().requires_grad_() for n, x in args.items()}
    want = run_hadamard("reference", judge, [c.to(dtype) for c in cotangents], reset, with_q)
    there = None if reset is None else reset.to(device)
    got = run_hadamard(backend, args, [c.to(device, dtype) for c in cotangents], there, with_q)
    compare(got, want, f"{backend} {setting}", dtype)


@pytest.mark.parametrize("backend", kernels.backends("shm"))
def test_same_inputs_same_bits(backend):
    device = device_of(backend)
    args = inputs(dict.fromkeys(("theta", "vc", "v", "k", "q"), (2, 7, 5)) | {"M0": (2, 5, 5)}, torch.float32, device)
    cotangents = [torch.ones(2, 7, 5, device=device), torch.ones(2, 5, 5, device=device)]
    first, second = (run_shm(backend, args, cotangents, None, None, "tanh") for _ in range(2))
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("backend", kernels.backends("shm"))
def test_strided_inputs_and_unused_outputs(backend):
    """Views with odd strides are read rightly, and a loss on h or M_T alone is enough."""
    device = device_of(backend)
    wide = torch.randn(7, 2, 30, generator=torch.Generator().manual_seed(1)).to(device)
    v, k, q, theta, vc = (wide.transpose(0, 1)[..., 6 * i:6 * i + 6][..., ::2] for i in range(5))   # [2, 7, 3]
    wide_theta = theta[:, :1].expand(-1, 7, -1)   # stride 0 over time
    for pick in (0, 1):
        results = []
        for name in ("reference", backend):
            leaf = v.detach().clone().requires_grad_()
            out = kernels.shm(wide_theta, vc, leaf, k, q, backend=name)[pick]
            out.sum().backward()
            results.append((out.detach(), leaf.grad))
        for got, want in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(got, want, **TOLERANCES[torch.float32])


@pytest.mark.parametrize("backend", kernels.backends("shm"))
def test_reset_drops_inf_and_nan(backend):
    """Neither a broken initial memory nor a broken input gets past a reset, forward or backward."""
    device = device_of(backend)
    made = inputs(dict.fromkeys(("theta", "vc", "v", "k", "q"), (2, 6, 4)), torch.float32, device)
    args = {n: x.detach() for n, x in made.items()}
    reset = torch.zeros(2, 6, dtype=torch.bool, device=device)
    reset[:, 3] = True
    clean = kernels.shm(**args, reset=reset, backend="reference")
    for bad in (float("inf"), float("nan")):
        sick = dict(args, v=args["v"].clone())
        sick["v"][0, 1] = bad
        h, M = kernels.shm(**sick, M0=torch.full((2, 4, 4), bad, device=device), reset=reset, backend=backend)
        torch.testing.assert_close(h[:, 3:], clean[0][:, 3:], **TOLERANCES[torch.float32])
        torch.testing.assert_close(M, clean[1], **TOLERANCES[torch.float32])
        h, _ = kernels.shm(**sick, reset=reset, backend=backend)
        torch.testing.assert_close(h[1], clean[0][1], **TOLERANCES[torch.float32])   # the other row is untouched
        leaf = args["theta"].clone().requires_grad_()
        h, _ = kernels.shm(**dict(args, theta=leaf), M0=torch.full((2, 4, 4), bad, device=device),
                           reset=torch.ones_like(reset), backend=backend)
        h.sum().backward()
        assert leaf.grad.isfinite().all()
