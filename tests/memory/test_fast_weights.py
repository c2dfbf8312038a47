"""Fast weights: a literal loop, the framework's form of the write, long sequences, wide states, torch.compile."""

from __future__ import annotations

import pytest
import torch

import hadamem as hm
from hadamem.testing import check_memory


def build(H=6, **options):
    memory = hm.FastWeights(4, options.pop("output_size", None), H, **options).double()
    with torch.no_grad():
        for p in memory.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return memory


def slow(memory, x, M, h, reset):
    """One row x [T, D] from the equations -> h and M of every step."""
    hs, Ms = [], []
    for x_t, opens in zip(x, reset, strict=True):
        if opens:
            M, h = torch.zeros_like(M), torch.zeros_like(h)
        b = memory.recur.weight @ h + memory.input.weight @ x_t + memory.input.bias
        h = b.clamp(min=0)
        for _ in range(memory.settle):
            z = b + M @ h
            z = (z - z.mean()) / (z.var(unbiased=False) + 1e-5).sqrt()
            h = (z * memory.norm.weight + memory.norm.bias).clamp(min=0)
        M = memory.decay * M + memory.rate * torch.outer(h, h)
        hs.append(h)
        Ms.append(M)
    return torch.stack(hs), torch.stack(Ms)


def problem(memory, B=3, T=13):
    H, g = memory.memory_size, torch.Generator().manual_seed(1)
    x = torch.randn(B, T, 4, generator=g).double()
    state = memory.initial_state(B)._replace(M=torch.randn(B, H, H, generator=g).double(), h=torch.randn(B, H, generator=g).double())
    return x, state, torch.rand(B, T, generator=g) < 0.2


@pytest.mark.parametrize("options", [{}, dict(settle=3, decay=0.7, rate=1.5), dict(decay=1.0)])
def test_matches_a_literal_loop(options):
    memory = build(**options)
    x, state, reset = problem(memory)
    y, after = memory(x, state, reset)
    for b in range(3):
        hs, Ms = slow(memory, x[b], state.M[b], state.h[b], reset[b])
        torch.testing.assert_close(y[b], hs)
        torch.testing.assert_close(after.M[b], Ms[-1])
        torch.testing.assert_close(after.h[b], hs[-1])


def test_its_write_is_the_hadamard_frameworks():
    memory = build()
    x, state, reset = problem(memory)
    h, after = memory(x, state, reset)
    U = 0.5 * h[..., :, None] * h[..., None, :]
    M = hm.kernels.hadamard(torch.full_like(U, 0.95), U, None, state.M, reset)
    torch.testing.assert_close(M[:, -1], after.M)


@pytest.mark.parametrize("settle", [1, 3])
def test_keeps_the_contract(settle):
    check_memory(hm.FastWeights(7, 6, 10, settle=settle), long_length=256)


def test_the_norm_bounds_long_sequences():
    memory = hm.FastWeights(4, memory_size=32)
    with torch.no_grad():
        y, state = memory(10 * torch.randn(2, 2000, 4))
    assert y.abs().max() <= 32**0.5
    assert state.M.abs().max() <= 32 * 0.5 / 0.05 + 1


def test_start():
    memory = hm.FastWeights(4, 3, 5)
    torch.testing.assert_close(memory.recur.weight.detach(), 0.05 * torch.eye(5))
    assert (memory.state_size, memory.output_size, hm.FastWeights(4).output_size) == (30, 3, 128)


def test_autocast_and_half_precision_keep_a_wide_state():
    memory, x, reset = hm.FastWeights(4, 3, 6), torch.randn(2, 9, 4), torch.rand(2, 9) < 0.2
    want, _ = memory(x, None, reset)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = memory(x, None, reset)
    assert all(s.dtype == torch.float32 for s in state)
    torch.testing.assert_close(y.float(), want, rtol=0.05, atol=0.05)
    y, state = memory.bfloat16()(x.bfloat16(), None, reset)
    assert y.dtype == torch.bfloat16
    assert all(s.dtype == torch.float32 for s in state)


@pytest.mark.parametrize("name", ["fast_weights", "dnc"])
def test_a_compiler_does_not_unroll_the_steps(name):
    sizes = []

    def count(graph, inputs):
        sizes.append(len(graph.graph.nodes))
        return graph

    memory, x = hm.make_memory(name, 4, 3, memory_size=6), torch.randn(2, 40, 4)
    reset = torch.arange(40).expand(2, 40) == 0
    compiled, want = torch.compile(memory, backend=count), memory(x, None, reset, resets_only_at_start=True)
    for _ in range(3):
        got, state = compiled(x, None, reset, resets_only_at_start=True)
    torch.testing.assert_close((got, *state), (want[0], *want[1]))
    assert 1 <= len(sizes) <= 6
    assert max(sizes) < 80


@pytest.mark.parametrize(("options", "message"), [
    (dict(decay=1.01), r"decay must be in \[0, 1\], got 1.01"),
    (dict(settle=0), "settle must be positive, got 0"),
    (dict(memory_size=1), "memory_size must be at least 2, got 1"),
    (dict(rate="a"), "rate must be a number, got 'a'; pass a float"),
    (dict(rate=float("inf")), "rate must be finite, .*, got inf"),
    (dict(decay="a"), "decay must be a number, got 'a'"),
])
def test_bad_options(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        hm.FastWeights(4, **options)


def test_repr_tells_the_options():
    assert repr(hm.FastWeights(4, 3, 5, rate=0.25)).startswith("FastWeights(\n  4, 3, memory_size=5, settle=1, decay=0.95, rate=0.25\n")
