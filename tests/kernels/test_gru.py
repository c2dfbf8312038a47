"""The GRU's recurrence: every backend against the loop and against PyTorch's module, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hadamem as hm
from hadamem import kernels
from hadamem.kernels.gru import LARGEST
from hadamem.memory.rnn import GRUState

from ..cuda_graphs import captured

LIMITS = {torch.float32: 2e-5, torch.float64: 1e-12}   # error over the largest entry
INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
HAS_TRITON = "triton" in kernels.backends("gru")
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton cannot run here")
SIZES = [(1, 1, 1), (3, 1, 5), (3, 17, 7), (2, 9, 16), (1, 12, 33), (5, 3, 20), (17, 3, LARGEST + 1)]   # B, T, H: odd on purpose
LARGE = [(7, 101, 64), (3, 201, 128), (2, 130, 100), (33, 50, 48), (300, 20, 128), (1, 1000, 96), (20, 104, 256), (3, 40, 200)]
NAMES = ("gi", "W", "b", "h0")


def problem(B, T, H, dtype=torch.float32, start=True, resets=True, device=DEVICE):
    generator = torch.Generator().manual_seed(3)

    def made(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    leaves = [made(B, T, 3 * H), made(3 * H, H) / H ** 0.5, made(3 * H)] + [made(B, H)] * start
    reset = (torch.rand(B, T, generator=generator) < 0.15).to(device) if resets else None
    return [x.to(device, dtype).requires_grad_() for x in leaves], reset, made(B, T, H).to(device, dtype)


def run(backend, leaves, reset, cotangent):
    h = kernels.gru(*leaves[:3], leaves[3] if len(leaves) > 3 else None, reset, backend)
    return [h.detach(), *torch.autograd.grad(h, leaves, cotangent)]


def assert_near(got, want, label="", limit=None):
    for name, g, w in zip(("h", *(f"d{n}" for n in NAMES)), got, want, strict=False):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        off = float((g.cpu() - w.cpu()).abs().max()) / max(1.0, float(w.abs().max()))
        assert off <= (limit or LIMITS[w.dtype]), f"{label} {name} is off by {off:.2g}"


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("size", [(2, 7, 3), (1, 1, 5)])
def test_reference_is_torchs_module(size, start):
    B, T, H = size
    leaves, _, cotangent = problem(B, T, H, torch.float64, start, False, "cpu")
    twin = nn.GRU(3 * H, H, batch_first=True).double()
    with torch.no_grad():
        twin.weight_ih_l0.copy_(torch.eye(3 * H))
        twin.bias_ih_l0.zero_()
        twin.weight_hh_l0.copy_(leaves[1])
        twin.bias_hh_l0.copy_(leaves[2])
    x, h0 = leaves[0].detach().clone().requires_grad_(), None if not start else leaves[3].detach().clone().requires_grad_()
    y, _ = twin(x, None if h0 is None else h0[None])
    inputs = [x, twin.weight_hh_l0, twin.bias_hh_l0] + [h0] * start
    assert_near(run("reference", leaves, None, cotangent), [y.detach(), *torch.autograd.grad(y, inputs, cotangent)])


@needs_triton
@pytest.mark.parametrize(("start", "resets"), [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("size", SIZES if INTERPRETED else [*SIZES, *LARGE])
def test_triton_matches_reference(size, start, resets):
    leaves, reset, cotangent = problem(*size, torch.float32, start, resets)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    want = [x.float() for x in run("reference", wide, reset, cotangent.double())]
    assert_near(run("triton", leaves, reset, cotangent), want, f"start={start} resets={resets}")
    with torch.no_grad():
        h = kernels.gru(*leaves[:3], leaves[3] if start else None, reset, "triton")
    assert_near([h], want)


@needs_triton
def test_tanh_is_exact_in_its_tails_and_near_zero():
    """With r = 1 and z = 0, h = tanh(gi_n): to a few units in the last place, where it is small too."""
    x = torch.cat((torch.logspace(-8, 2, 40), torch.tensor([0.0, 0.2, 0.19999, float("inf")])))
    x = torch.cat((x, -x))
    gi = torch.stack((torch.zeros_like(x), torch.full_like(x, -1e4), x), dim=-1)[:, None].to(DEVICE)   # [88, 1, 3]
    h = kernels.gru(gi, torch.zeros(3, 1, device=DEVICE), torch.zeros(3, device=DEVICE), backend="triton")[:, 0, 0].cpu()
    torch.testing.assert_close(h.double(), torch.tanh(x.double()), rtol=2e-6, atol=0)


@pytest.mark.parametrize("backend", kernels.backends("gru"))
def test_reset_drops_inf_and_nan(backend):
    """A broken state or input stays in its episode, forward and backward, and in its row."""
    leaves, _, _ = problem(2, 6, 3)
    reset = torch.zeros(2, 6, dtype=torch.bool, device=DEVICE)
    reset[:, 0] = reset[:, 3] = True
    want = kernels.gru(*leaves[:3], None, reset, "reference")
    for bad in (float("inf"), float("nan")):
        sick = [x.detach().clone() for x in leaves]
        sick[3][:] = bad
        for x in sick:
            x.requires_grad_()
        h = kernels.gru(*sick, reset, backend)
        torch.testing.assert_close(h, want, rtol=1e-4, atol=1e-5)
        grads = torch.autograd.grad(h.sum(), sick)
        assert all(g.isfinite().all() for g in grads)
        assert grads[3].eq(0).all()
        with torch.no_grad():
            sick[0][0, 1] = float("nan")
        h = kernels.gru(*sick, reset, backend)
        torch.testing.assert_close(h[:, 3:], want[:, 3:], rtol=1e-4, atol=1e-5)
        assert not h[0, 1].isfinite().any()
        assert h[1].isfinite().all()
        dgi, = torch.autograd.grad(h[:, 3:].sum(), sick[0])
        assert dgi[:, 3:].isfinite().all()
        assert dgi[1, :3].eq(0).all()


@needs_triton
def test_operator():
    leaves, reset, cotangent = problem(2, 3, 4)
    h = kernels.gru(*leaves, reset, "triton")   # registers it
    op = torch.ops.hadamem.gru_triton
    inputs = [x.detach().requires_grad_() for x in (leaves[0], leaves[1][None], leaves[2][None], leaves[3])]
    torch.library.opcheck(op, (*inputs, reset, True))
    torch.library.opcheck(op, (*inputs[:3], None, None, False), test_utils=("test_schema", "test_faketensor"))
    dgi, = torch.autograd.grad(h, leaves[0], cotangent, create_graph=True)
    with pytest.raises(RuntimeError, match="backend 'triton' of gru has no second derivative"):
        dgi.sum().backward()


@pytest.mark.parametrize("backend", kernels.backends("gru"))
@pytest.mark.parametrize("H", [3, LARGEST + 1])
def test_vmap_is_a_loop_over_calls(backend, H):
    groups = 3 if H == 3 else 2
    leaves, reset, _ = problem(2 * groups, 4 if H == 3 else 2, H)
    gi, W, b, h0 = (x.detach() for x in leaves)
    gi, h0 = gi.unflatten(0, (groups, 2)), h0.unflatten(0, (groups, 2))
    W, b = (torch.stack([(1 + i) * x for i in range(groups)]) for x in (W, b))

    def call(gi, W, b, h0):
        return kernels.gru(gi, W, b, h0, reset[:2], backend)

    torch.testing.assert_close(torch.vmap(call)(gi, W, b, h0), torch.stack([call(*x) for x in zip(gi, W, b, h0, strict=True)]))
    W.requires_grad_()
    want, = torch.autograd.grad(sum(call(*x).square().sum() for x in zip(gi, W, b, h0, strict=True)), W)
    got, = torch.autograd.grad(torch.vmap(call)(gi, W, b, h0).square().sum(), W)
    torch.testing.assert_close(got, want)
    shared = torch.vmap(call, (0, None, None, 0))(gi, W[0], b[0], h0)
    torch.testing.assert_close(shared, torch.stack([call(x, W[0], b[0], y) for x, y in zip(gi, h0, strict=True)]))


@pytest.mark.parametrize("backend", kernels.backends("gru"))
def test_strided_inputs_and_unaligned_weights(backend):
    leaves, reset, cotangent = problem(2, 5, 16)
    odd = [leaves[0].detach().transpose(0, 1).contiguous().transpose(0, 1), leaves[1].detach().t().contiguous().t(),
           leaves[2].detach().repeat_interleave(2)[::2], leaves[3].detach().repeat(1, 2)[:, :16]]
    shifted = torch.empty(48 * 16 + 1, device=DEVICE)[1:].view(48, 16).copy_(odd[1])
    strided = cotangent.transpose(0, 1).contiguous().transpose(0, 1)
    want = run("reference", leaves, reset, cotangent)
    for W in (odd[1], shifted):
        inputs = [x.requires_grad_() for x in (odd[0], W, *odd[2:])]
        assert_near(run(backend, inputs, reset, strided), want)
    expanded = torch.ones((), device=DEVICE).expand(2, 5, 16)
    assert_near(run(backend, leaves, reset, expanded), run("reference", leaves, reset, expanded.contiguous()))


@pytest.mark.parametrize("backend", kernels.backends("gru"))
def test_half_inputs_run_wide(backend):
    leaves, reset, _ = problem(2, 5, 4)
    half = [x.detach().bfloat16() for x in leaves]
    h = kernels.gru(*half, reset, backend)
    assert h.dtype == torch.bfloat16
    torch.testing.assert_close(h, kernels.gru(*(x.float() for x in half), reset, "reference").bfloat16())
    with torch.autocast(DEVICE, torch.bfloat16):
        assert kernels.gru(*leaves, reset, backend).dtype == torch.float32


@needs_triton
def test_compiles_without_a_graph_break():
    leaves, reset, cotangent = problem(2, 5, 4)

    def call(*x):
        return kernels.gru(*x, reset, "triton")

    h = torch.compile(call, fullgraph=True, backend="aot_eager")(*leaves)
    assert_near([h.detach(), *torch.autograd.grad(h, leaves, cotangent)], run("reference", leaves, reset, cotangent))


def test_dtypes_without_a_kernel_take_the_reference():
    leaves, reset, cotangent = problem(1, 2, 3, torch.float64)
    assert_near(run("auto", leaves, reset, cotangent), run("reference", leaves, reset, cotangent))
    if HAS_TRITON:
        with pytest.raises(ValueError, match=r"takes float32, got torch.float64; use backend='reference'"):
            run("triton", leaves, reset, cotangent)


X = torch.ones(2, 3, 12)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    (([1.0], X, X), ValueError, r"gi must be a tensor of shape \[B, T, 3H\], got list"),
    ((X[0], X, X), ValueError, r"gi must be a tensor of shape \[B, T, 3H\], got \[3, 12\]"),
    ((X[..., :4], X, X), ValueError, "must hold three gates of H numbers each"),
    ((X[:, :0], X, X), ValueError, "must not have empty axes"),
    ((X, X, X), ValueError, r"W must have shape \[12, 4\] to go with gi \[2, 3, 12\], got \[2, 3, 12\]"),
    ((X, torch.ones(12, 4), X), ValueError, r"b must have shape \[12\]"),
    ((X, torch.ones(12, 4), torch.ones(12), X), ValueError, r"h0 must have shape \[2, 4\]"),
    ((X, torch.ones(12, 4), torch.ones(12), None, torch.zeros(2, 3)), TypeError, "reset must be a bool tensor"),
    ((X, torch.ones(12, 4), torch.ones(12), None, None, "scan"), ValueError, "unknown backend 'scan' for gru; choose from auto, reference"),
])
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        kernels.gru(*arguments)


# --- on a GPU, in the module


def both(H, D=6, **options):
    """A GRU on the fused kernel, and one with the same weights on cuDNN, in float64 (in float32 it would use TF32)."""
    memory, twin = (hm.GRU(D, memory_size=H, backend=backend, **options).cuda() for backend in ("auto", "torch"))
    twin.load_state_dict(memory.state_dict())
    return memory, twin.double()


def results(memory, x, h0, reset):
    dtype = next(memory.parameters()).dtype
    leaf, start = (s.detach().to(dtype, copy=True).requires_grad_() for s in (x, h0))
    y, after = memory(leaf, GRUState(start), reset)
    loss = (y * torch.linspace(-1, 1, y.numel(), device="cuda", dtype=dtype).reshape(y.shape)).sum() + after.h.square().sum()
    return [y.detach(), after.h.detach(), *torch.autograd.grad(loss, [leaf, start, *memory.parameters()])]


def close(got, want, limit=2e-5):
    for g, w in zip(got, want, strict=True):
        assert float((g.double() - w.double()).abs().max()) <= limit * max(1.0, float(w.abs().max()))


@pytest.mark.gpu
@pytest.mark.parametrize(("B", "T", "H", "resets"), [
    *((*size, resets) for size in [(64, 101, 64), (5, 201, 128), (3, 40, 10), (2, 526, 100), (200, 33, 128)] for resets in (None, 0.1)),
    (20, 104, 256, 0.1),     # without resets it is cuDNN's
])
def test_module_matches_cudnn(B, T, H, resets):
    memory, twin = both(H)
    x, h0 = torch.randn(B, T, 6, device="cuda"), torch.randn(B, H, device="cuda")
    assert memory._has_kernel(x, whole=resets is None)
    assert not twin._has_kernel(x, whole=False)
    reset = None if resets is None else torch.rand(B, T, device="cuda") < resets
    first, second = (results(memory, x, h0, reset) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first[:4], second[:4], strict=True))   # the kernels sum in a fixed order
    close(first, results(twin, x, h0, reset))


@pytest.mark.gpu
@pytest.mark.parametrize("H", [128, 256])
def test_module_trains_inside_a_cuda_graph_with_resets(H):
    memory, twin = both(H, output_size=8)
    x, reset, h0 = torch.randn(8, 70, 6, device="cuda"), torch.rand(8, 70, device="cuda") < 0.05, torch.randn(8, H, device="cuda")
    want, got, graph = captured(lambda: results(memory, x, h0, reset))
    graph.replay()
    torch.testing.assert_close(got, want)
    close(got, results(twin, x, h0, reset))
    x.copy_(torch.randn_like(x))
    reset.copy_(torch.rand(8, 70, device="cuda") < 0.2)                  # where episodes end is read at each replay
    graph.replay()
    close(got, results(twin, x, h0, reset))


@pytest.mark.gpu
@pytest.mark.parametrize("allow_rnn", [False, True])
def test_module_under_torch_compile(allow_rnn):
    memory, twin = both(40)
    x, reset = torch.randn(4, 30, 6, device="cuda"), torch.rand(4, 30, device="cuda") < 0.1
    h0 = torch.randn(4, 40, device="cuda")
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=allow_rnn):                # dynamo leaves modules that hold a library RNN alone otherwise
        close(results(torch.compile(memory, fullgraph=allow_rnn), x, h0, reset), results(twin, x, h0, reset))


@pytest.mark.gpu
def test_module_keeps_to_the_library_where_it_must():
    x = torch.randn(2, 5, 6, device="cuda")
    small, large, wide = hm.GRU(6, memory_size=16).cuda(), hm.GRU(6, memory_size=129).cuda(), hm.GRU(6, memory_size=16).cuda().double()
    assert small._has_kernel(x, whole=True)
    assert not small._has_kernel(x[:, :1], whole=False)
    assert large._has_kernel(x, whole=False)
    assert not large._has_kernel(x, whole=True)
    assert not wide._has_kernel(x.double(), whole=False)
    with torch.autocast("cuda", torch.bfloat16):
        assert not small._has_kernel(x, whole=False)
