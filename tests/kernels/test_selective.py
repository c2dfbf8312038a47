"""S6's recurrence from vectors: every backend against the loop, forward and backward."""

from __future__ import annotations

import pytest
import torch

from hadamem import kernels

LIMITS = {torch.float32: 2e-5, torch.float64: 1e-12}   # error over the largest entry
INTERPRETED = not torch.cuda.is_available()
FUSED = [b for b in kernels.backends("selective") if b in ("cpu", "triton")]
SIZES = [(1, 1, 1, 1), (3, 17, 7, 5), (2, 16, 20, 2), (2, 33, 5, 16), (2, 40, 150, 3), (1, 300, 130, 4)]   # B, T, D, N: odd on purpose
NAMES = ("delta", "A", "v", "k", "q", "S0")


def device_of(backend):
    return "cuda" if torch.cuda.is_available() and backend != "cpu" else "cpu"


def problem(B, T, D, N, dtype=torch.float32, start=True, resets=True, device="cpu"):
    generator = torch.Generator().manual_seed(3)

    def made(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    leaves = [0.3 * made(B, T, D).abs(), -3 * made(D, N).abs(), made(B, T, D), made(B, T, N), made(B, T, N)] + [made(B, D, N)] * start
    reset = (torch.rand(B, T, generator=generator) < 0.15).to(device) if resets else None
    return [x.to(device, dtype).requires_grad_() for x in leaves], reset, [x.to(device, dtype) for x in (made(B, T, D), made(B, D, N))]


def run(backend, leaves, reset, cotangents):
    h, S = kernels.selective(*leaves[:5], leaves[5] if len(leaves) > 5 else None, reset, backend)
    return [h.detach(), S.detach(), *torch.autograd.grad([h, S], leaves, cotangents, materialize_grads=True)]


def assert_near(got, want, label=""):
    for name, g, w in zip(("h", "S_T", *(f"d{n}" for n in NAMES)), got, want, strict=False):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        off = float((g.cpu() - w.cpu()).abs().max()) / max(1.0, float(w.abs().max()))
        assert off <= LIMITS[w.dtype], f"{label} {name} is off by {off:.2g}"


def cases():
    found = []
    for backend in kernels.backends("selective")[1:]:
        for size in SIZES:
            for dtype in LIMITS:
                slow = backend == "triton" and INTERPRETED and (size[1] > 17 or dtype == torch.float64)
                if not slow:
                    found.append(pytest.param(backend, size, dtype, id=f"{backend}-{size}-{str(dtype)[6:]}"))
    return found


@pytest.mark.parametrize(("backend", "size", "dtype"), cases())
def test_matches_reference(backend, size, dtype):
    for start, resets in ((False, False), (True, True)):
        leaves, reset, cotangents = problem(*size, dtype, start, resets, device_of(backend))
        assert_near(run(backend, leaves, reset, cotangents), run("reference", leaves, reset, cotangents), f"{backend} start={start}")


@pytest.mark.parametrize("backend", kernels.backends("selective"))
def test_reset_drops_inf_and_nan(backend):
    """A broken state or input stays in its episode, forward and backward, and in its row."""
    leaves, _, _ = problem(2, 6, 3, 2, device=device_of(backend))
    reset = torch.zeros(2, 6, dtype=torch.bool, device=device_of(backend))
    reset[:, 0] = reset[:, 3] = True
    want = kernels.selective(*leaves[:5], None, reset, "reference")
    for bad in (float("inf"), float("nan")):
        sick = [x.detach().clone() for x in leaves]
        sick[5][:] = bad
        sick[2][0, 1] = bad
        for x in sick:
            x.requires_grad_()
        h, S = kernels.selective(*sick, reset, backend)
        torch.testing.assert_close(h[:, 3:], want[0][:, 3:], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(S, want[1], rtol=1e-4, atol=1e-5)
        assert not h[0, 1].isfinite().any()
        assert h[1].isfinite().all()
        grads = torch.autograd.grad(h[:, 3:].sum() + S.sum(), sick)
        for name, g in zip(NAMES, grads, strict=True):
            if name in ("v", "k", "S0"):
                late = g[:, 3:] if name != "S0" else g
                assert late.isfinite().all(), name
            if name in ("v", "S0"):
                assert (g[:, :3] if name == "v" else g).eq(0).all(), name


@pytest.mark.parametrize("backend", kernels.backends("selective"))
def test_factors_at_the_ends_of_their_range(backend):
    """A factor that underflows leaves nothing of the largest state, one that overflows is large; A = -inf forgets all in one step."""
    device, one = device_of(backend), torch.ones(1, 3, 1, device=device_of(backend))
    for T in (1, 3):
        for A, S0, want in ((-1.0, 1e38, 1.0), (float("-inf"), 1.0, 1.0)):
            S0 = torch.full((1, 1, 1), S0, device=device, requires_grad=True)
            A = torch.full((1, 1), A, device=device)
            h, S = kernels.selective(200 * one[:, :T], A, one[:, :T], one[:, :T], one[:, :T], S0, None, backend)
            assert h.flatten().tolist() == [want] * T
            assert S.item() == want
            assert torch.autograd.grad(S.sum(), S0)[0].item() == 0
            with torch.no_grad():
                assert kernels.selective(200 * one[:, :T], A, one[:, :T], one[:, :T], one[:, :T], S0, None, backend)[1].item() == want
    S = kernels.selective(one, torch.full((1, 1), 126.0, device=device) * 0.6931471805599453, 0 * one, one, one, 1e-37 + 0 * one[:, :1],
                          None, backend)[1]
    assert S.item() > 1e37


@pytest.mark.parametrize("backend", FUSED)
def test_operator(backend):
    leaves, reset, cotangents = problem(2, 3, 4, 2, device=device_of(backend))
    h, _ = kernels.selective(*leaves, reset, backend)   # registers it
    op = getattr(torch.ops.hadamem, f"selective_{backend}")
    inputs = [x.detach().requires_grad_() for x in (leaves[0], leaves[1][None], *leaves[2:])]
    torch.library.opcheck(op, (*inputs, reset, True))
    torch.library.opcheck(op, (*inputs[:5], None, None, False), test_utils=("test_schema", "test_faketensor"))
    dv, = torch.autograd.grad(h, leaves[2], cotangents[0], create_graph=True)
    with pytest.raises(RuntimeError, match="call it with backend='scan'"):
        dv.sum().backward()


@pytest.mark.parametrize("backend", ["scan", *FUSED])
def test_vmap_is_a_loop_over_calls(backend):
    leaves, reset, _ = problem(6, 4, 3, 2, device=device_of(backend))
    delta, A, v, k, q, S0 = (x.detach() for x in leaves)
    many = [x.unflatten(0, (3, 2)) for x in (delta, v, k, q, S0)]
    A = torch.stack([A, 2 * A, 3 * A])

    def call(A, delta, v, k, q, S0):
        return kernels.selective(delta, A, v, k, q, S0, reset[:2], backend)

    for dims, As in ((0, A), (None, A[:1].expand(3, -1, -1))):
        want = [torch.stack(x) for x in zip(*(call(*x) for x in zip(As, *many, strict=True)), strict=True)]
        got = torch.vmap(call, (dims, 0, 0, 0, 0, 0))(A if dims == 0 else A[0], *many)
        torch.testing.assert_close(list(got), want)


@pytest.mark.parametrize("backend", [b for b in kernels.backends("selective") if not (b == "triton" and INTERPRETED)])
def test_gradcheck(backend):
    leaves, reset, _ = problem(2, 18, 2, 3, torch.float64, device=device_of(backend))
    assert torch.autograd.gradcheck(lambda *x: kernels.selective(*x, reset, backend), leaves)


@pytest.mark.parametrize("backend", FUSED)
def test_one_step_without_gradients(backend):
    """The acting step may go another way."""
    for start, resets in ((False, False), (True, False), (True, True)):
        leaves, reset, _ = problem(9, 1, 5, 19, start=start, resets=resets, device=device_of(backend))
        arguments = (*leaves[:5], leaves[5] if start else None, reset)
        with torch.no_grad():
            assert_near(kernels.selective(*arguments, backend), kernels.selective(*arguments, "reference"))


def test_threads_and_batch_do_not_change_a_bit():
    pytest.importorskip("numba")
    leaves, reset, cotangents = problem(3, 40, 300, 7)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(run("cpu", leaves, reset, cotangents))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for other in results[1:] for x, y in zip(other, results[0], strict=True))
    alone = run("cpu", [x if x.ndim == 2 else x[:1].detach().requires_grad_() for x in leaves], reset[:1], [c[:1] for c in cotangents])
    for name, x, y in zip(("h", "S_T", *NAMES), alone, results[0], strict=True):
        assert name == "A" or torch.equal(x[0], y[0]), name


def test_nothing_of_the_size_of_all_states_is_kept():
    """Between forward and backward, the fused backend holds the inputs and every 16th state; half-precision inputs are computed wide."""
    pytest.importorskip("numba")
    leaves, _, _ = problem(2, 64, 64, 32, resets=False)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        kernels.selective(*leaves, None, "cpu")
    assert max(sizes) == 2 * 64 * 64 * 32 // 16
    halves = [x.detach().half() for x in leaves]
    h, S = kernels.selective(*halves, backend="cpu")
    assert (h.dtype, S.dtype) == (torch.float16, torch.float32)
    torch.testing.assert_close(S, kernels.selective(*(x.float() for x in halves), backend="reference")[1], rtol=1e-4, atol=1e-4)


def test_compiles_without_a_graph_break():
    leaves, reset, cotangents = problem(2, 5, 3, 2)
    h, S = torch.compile(lambda *x: kernels.selective(*x, reset, "cpu"), fullgraph=True, backend="aot_eager")(*leaves)
    got = [h.detach(), S.detach(), *torch.autograd.grad([h, S], leaves, cotangents)]
    assert_near(got, run("reference", leaves, reset, cotangents))


X, A, K = torch.ones(2, 3, 4), torch.ones(4, 5), torch.ones(2, 3, 5)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ((X, A, 1.0, K, K), ValueError, r"v must be a tensor of shape \[B, T, D\], got float"),
    ((X, A, X, K[0], K), ValueError, r"k must be a tensor of shape \[B, T, N\], got \[3, 5\]"),
    ((X, A.T, X, K, K), ValueError, r"A must have shape \[4, 5\] to go with k \[2, 3, 5\], got \[5, 4\]"),
    ((X.int(), A, X, K, K), TypeError, "delta must have a floating dtype"),
    ((X, A, X, K, X), ValueError, r"q must have shape \[2, 3, 5\]"),
    ((X, A, X, K, K, A), ValueError, r"S0 must have shape \[2, 4, 5\]"),
    ((X[:, :0], A, X[:, :0], K[:, :0], K[:, :0]), ValueError, "must not have empty axes"),
    ((X, A, X, K, K, None, None, "gpu"), ValueError, "unknown backend 'gpu' for selective"),
])
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        kernels.selective(*arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(8, 1024, 128, 16), (2, 100, 128, 512), (3, 33, 20, 5)])
def test_large_shapes_on_the_gpu(size):
    leaves, reset, cotangents = problem(*size, device="cuda")
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = [x.float() for x in run("reference", wide, reset, [c.double() for c in cotangents])]
    first, second = (run("triton", leaves, reset, cotangents) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    assert_near(first, want)
