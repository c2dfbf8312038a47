"""What only a real GPU can show of the fused kernels: large shapes, CUDA graphs, determinism, memory, torch.compile."""

import pytest
import torch

import hadamem as hm

from ..cuda_graphs import captured

pytestmark = pytest.mark.gpu


def vectors(B, T, V, K=None, seed=0, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(seed)
    widths = (V, K or V, V, K or V, K or V)
    scales = (0.1, 1, 1, 0.2, 0.2)
    return [torch.randn(B, T, n, device="cuda", generator=generator, dtype=dtype) * s for n, s in zip(widths, scales, strict=True)]


def results(backend, inputs, M0=None, reset=None, clip=None, calibration="tanh"):
    leaves = [x.clone().requires_grad_() for x in (*inputs, *([] if M0 is None else [M0]))]
    h, M = hm.kernels.shm(*leaves[:5], None if M0 is None else leaves[5], reset, clip, calibration, backend)
    loss = (h * torch.linspace(-1, 1, h.numel(), device="cuda", dtype=h.dtype).reshape(h.shape)).sum() + M.sum()
    return [h.detach(), M.detach(), *torch.autograd.grad(loss, leaves)]


def worst(got, want):
    """The largest error of any result, relative to that result's largest entry."""
    return max(float((a.double() - b.double()).abs().max() / b.double().abs().max()) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("T", [1, 17, 1024])
@pytest.mark.parametrize("H", [24, 72, 128, 256])
def test_matches_a_float64_loop(H, T):
    inputs = vectors(2, T, H)
    generator = torch.Generator("cuda").manual_seed(1)
    M0 = torch.randn(2, H, H, device="cuda", generator=generator)
    reset = torch.rand(2, T, device="cuda", generator=generator) < 0.02
    want = results("reference", [x.double() for x in inputs], M0.double(), reset)
    assert worst(results("triton", inputs, M0, reset), want) < 2e-5


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("calibration", ["exp", "drift"])
@pytest.mark.parametrize(("B", "T", "H"), [(2, 130, 24), (2, 300, 128), (70, 33, 128)])
def test_other_forms_match_a_float64_loop(B, T, H, calibration, clip):
    inputs = vectors(B, T, H, dtype=torch.float32 if clip is None else torch.float64)   # in float32 others may be at the limit
    if calibration == "drift":
        inputs[0] = torch.cat([inputs[0], 0.02 * torch.randn_like(inputs[0])], dim=-1)
    reset = torch.rand(B, T, device="cuda", generator=torch.Generator("cuda").manual_seed(2)) < 0.02
    want = results("reference", [x.double() for x in inputs], None, reset, clip, calibration)
    assert worst(results("triton", inputs, None, reset, clip, calibration), want) < (2e-5 if clip is None else 1e-10)


ODD = [(1, 1000, 128, 128), (9, 130, 40, 156), (70, 33, 5, 5), (2, 65, 512, 512), (16, 100, 96, 12)]


@pytest.mark.parametrize(("B", "T", "V", "K"), ODD)
def test_odd_shapes_and_segments(B, T, V, K):
    inputs = vectors(B, T, V, K)
    reset = torch.rand(B, T, device="cuda", generator=torch.Generator("cuda").manual_seed(2)) < 0.05
    want = results("reference", [x.double() for x in inputs], None, reset)
    assert worst(results("triton", inputs, None, reset), want) < 2e-5


@pytest.mark.parametrize(("T", "V", "K"), [(17, 128, 128), (40, 100, 100), (33, 72, 104), (64, 66, 128), (64, 128, 127)])
@pytest.mark.parametrize("offset", [0, 1, 2, 4])
def test_vectors_at_any_address(T, V, K, offset):
    """The fastest tile takes aligned vectors only; others find another."""
    inputs = vectors(2, T, V, K)
    want = results("reference", [x.double() for x in inputs])
    odd = [torch.empty(x.numel() + offset, device="cuda")[offset:].view_as(x).copy_(x) for x in inputs]
    leaves = [x.requires_grad_() for x in odd]
    h, M = hm.kernels.shm(*leaves, backend="triton")
    loss = (h * torch.linspace(-1, 1, h.numel(), device="cuda").reshape(h.shape)).sum() + M.sum()
    assert worst([h, M, *torch.autograd.grad(loss, leaves)], want) < 2e-5


@pytest.mark.parametrize("H", [5, 24, 128, 156])
def test_clip_in_float64(H):
    inputs = vectors(2, 50, H, dtype=torch.float64)
    assert worst(results("triton", inputs, clip=0.3), results("reference", inputs, clip=0.3)) < 1e-10


@pytest.mark.parametrize(("B", "T", "V", "K"), [(8, 1024, 128, 128), *ODD])
def test_clip_in_segments(B, T, V, K):
    """Reached in some intervals and not in others. In float32 rounding decides for single entries whether they were limited."""
    inputs = vectors(B, T, V, K, dtype=torch.float64)
    inputs[2][:, ::50] *= 100
    reset = torch.rand(B, T, device="cuda", generator=torch.Generator("cuda").manual_seed(2)) < 0.01
    want = results("reference", inputs, None, reset, clip=30.0)
    assert worst(results("triton", inputs, None, reset, clip=30.0), want) < 1e-10
    assert worst(results("triton", inputs, None, reset), want) > 1e-3       # the limit matters
    for got, wanted in zip(results("triton", [x.float() for x in inputs], None, reset, clip=30.0), want, strict=True):
        off = (got - wanted).abs() > 1e-4 * wanted.abs().max()
        assert off.double().mean() < 1e-3


def test_gradients_are_the_same_bit_for_bit_every_time():
    inputs = vectors(8, 300, 128)
    reset = torch.rand(8, 300, device="cuda") < 0.05
    first = results("triton", inputs, None, reset)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, results("triton", inputs, None, reset), strict=True))


