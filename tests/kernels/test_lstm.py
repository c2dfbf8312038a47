"""The LSTM's recurrence: every backend against the loop and against PyTorch's module, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hadamem as hm
from hadamem import kernels
from hadamem.memory.rnn import LSTMState

from ..cuda_graphs import captured

LIMITS = {torch.float32: 2e-5, torch.float64: 1e-12}   # error over the largest entry
INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
HAS_TRITON = "triton" in kernels.backends("lstm")
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton cannot run here")
SIZES = [(1, 1, 1), (3, 1, 5), (3, 17, 7), (2, 6, 16), (17, 3, 33), (2, 5, 64), (1, 1, 65), (2, 3, 70)]   # B, T, H: odd; above 64, in steps
LARGE = [(7, 101, 64), (20, 104, 256), (2, 130, 100), (33, 50, 48), (300, 20, 128), (1, 1000, 96)]
NAMES = ("h", "c", "dgi", "dW", "dh0", "dc0")


def problem(B, T, H, dtype=torch.float32, start=True, resets=True, device=DEVICE):
    """Leaves, resets, and what h and the last c are multiplied with in the loss."""
    generator = torch.Generator().manual_seed(3)

    def made(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    leaves = [made(B, T, 4 * H), made(4 * H, H) / H ** 0.5] + [made(B, H), made(B, H)] * start
    reset = (torch.rand(B, T, generator=generator) < 0.15).to(device) if resets else None
    return [x.to(device, dtype).requires_grad_() for x in leaves], reset, [made(B, T, H).to(device, dtype), made(B, H).to(device, dtype)]


def run(backend, leaves, reset, cotangents):
    start = leaves[2:] or [None, None]
    results = kernels.lstm(*leaves[:2], *start, reset, backend)
    return [*(x.detach() for x in results), *torch.autograd.grad(results, leaves, cotangents)]


def assert_near(got, want, label=""):
    for name, g, w in zip(NAMES, got, want, strict=False):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        off = float((g.cpu() - w.cpu()).abs().max()) / max(1.0, float(w.abs().max()))
        assert off <= LIMITS[w.dtype], f"{label} {name} is off by {off:.2g}"


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("size", [(2, 7, 3), (1, 1, 5)])
def test_reference_is_torchs_module(size, start):
    B, T, H = size
    leaves, _, cotangents = problem(B, T, H, torch.float64, start, False, "cpu")
    twin = nn.LSTM(4 * H, H, bias=False, batch_first=True).double()
    with torch.no_grad():
        twin.weight_ih_l0.copy_(torch.eye(4 * H))
        twin.weight_hh_l0.copy_(leaves[1])
    x, *state = (leaf.detach().clone().requires_grad_() for leaf in (leaves[0], *leaves[2:]))
    y, (_, c) = twin(x, tuple(s[None] for s in state) if start else None)
    grads = torch.autograd.grad((y, c[0]), [x, twin.weight_hh_l0, *state], cotangents)
    assert_near(run("reference", leaves, None, cotangents), [y.detach(), c[0].detach(), *grads])


@needs_triton
@pytest.mark.parametrize(("start", "resets"), [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("size", SIZES if INTERPRETED else [*SIZES, *LARGE])
def test_triton_matches_reference(size, start, resets):
    leaves, reset, cotangents = problem(*size, torch.float32, start, resets)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = [x.float() for x in run("reference", wide, reset, [x.double() for x in cotangents])]
    assert_near(run("triton", leaves, reset, cotangents), want, f"start={start} resets={resets}")
    with torch.no_grad():
        assert_near(kernels.lstm(*leaves[:2], *(leaves[2:] or [None, None]), reset, "triton"), want)


@needs_triton
@pytest.mark.parametrize("which", [0, 1])
def test_one_of_the_results_alone_has_gradients(which):
    """Of h, or of the last c."""
    leaves, reset, cotangents = problem(2, 4, 5)
    want, got = (torch.autograd.grad(kernels.lstm(*leaves, reset, backend)[which], leaves, cotangents[which])
                 for backend in ("reference", "triton"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", kernels.backends("lstm"))
def test_reset_drops_inf_and_nan(backend):
    """A broken state or input stays in its episode, forward and backward, and in its row."""
    leaves, _, _ = problem(2, 6, 3)
    reset = torch.zeros(2, 6, dtype=torch.bool, device=DEVICE)
    reset[:, 0] = reset[:, 3] = True
    want, _ = kernels.lstm(*leaves[:2], None, None, reset, "reference")
    for bad in (float("inf"), float("nan")):
        sick = [x.detach().clone() for x in leaves]
        sick[2][:] = sick[3][:] = bad
        for x in sick:
            x.requires_grad_()
        h, c = kernels.lstm(*sick, reset, backend)
        torch.testing.assert_close(h, want, rtol=1e-4, atol=1e-5)
        grads = torch.autograd.grad(h.sum() + c.sum(), sick)
        assert all(g.isfinite().all() for g in grads)
        assert grads[2].eq(0).all()
        assert grads[3].eq(0).all()
        with torch.no_grad():
            sick[0][0, 1] = float("nan")
        h, _ = kernels.lstm(*sick, reset, backend)
        torch.testing.assert_close(h[:, 3:], want[:, 3:], rtol=1e-4, atol=1e-5)
        assert not h[0, 1].isfinite().any()
        assert h[1].isfinite().all()
        dgi, = torch.autograd.grad(h[:, 3:].sum(), sick[0])
        assert dgi[:, 3:].isfinite().all()
        assert dgi[1, :3].eq(0).all()


@needs_triton
def test_operator():
    leaves, reset, cotangents = problem(2, 3, 4)
    h, _ = kernels.lstm(*leaves, reset, "triton")   # registers it
    op = torch.ops.hadamem.lstm_triton
    inputs = [x.detach().requires_grad_() for x in (leaves[0], leaves[1][None], *leaves[2:])]
    torch.library.opcheck(op, (*inputs, reset, True))
    torch.library.opcheck(op, (*inputs[:2], None, None, None, False), test_utils=("test_schema", "test_faketensor"))
    dgi, = torch.autograd.grad(h, leaves[0], cotangents[0], create_graph=True)
    with pytest.raises(RuntimeError, match="backend 'triton' of lstm has no second derivative"):
        dgi.sum().backward()


@pytest.mark.parametrize("backend", kernels.backends("lstm"))
def test_vmap_is_a_loop_over_calls(backend):
    leaves, reset, _ = problem(6, 4, 3)
    gi, W, h0, c0 = (x.detach() for x in leaves)
    gi, h0, c0 = (x.unflatten(0, (3, 2)) for x in (gi, h0, c0))
    W = torch.stack([W, 2 * W, 3 * W])

    def call(gi, W, h0, c0):
        return kernels.lstm(gi, W, h0, c0, reset[:2], backend)[0]

    torch.testing.assert_close(torch.vmap(call)(gi, W, h0, c0), torch.stack([call(*x) for x in zip(gi, W, h0, c0, strict=True)]))
    W.requires_grad_()
    want, = torch.autograd.grad(sum(call(*x).square().sum() for x in zip(gi, W, h0, c0, strict=True)), W)
    got, = torch.autograd.grad(torch.vmap(call)(gi, W, h0, c0).square().sum(), W)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", kernels.backends("lstm"))
def test_strided_inputs(backend):
    leaves, reset, cotangents = problem(2, 5, 16)
    odd = [leaves[0].detach().transpose(0, 1).contiguous().transpose(0, 1), leaves[1].detach().t().contiguous().t(),
           *(x.detach().repeat(1, 2)[:, :16] for x in leaves[2:])]
    strided = [cotangents[0].transpose(0, 1).contiguous().transpose(0, 1), cotangents[1].repeat(1, 2)[:, :16]]
    want = run("reference", leaves, reset, cotangents)
    assert_near(run(backend, [x.requires_grad_() for x in odd], reset, strided), want)


@pytest.mark.parametrize("backend", kernels.backends("lstm"))
def test_half_inputs_run_wide(backend):
    leaves, reset, _ = problem(2, 5, 4)
    half = [x.detach().bfloat16() for x in leaves]
    results = kernels.lstm(*half, reset, backend)
    for got, want in zip(results, kernels.lstm(*(x.float() for x in half), reset, "reference"), strict=True):
        torch.testing.assert_close(got, want.bfloat16())
    with torch.autocast(DEVICE, torch.bfloat16):
        assert kernels.lstm(*leaves, reset, backend)[0].dtype == torch.float32


@needs_triton
def test_compiles_without_a_graph_break():
    leaves, reset, cotangents = problem(2, 5, 4)

    def call(*x):
        return kernels.lstm(*x, reset, "triton")

    results = torch.compile(call, fullgraph=True, backend="aot_eager")(*leaves)
    assert_near([*(x.detach() for x in results), *torch.autograd.grad(results, leaves, cotangents)],
                run("reference", leaves, reset, cotangents))


def test_dtypes_without_a_kernel_take_the_reference():
    leaves, reset, cotangents = problem(1, 2, 3, torch.float64)
    assert_near(run("auto", leaves, reset, cotangents), run("reference", leaves, reset, cotangents))
    if HAS_TRITON:
        with pytest.raises(ValueError, match=r"takes float32, got torch.float64; use backend='reference'"):
            run("triton", leaves, reset, cotangents)


X = torch.ones(2, 3, 16)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    (([1.0], X), ValueError, r"gi must be a tensor of shape \[B, T, 4H\], got list"),
    ((X[0], X), ValueError, r"gi must be a tensor of shape \[B, T, 4H\], got \[3, 16\]"),
    ((X[..., :6], X), ValueError, "must hold four gates of H numbers each"),
    ((X[:, :0], X), ValueError, "must not have empty axes"),
    ((X, X), ValueError, r"W must have shape \[16, 4\] to go with gi \[2, 3, 16\], got \[2, 3, 16\]"),
    ((X, torch.ones(16, 4), X), ValueError, r"h0 must have shape \[2, 4\]"),
    ((X, torch.ones(16, 4), None, X), ValueError, r"c0 must have shape \[2, 4\]"),
    ((X, torch.ones(16, 4), None, None, torch.zeros(2, 3)), TypeError, "reset must be a bool tensor"),
    ((X, torch.ones(16, 4), None, None, None, "scan"), ValueError, "unknown backend 'scan' for lstm; choose from auto, reference"),
])
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        kernels.lstm(*arguments)


@pytest.mark.parametrize("backend", kernels.backends("lstm"))
def test_module_on_a_backend_is_the_library_module(backend):
    memory, twin = (hm.LSTM(6, 3, memory_size=5, backend=name).to(DEVICE) for name in (backend, "torch"))
    twin.load_state_dict(memory.state_dict())
    x, reset = torch.randn(2, 7, 6, device=DEVICE), torch.rand(2, 7, device=DEVICE) < 0.3
    with torch.backends.cudnn.flags(allow_tf32=False):
        for got, want in zip(flat(memory(x, None, reset)), flat(twin(x, None, reset)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def flat(result):
    y, state = result
    return [y, *state]


@pytest.mark.gpu
def test_module_trains_inside_a_cuda_graph_with_resets():
    memory, twin = (hm.LSTM(6, 8, memory_size=256, backend=backend).cuda() for backend in ("auto", "torch"))
    twin.load_state_dict(memory.state_dict())
    twin.double()
    x, reset = torch.randn(8, 70, 6, device="cuda"), torch.rand(8, 70, device="cuda") < 0.05
    h0, c0 = torch.randn(2, 8, 256, device="cuda").unbind(0)
    assert memory._has_kernel(x, whole=False)
    assert not memory._has_kernel(x, whole=True)

    def results(memory):
        dtype = next(memory.parameters()).dtype
        leaf, *start = (s.detach().to(dtype, copy=True).requires_grad_() for s in (x, h0, c0))
        y, after = memory(leaf, LSTMState(*start), reset)
        loss = (y * torch.linspace(-1, 1, y.numel(), device="cuda", dtype=dtype).reshape(y.shape)).sum() + after.c.square().sum()
        return [y.detach(), after.c.detach(), *torch.autograd.grad(loss, [leaf, *start, *memory.parameters()])]

    def close(got, want):
        for g, w in zip(got, want, strict=True):
            assert float((g.double() - w).abs().max()) <= 2e-5 * max(1.0, float(w.abs().max()))

    _, got, graph = captured(lambda: results(memory))
    graph.replay()
    close(got, results(twin))
    x.copy_(torch.randn_like(x))
    reset.copy_(torch.rand(8, 70, device="cuda") < 0.2)                  # where episodes end is read at each replay
    graph.replay()
    close(got, results(twin))
