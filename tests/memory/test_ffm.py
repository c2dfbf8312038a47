"""FFM: its traces by hand, where its parameters start, and what the published code does differently."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import hadamem as hm
from hadamem.memory.ffm import SHALLOWEST, STEEPEST, FFMState

from ..cuda_graphs import captured


def test_parameters_start_where_the_published_ones_do():
    memory = hm.FFM(6, 5)
    a, b = memory.log_decay, memory.frequency
    assert (memory.memory_size, memory.context, memory.state_size) == (128, 4, 2 * 128 * 4)
    assert a[0].item() == pytest.approx(-0.6731, abs=1e-4)
    assert a[-1].item() == pytest.approx(-0.0045, abs=1e-4)
    torch.testing.assert_close(a.diff(), a.diff()[:1].expand(127), rtol=1e-3, atol=1e-6)
    assert b[0].item() == pytest.approx(2 * math.pi)
    assert b[-1].item() == pytest.approx(2 * math.pi / 1024)
    assert memory.pre.weight.shape == (2 * 128 + 2 * 5, 6)
    assert memory.mix.weight.shape == (5, 2 * 128 * 4)


@pytest.mark.parametrize("backend", ["auto", "scan", "reference"])
def test_equals_the_sum_over_the_past(backend):
    """S_t = sum of gamma^(t - n) x~_n, the form the paper writes; the output from it, by hand."""
    memory = hm.FFM(3, 4, memory_size=5, context=2, backend=backend).double()
    x, T = torch.randn(2, 7, 3).double(), 7
    y, state = memory(x)
    pre, thru, g_in, g_out = memory.pre(x).split((5, 4, 5, 4), dim=-1)
    gamma = torch.exp(torch.complex(memory.log_decay[:, None].expand(-1, 2), memory.frequency.expand(5, -1)))
    powers = torch.stack([torch.stack([gamma ** max(t - n, 0) * (n <= t) for n in range(T)]) for t in range(T)])   # [T, T, m, c]
    S = torch.einsum("tnmc,bnm->btmc", powers, (pre * torch.sigmoid(g_in)).to(powers.dtype))
    torch.testing.assert_close(state.S, S[:, -1])
    flat = torch.stack((S.real, S.imag), dim=-1).flatten(2)      # each trace: real, then imaginary part
    gate = torch.sigmoid(g_out)
    torch.testing.assert_close(y, F.layer_norm(memory.mix(flat), (4,)) * gate + thru * (1 - gate))


def test_first_frequency_does_not_oscillate_and_old_inputs_fade():
    memory = hm.FFM(3, 4)
    gamma = memory._gamma(torch.float32).detach()
    assert gamma[:, 0].imag.abs().max() < 1e-6
    assert gamma[:, 1:].imag.abs().min() > 1e-4
    assert gamma.abs().max() < 1
    assert gamma.abs().min().item() == pytest.approx(math.exp(-STEEPEST + 0.01), rel=1e-4)


def test_decay_stays_within_its_limits_in_sequences_and_single_steps():
    """The published code limits it in sequences only, where steps then disagree; its gradient passes at a limit."""
    memory = hm.FFM(3, 4, memory_size=2, context=2).double()
    with torch.no_grad():
        memory.log_decay.copy_(torch.tensor([0.5, -5.0]))
    inside = hm.FFM(3, 4, memory_size=2, context=2).double()
    inside.load_state_dict({**memory.state_dict(), "log_decay": torch.tensor([-SHALLOWEST, -STEEPEST]).double()})
    x, state = torch.randn(1, 6, 3).double(), memory.initial_state(1)
    want, _ = inside(x)
    y, _ = memory(x)
    torch.testing.assert_close(y, want)
    steps = []
    for t in range(6):
        y_t, state = memory.step(x[:, t], state)
        steps.append(y_t)
    torch.testing.assert_close(torch.stack(steps, 1), want)
    for m, out in ((memory, y), (inside, want)):
        (out * torch.arange(4)).sum().backward()
        assert m.log_decay.grad.abs().min() > 0
    torch.testing.assert_close(memory.log_decay.grad, inside.log_decay.grad)


def test_float32_follows_float64_over_a_long_sequence():
    """The published batched form needs float64 for its powers of gamma; this one does not."""
    memory = hm.FFM(4, 8, memory_size=16)
    x = torch.randn(2, 3000, 4)
    y, state = memory(x)
    want, _ = memory.double()(x.double())
    assert state.S.dtype == torch.complex64
    assert (y - want).abs().max() < 1e-3


def test_only_the_last_state_is_returned_and_owns_its_memory():
    _, state = hm.FFM(4, 8, memory_size=16)(torch.randn(2, 50, 4))
    assert state.S.shape == (2, 16, 4)
    assert state.S.untyped_storage().nbytes() == 2 * 16 * 4 * 8


def test_errors():
    with pytest.raises(ValueError, match="output_size must be at least 2"):
        hm.FFM(4, 1)
    with pytest.raises(ValueError, match="context must be positive, got 0"):
        hm.FFM(4, 4, context=0)
    with pytest.raises(ValueError, match="unknown backend 'gpu'; choose from auto, reference"):
        hm.FFM(4, 4, backend="gpu")
    memory, x = hm.FFM(4, 4, memory_size=3), torch.randn(2, 5, 4)
    with pytest.raises(ValueError, match=r"state.S must have shape \[B, 3, 4\], got \[2, 4, 3\]"):
        memory(x, FFMState(torch.zeros(2, 4, 3, dtype=torch.complex64)))
    with pytest.raises(TypeError, match=r"state.S must have a complex dtype, got torch.float32"):
        memory(x, FFMState(torch.zeros(2, 3, 4)))


def test_compiles_without_a_graph_break():
    memory, x, reset = hm.FFM(5, 4, memory_size=3), torch.randn(2, 7, 5), torch.rand(2, 7) < 0.3
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    y, state = compiled(x, None, reset)
    y.sum().backward()
    want, want_state = memory(x, None, reset)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(state, want_state)


@pytest.mark.gpu
def test_inside_a_cuda_graph_and_compiled():
    memory = hm.FFM(16, 8).cuda()
    x, reset = torch.randn(4, 70, 16, device="cuda"), torch.rand(4, 70, device="cuda") < 0.05
    parameters = list(memory.parameters())

    def train():
        y, _ = memory(x, None, reset)
        return [y, *torch.autograd.grad(y.square().sum(), parameters)]

    want, got, graph = captured(train)
    graph.replay()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.compile(memory, fullgraph=True)(x, None, reset)[0], want[0], rtol=1e-4, atol=1e-4)