def test_inf_and_nan_end_at_the_next_reset():
    inputs = vectors(2, 200, 128)
    reset = torch.zeros(2, 200, dtype=torch.bool, device="cuda")
    reset[:, 100] = True
    clean = hm.kernels.shm(*inputs, reset=reset, backend="triton")[0]
    inputs[2][0, 40], inputs[3][0, 50] = float("inf"), float("nan")
    dirty, M = hm.kernels.shm(*inputs, reset=reset, backend="triton")
    assert not dirty[0, 50:100].isfinite().any()
    assert torch.equal(dirty[0, 100:], clean[0, 100:])
    assert torch.equal(dirty[1], clean[1])
    assert M.isfinite().all()


def test_a_hundred_thousand_steps_in_one_call():
    inputs = [x.requires_grad_() for x in vectors(1, 100_000, 128)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    h, _ = hm.kernels.shm(*inputs, backend="triton")
    h.sum().backward()
    vector = 100_000 * 128 * 4
    checkpoints = 100_000 / 8 * 128 * 128 * 4
    assert torch.cuda.max_memory_allocated() - before < 2.5 * checkpoints + 40 * vector   # [B, T, H, H] would be 6.5 GB
    assert all(x.grad.isfinite().all() for x in inputs)


@pytest.mark.parametrize("row_mode", ["first", "step", "episode"])
def test_training_and_acting_inside_cuda_graphs(row_mode):
    memory = hm.SHM(16, 8, memory_size=64, row_mode=row_mode, theta_init=1.0).cuda()
    x = torch.randn(4, 70, 16, device="cuda")
    reset = torch.rand(4, 70, device="cuda") < 0.05
    state = memory.initial_state(4)

    def train():
        y, _ = memory(x, state, reset)
        return y, torch.autograd.grad(y.square().sum(), list(memory.parameters()))

    def act():
        with torch.no_grad():
            return memory.step(x[:, 0], state, reset[:, 0])

    for run in (train, act):
        want, got, graph = captured(run)
        graph.replay()
        torch.testing.assert_close(got, want)


def test_compiles_without_a_graph_break():
    memory = hm.SHM(16, 8, memory_size=32).cuda()
    x = torch.randn(3, 20, 16, device="cuda")
    want, _ = memory(x)
    compiled = torch.compile(memory, fullgraph=True)
    got, _ = compiled(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    got.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in memory.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_memory_in_float32(dtype):
    memory = hm.SHM(16, 8, memory_size=32).cuda()
    x = torch.randn(3, 20, 16, device="cuda")
    with torch.autocast("cuda", dtype):
        y, state = memory(x)
    assert y.dtype == dtype
    assert state.M.dtype == torch.float32
    torch.testing.assert_close(y.float(), memory(x)[0], rtol=0.05, atol=0.05)


def test_gru_weights_stay_where_a_captured_graph_found_them():
    memory = hm.GRU(6, memory_size=10).cuda()
    x, state = torch.randn(3, 12, 6, device="cuda"), memory.initial_state(3)
    memory(x, state)
    places = [w.data_ptr() for w in memory.parameters()]
    memory(x, state)[0].sum().backward()
    assert [w.data_ptr() for w in memory.parameters()] == places


def test_gru_under_capture_resets_inside_the_sequence():
    memory = hm.GRU(6, memory_size=10).cuda()
    x, reset = torch.randn(3, 12, 6, device="cuda"), torch.rand(3, 12, device="cuda") < 0.3
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        want, _ = memory(x, None, reset)
        state = memory.initial_state(3)
        _, (got, _), graph = captured(lambda: memory(x, state, reset), warm_up=1)
        graph.replay()
    torch.testing.assert_close(got, want)
