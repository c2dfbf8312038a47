"""s_t = a_t ⊙ s_{t-1} + u_t: every backend against the loop, real and complex, with a factor per step or one for all."""

from __future__ import annotations

import pytest
import torch

from hadamem import kernels
from hadamem.kernels.diagonal.pairs import diagonal_pairs

DTYPES = {torch.float32: 2e-5, torch.complex64: 2e-5, torch.float64: 1e-12, torch.complex128: 1e-12}   # error over the largest entry
INTERPRETED = not torch.cuda.is_available()
FUSED = [b for b in kernels.backends("diagonal") if b in ("cpu", "triton")]
SIZES = [(1, 1, (4,)), (3, 11, (5, 3)), (2, 7, ()), (5, 2, (1,)), (2, 130, (37,)), (1, 1025, (2, 2))]   # B, T, N: odd on purpose


def device_of(backend):
    return "cuda" if torch.cuda.is_available() and backend != "cpu" else "cpu"


def problem(B, T, N, dtype, constant, start, resets, device="cpu"):
    """Leaves a, u (and s0), flags, and a cotangent. |a| stays below 1, as over a thousand steps it must."""
    generator = torch.Generator().manual_seed(3)
    wide = torch.complex128 if dtype.is_complex else torch.float64

    def normal(*shape, scale=1.0):
        return scale * torch.randn(shape, generator=generator, dtype=wide)

    a = normal(*N) if constant else normal(B, T, *N)
    a = (a / (0.2 + a.abs())).to(wide)
    if not constant:
        a[:, ::3] = 0   # exact zeros are legal
    made = [a, normal(B, T, *N), *([normal(B, *N)] if start else [])]
    reset = (torch.rand(B, T, generator=generator) < 0.15).to(device) if resets else None
    return [x.to(device, dtype).requires_grad_() for x in made], reset, normal(B, T, *N).to(device, dtype)


def run(backend, leaves, reset, cotangent):
    s = kernels.diagonal(*leaves[:2], leaves[2] if len(leaves) > 2 else None, reset, backend)
    return [s.detach(), *torch.autograd.grad(s, leaves, cotangent, materialize_grads=True)]


def assert_near(got, want, dtype, label=""):
    for name, g, w in zip(("s", "da", "du", "ds0"), got, want, strict=False):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        off = float((g.cpu() - w.cpu()).abs().max()) / max(1.0, float(w.abs().max()))
        assert off <= DTYPES[dtype], f"{label} {name} is off by {off:.2g}"


def cases():
    found = []
    for backend in kernels.backends("diagonal")[1:]:
        for size in SIZES:
            for dtype in DTYPES:
                many = size[1] > 100 or size[0] > 3 or dtype in (torch.float64, torch.complex128)
                slow = many and backend == "triton" and INTERPRETED
                if not slow:
                    found.append(pytest.param(backend, size, dtype, id=f"{backend}-{size}-{str(dtype)[6:]}"))
    return found


@pytest.mark.parametrize(("backend", "size", "dtype"), cases())
def test_matches_reference(backend, size, dtype):
    settings = [(False, False), (True, True)] + [(True, False), (False, True)] * (size[1] <= 100)
    for constant in (False, True):
        for start, resets in settings:
            leaves, reset, cotangent = problem(*size, dtype, constant, start, resets, device_of(backend))
            label = f"{backend} constant={constant} start={start} resets={resets}"
            assert_near(run(backend, leaves, reset, cotangent), run("reference", leaves, reset, cotangent), dtype, label)


@pytest.mark.parametrize("constant", [False, True])
def test_reference_is_the_recurrence(constant):
    """One cell by hand: a reset drops the state before its step, s0 counts before the first."""
    a = torch.tensor(2.0) if constant else torch.full((1, 3), 2.0)
    s = kernels.diagonal(a, torch.tensor([[1.0, 10.0, 100.0]]), torch.tensor([5.0]), torch.tensor([[False, True, False]]), "reference")
    assert s.tolist() == [[11.0, 10.0, 120.0]]


