"""S6: one step by hand, where its parameters start, the window of its convolution, and what the published code does differently."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import hadamem as hm
from hadamem.memory.s6 import S6State

from ..cuda_graphs import captured


def test_parameters_start_where_mamba_has_them():
    memory = hm.S6(32, 7)
    assert (memory.memory_size, memory.channels, memory.rank, memory.state_size) == (16, 64, 2, 64 * (16 + 4))
    torch.testing.assert_close(memory.A_log.exp(), torch.arange(1.0, 17).expand(64, 16))
    assert memory.skip.eq(1).all()
    step = F.softplus(memory.delta.bias.detach())
    assert step.min() >= 1e-3 - 1e-6
    assert step.max() <= 1e-1 + 1e-6
    assert step.log().std() > 0.8     # spread evenly over two decades: 4.6 / sqrt(12) = 1.3
    assert memory.delta.weight.abs().max() <= 2 ** -0.5
    assert hm.S6(32).out is None
    assert hm.S6(32).output_size == 32
    assert hm.S6(17).rank == 2


def test_delta_is_small_enough_to_remember():
    """The SHM release leaves Delta near 0.7, a half-life of about one step; here the slowest channels last for hundreds."""
    memory = hm.S6(32, memory_size=4)
    delta = F.softplus(memory.delta.bias)
    half_life = 0.693 / (delta[:, None] * memory.A_log.exp())
    assert half_life[:, 0].median() > 20
    assert half_life.max() > 300


@pytest.mark.parametrize("backend", ["auto", "scan", "reference"])
def test_equals_the_block_written_as_a_loop(backend):
    memory = hm.S6(3, 4, memory_size=5, backend=backend).double()
    x, u_past, S, ys = torch.randn(2, 6, 3).double(), [torch.zeros(2, 6).double()] * 3, torch.zeros(2, 6, 5).double(), []
    for x_t in x.unbind(1):
        u, z = memory.in_proj(x_t).chunk(2, dim=-1)
        u_past.append(u)
        u = F.silu(sum(memory.conv.weight[:, 0, i] * u_past[-4 + i] for i in range(4)) + memory.conv.bias)
        low, B, C = memory.x_proj(u).split((1, 5, 5), dim=-1)
        delta = F.softplus(memory.delta(low))
        S = torch.exp(delta[..., None] * -memory.A_log.exp()) * S + (delta * u)[..., None] * B[:, None]
        ys.append(memory.out(memory.out_proj(((S @ C[..., None])[..., 0] + memory.skip * u) * F.silu(z))))
    y, state = memory(x)
    torch.testing.assert_close(y, torch.stack(ys, dim=1))
    torch.testing.assert_close(state.S, S)
    torch.testing.assert_close(state.window, torch.stack(u_past[-4:], dim=-1))


def test_window_is_carried_and_cleared_at_a_reset():
    """Forgetting the window would leak three inputs into the next episode; not carrying it would lose three at every call."""
    memory = hm.S6(3, memory_size=2).double()
    x = torch.randn(1, 5, 3).double()
    for t in range(5):
        reset = torch.zeros(1, 5, dtype=torch.bool)
        reset[:, t] = True
        _, state = memory(x, None, reset)
        _, alone = memory(x[:, t:])
        torch.testing.assert_close(state, alone)
        kept = min(4, 5 - t)
        assert state.window[..., :4 - kept].eq(0).all()
        assert state.window[..., 4 - kept:].ne(0).all()
    u = memory.in_proj(x)[..., :6]
    torch.testing.assert_close(memory(x)[1].window, u[:, 1:].mT)
    dirty = S6State(torch.full((1, 6, 4), float("nan")).double(), torch.full((1, 6, 2), float("inf")).double())
    reset = torch.tensor([[True, False, False, False, True]])
    y, state = memory(x, dirty, reset)
    assert y.isfinite().all()
    torch.testing.assert_close(state, memory(x[:, 4:])[1])


def test_single_steps_are_the_sequence():
    """The release starts every call from zero, so that stepping it gives a policy without memory."""
    memory = hm.S6(3, 4)
    x, state, ys = torch.randn(2, 9, 3), memory.initial_state(2), []
    for x_t in x.unbind(1):
        y, state = memory.step(x_t, state)
        ys.append(y)
    want, last = memory(x)
    torch.testing.assert_close(torch.stack(ys, 1), want)
    torch.testing.assert_close(state, last)
    alone, _ = memory(x[:, -1:])
    assert (alone[:, 0] - want[:, -1]).abs().max() > 1e-4


def test_states_cannot_explode():
    memory = hm.S6(3, memory_size=4)
    with torch.no_grad():
        memory.delta.bias.fill_(30.0)
        memory.A_log.fill_(5.0)            # exp(Delta A) underflows to 0: harmless
    y, state = memory(torch.randn(2, 50, 3, requires_grad=True))
    y.sum().backward()
    assert state.S.isfinite().all()
    assert all(p.grad.isfinite().all() for p in memory.parameters() if p.grad is not None)


def test_errors():
    with pytest.raises(ValueError, match="unknown backend 'gpu'; choose from auto, reference"):
        hm.S6(4, backend="gpu")
    memory, x = hm.S6(4, memory_size=3), torch.randn(2, 5, 4)
    fresh = memory.initial_state(2)
    with pytest.raises(ValueError, match=r"state.window must have shape \[B, 8, 4\], got \[2, 8, 3\]"):
        memory(x, fresh._replace(window=fresh.S))
    with pytest.raises(ValueError, match=r"state.S must have shape \[B, 8, 3\], got \[2, 8, 4\]"):
        memory(x, fresh._replace(S=fresh.window))
    with pytest.raises(TypeError, match=r"state.S must have a floating dtype, got torch.int64"):
        memory(x, fresh._replace(S=fresh.S.long()))


def test_compiles_without_a_graph_break():
    memory, x, reset = hm.S6(5, 4, memory_size=3), torch.randn(2, 7, 5), torch.rand(2, 7) < 0.3
    compiled = torch.compile(memory, fullgraph=True, backend="aot_eager")
    y, state = compiled(x, None, reset)
    y.sum().backward()
    want, want_state = memory(x, None, reset)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(state, want_state)


@pytest.mark.gpu
@pytest.mark.parametrize("memory_size", [16, 512])
def test_inside_a_cuda_graph_and_compiled(memory_size):
    memory = hm.S6(16, 8, memory_size=memory_size).cuda()
    x, reset = torch.randn(4, 70, 16, device="cuda"), torch.rand(4, 70, device="cuda") < 0.05
    parameters = list(memory.parameters())

    def train():
        y, _ = memory(x, None, reset)
        return [y, *torch.autograd.grad(y.square().sum(), parameters)]

    want, got, graph = captured(train)
    graph.replay()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.compile(memory, fullgraph=True)(x, None, reset)[0], want[0], rtol=1e-4, atol=1e-4)