@pytest.mark.parametrize("backend", kernels.backends("diagonal"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])
@pytest.mark.parametrize("constant", [False, True])
def test_reset_drops_inf_and_nan(backend, dtype, constant):
    """A broken state or input stays in its episode, forward and backward, and in its row."""
    device = device_of(backend)
    leaves, _, cotangent = problem(2, 6, (3,), dtype, constant, True, False, device)
    reset = torch.zeros(2, 6, dtype=torch.bool, device=device)
    reset[:, 0] = reset[:, 3] = True
    want = run("reference", leaves, reset, cotangent)
    for bad in (float("inf"), float("nan")):
        a, u, s0 = (x.detach().clone() for x in leaves)
        s0[:] = bad
        assert_near(run(backend, [a.requires_grad_(), u.requires_grad_(), s0.requires_grad_()], reset, cotangent), want, dtype)
        with torch.no_grad():
            u[0, 1] = bad
        s = kernels.diagonal(a, u, s0, reset, backend)
        assert not s[0, 1].isfinite().any()
        assert_near([s[:, 3:].detach(), s[1].detach()], [want[0][:, 3:], want[0][1]], dtype)
        du, = torch.autograd.grad(s[:, 3:].abs().sum(), u)
        assert du.isfinite().all()
        assert du[:, :3].eq(0).all()


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])
@pytest.mark.parametrize("constant", [False, True])
def test_operator(backend, dtype, constant):
    leaves, reset, cotangent = problem(2, 3, (4,), dtype, constant, True, True, device_of(backend))
    op = getattr(torch.ops.hadamem, f"diagonal_{backend}")
    kernels.diagonal(*leaves, reset, backend)   # registers it
    a = leaves[0].detach().reshape(1, 1, 4) if constant else leaves[0].detach()
    torch.library.opcheck(op, (a.requires_grad_(), *leaves[1:], reset))
    torch.library.opcheck(op, (a, leaves[1], None, None))
    s = kernels.diagonal(*leaves, reset, backend)
    du, = torch.autograd.grad(s, leaves[1], cotangent, create_graph=True)
    with pytest.raises(RuntimeError, match="call it with backend='scan'"):
        du.abs().sum().backward()


@pytest.mark.parametrize("backend", ["scan", *FUSED])
@pytest.mark.parametrize("constant", [False, True])
def test_vmap_is_a_loop_over_calls(backend, constant):
    device, n = device_of(backend), 3
    a = torch.randn(n, *((5,) if constant else (2, 4, 5)), device=device) * 0.5
    u, s0 = torch.randn(n, 2, 4, 5, device=device), torch.randn(n, 2, 5, device=device)
    reset = torch.rand(2, 4, device=device) < 0.3

    def call(a, u, s0):
        return kernels.diagonal(a, u, s0, reset, backend)

    want = torch.stack([call(*x) for x in zip(a, u, s0, strict=True)])
    torch.testing.assert_close(torch.vmap(call)(a, u, s0), want)
    torch.testing.assert_close(torch.vmap(call, (None, 0, None))(a[0], u, s0[0]), torch.stack([call(a[0], x, s0[0]) for x in u]))


@pytest.mark.parametrize("backend", [b for b in kernels.backends("diagonal") if not (b == "triton" and INTERPRETED)])
@pytest.mark.parametrize("constant", [False, True])
def test_gradcheck(backend, constant):
    for dtype in (torch.float64, torch.complex128):
        leaves, reset, _ = problem(2, 3, (2,), dtype, constant, True, True, device_of(backend))
        assert torch.autograd.gradcheck(lambda *x, r=reset: kernels.diagonal(*x, r, backend), leaves)
        if backend in ("reference", "scan"):
            assert torch.autograd.gradgradcheck(lambda *x, r=reset: kernels.diagonal(*x, r, backend), leaves)


@pytest.mark.parametrize("backend", kernels.backends("diagonal"))
def test_views_conjugates_and_mixed_dtypes(backend):
    device = device_of(backend)
    u, s0 = torch.randn(6, 2, 8, device=device).transpose(0, 1)[..., ::2], torch.randn(2, 4, dtype=torch.complex64, device=device)
    a = torch.randn(4, dtype=torch.complex64, device=device, requires_grad=True)
    results = []
    for name in ("reference", backend):
        s = kernels.diagonal(a.conj(), u, s0.conj(), None, name)   # real u, complex a
        results.append([s.detach(), *torch.autograd.grad((s.conj() * s0[:, None]).imag.sum(), a)])
    assert results[1][0].dtype == torch.complex64
    assert_near(results[1], results[0], torch.complex64)
    half = kernels.diagonal(a.real.half(), u.half(), backend=backend)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, kernels.diagonal(a.real.half().float(), u.half().float(), backend="reference"))


@pytest.mark.parametrize("backend", FUSED)
def test_threads_and_repetition_do_not_change_a_bit(backend):
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for constant in (False, True):
                size = (3, 40, (2500,)) if backend == "cpu" else (3, 3, (2,))
                results.append(run(backend, *problem(*size, torch.complex64, constant, True, True, device_of(backend))))
    finally:
        torch.set_num_threads(before)
    for i, other in enumerate(results):
        assert all(torch.equal(x, y) for x, y in zip(other, results[i % 2], strict=True))


def test_scan_keeps_zeros_where_powers_overflow():
    u = torch.zeros(1, 300, 2)
    u[:, -2:] = 1.0
    s = kernels.diagonal(torch.full((2,), 2.0), u, backend="scan")
    assert s[0, :, 0].tolist() == [0.0] * 298 + [1.0, 3.0]


@pytest.mark.parametrize("constant", [False, True])
def test_compiles_without_a_graph_break(constant):
    leaves, reset, cotangent = problem(2, 5, (3, 2), torch.complex64, constant, True, True)

    def call(*x):
        return kernels.diagonal(*x, reset, "cpu")

    s = torch.compile(call, fullgraph=True, backend="aot_eager")(*leaves)
    assert_near([s.detach(), *torch.autograd.grad(s, leaves, cotangent)], run("reference", leaves, reset, cotangent), torch.complex64)


X = torch.ones(2, 3, 4)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ((X, [1.0]), ValueError, r"u must be a tensor of shape \[B, T, \*N\], got list"),
    ((X, X[0, 0]), ValueError, r"u must be a tensor of shape \[B, T, \*N\], got \[4\]"),
    ((X[:, :0], X[:, :0]), ValueError, "must not have empty axes"),
    ((X, X.int()), TypeError, "u must have a floating or complex dtype, got torch.int32"),
    ((0.5, X), TypeError, "a must be a torch.Tensor, got float"),
    ((X[:1], X), ValueError, r"a must have the shape of u \[2, 3, 4\], or \[4\] if it is the same at all steps; got \[1, 3, 4\]"),
    ((X[0, 0, :3], X), ValueError, r"got \[3\]"),
    ((X, X, X), ValueError, r"s0 must have shape \[2, 4\] to go with u \[2, 3, 4\], got \[2, 3, 4\]"),
    ((X, X, None, torch.zeros(2, 3)), TypeError, "reset must be a bool tensor"),
    ((X, X, None, torch.zeros(2, 4, dtype=torch.bool)), ValueError, r"reset must have shape \[B, T\] = \[2, 3\]"),
    ((X, X, None, None, "cuda"), ValueError, "unknown backend 'cuda' for diagonal; choose from auto, reference"),
])
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        kernels.diagonal(*arguments)


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "dtype", "constant"), [
    ((8, 1024, (128, 16)), torch.float32, False), ((8, 1024, (128, 4)), torch.complex64, True), ((1, 10_000, (3,)), torch.complex64, True),
    ((64, 33, (128, 128)), torch.float32, False),
])
def test_large_shapes_on_the_gpu(size, dtype, constant):
    leaves, reset, cotangent = problem(*size, dtype, constant, True, True, "cuda")
    wide = torch.complex128 if dtype.is_complex else torch.float64
    want = run("reference", [x.detach().to(wide).requires_grad_() for x in leaves], reset, cotangent.to(wide))
    first, second = (run("triton", leaves, reset, cotangent) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    assert_near([x.to(wide) for x in first], want, dtype)


@pytest.mark.parametrize("resets", [False, True])
def test_pairs_of_real_numbers_match_complex_ones(resets):
    """What programs of torch.export compute."""
    (a, u, s0), reset, _ = problem(3, 11, (5, 3), torch.complex128, True, True, resets)
    want = kernels.diagonal(a, u.real, s0, reset, "reference")
    got = diagonal_pairs(torch.view_as_real(a), u.real, torch.view_as_real(s0), reset)
    torch.testing.assert_close(torch.view_as_complex(got), want)
