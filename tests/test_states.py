"""States as tuples of tensors: picking rows, replacing them, and the way through a vector of floats."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import hadamem as hm


class Odd(NamedTuple):
    """One tensor of every kind a memory may carry."""

    single: torch.Tensor
    double: torch.Tensor
    half: torch.Tensor
    brain: torch.Tensor
    long: torch.Tensor
    int: torch.Tensor
    flag: torch.Tensor
    wave: torch.Tensor
    wide_wave: torch.Tensor


class OddMemory:
    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        kinds = {"single": (2, 3, torch.float32), "double": (2, torch.float64), "half": (3, torch.float16),
                 "brain": (3, torch.bfloat16), "long": (torch.int64,), "int": (2, torch.int32), "flag": (2, torch.bool),
                 "wave": (2, 2, torch.complex64), "wide_wave": (3, torch.complex128)}
        return Odd(**{n: torch.zeros(batch_size, *s, dtype=dtype, device=device) for n, (*s, dtype) in kinds.items()})


def odd_state(B=4) -> Odd:
    def fill(x):
        if x.is_floating_point() or x.is_complex():
            return torch.randn_like(x) * 10.0 ** torch.randint(-6, 7, x.shape)
        low, high = (0, 2) if x.dtype == torch.bool else (torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max)
        return torch.randint(low, high, x.shape).to(x.dtype)

    return hm.states.apply(lambda x: fill(x).to(x.dtype), OddMemory().initial_state(B))


def test_vector_round_trip_is_exact():
    state = odd_state()
    vector = hm.states.to_vector(state)
    assert vector.dtype == torch.float32
    assert vector.shape[0] == 4
    for name, got, want in zip(Odd._fields, hm.states.from_vector(OddMemory(), vector), state, strict=True):
        assert got.dtype == want.dtype, name
        assert torch.equal(got, want), name


def test_vector_keeps_extremes():
    """Largest and smallest counters, infinities, nan, subnormals and negative zero."""
    special = torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0, 5e-324, 1.7976931348623157e308])
    memory = hm.GRU(3, memory_size=6).double()
    state = memory.initial_state(1)._replace(h=special[None].double())
    back = hm.states.from_vector(memory, hm.states.to_vector(state)).h
    assert torch.equal(back.view(torch.int64), state.h.view(torch.int64))
    paper = hm.SHM.paper(3, 2, 2)
    clocks = torch.tensor([0, 1, -1, 2**62, -(2**63), 2**63 - 1])
    start = paper.initial_state(6)._replace(clock=clocks)
    assert torch.equal(hm.states.from_vector(paper, hm.states.to_vector(start)).clock, clocks)


def test_vector_survives_a_float32_numpy_trip():
    paper = hm.SHM.paper(3, 2, 2)
    state = paper(torch.randn(3, 5, 3))[1]
    carried = torch.from_numpy(hm.states.to_vector(state).detach().numpy().copy())
    back = hm.states.from_vector(paper, carried)
    assert torch.equal(back.M, state.M)
    assert torch.equal(back.clock, state.clock)
    x = torch.randn(3, 4, 3)
    assert torch.equal(paper(x, back)[0], paper(x, state)[0])


def test_vector_carries_gradients():
    """Those of float64 numbers are rounded to float32 on the way."""
    state = hm.states.apply(lambda x: x.requires_grad_() if x.is_floating_point() or x.is_complex() else x, odd_state())
    moved = hm.states.from_vector(OddMemory(), hm.states.to_vector(state))
    for name, after, before in zip(Odd._fields, moved, state, strict=True):
        assert after.requires_grad == before.requires_grad, name
        if before.requires_grad:
            gradient = torch.randn_like(after)
            rtol = 1e-3 if before.dtype in (torch.float16, torch.bfloat16) else 1e-6
            (got,) = torch.autograd.grad(after, before, gradient, retain_graph=True)
            torch.testing.assert_close(got, gradient, rtol=rtol, atol=rtol, msg=name)


@pytest.mark.parametrize("name", hm.list_memories())
def test_vector_of_every_memory_in_a_compiled_graph(name):
    """The trip through a vector is exact and carries gradients, in one graph, and its width is known beforehand."""
    memory = hm.make_memory(name, 3, memory_size=4)
    width = memory.state_width
    vector = hm.states.to_vector(hm.states.detach(memory(torch.randn(2, 5, 3))[1]))
    assert vector.shape == (2, width)
    torch._dynamo.reset()      # every memory is another graph of the same lambda
    compiled = torch.compile(lambda v: hm.states.to_vector(hm.states.from_vector(memory, v)), fullgraph=True, backend="aot_eager")
    vector.requires_grad_(width > 0)
    out = compiled(vector)
    assert torch.equal(out, vector)
    if width:
        (gradient,) = torch.autograd.grad(out.sum(), vector)
        assert int(gradient.sum()) == 2 * memory.state_size      # each float of each row; counters have none


def test_vector_of_a_dtype_that_was_asked_for():
    memory = hm.GRU(3, memory_size=4)
    state = memory.initial_state(2, dtype=torch.float64)._replace(h=torch.randn(2, 4).double())
    assert torch.equal(hm.states.from_vector(memory, hm.states.to_vector(state), dtype=torch.float64).h, state.h)


def test_vector_of_no_memory():
    memory = hm.NoMemory(3, 2)
    vector = hm.states.to_vector(memory.initial_state(5))
    assert vector.shape == (5, 0)
    assert hm.states.from_vector(memory, vector).empty.shape == (5, 0)


def test_vector_of_the_wrong_width():
    memory = hm.GRU(3, memory_size=4)
    for bad in (torch.zeros(2, 5), torch.zeros(4)):
        with pytest.raises(ValueError, match=r"vector must have shape \[B, 4\] for this memory"):
            hm.states.from_vector(memory, bad)


def test_index():
    state = odd_state()
    assert hm.states.index(state, 1).single.shape == (2, 3)
    assert hm.states.index(state, slice(1, 3)).single.shape == (2, 2, 3)
    picked = hm.states.index(state, torch.tensor([3, 0]))
    assert isinstance(picked, Odd)
    assert torch.equal(picked.long, state.long[[3, 0]])


def test_detach_and_apply():
    memory = hm.GRU(3, memory_size=4)
    state = memory(torch.randn(2, 3, 3))[1]
    assert state.h.requires_grad
    assert not hm.states.detach(state).h.requires_grad
    assert torch.equal(hm.states.apply(lambda x: 2 * x, state).h, 2 * state.h)
    with pytest.raises(TypeError, match="state must be a NamedTuple of tensors"):
        hm.states.detach(torch.zeros(3))


def test_where_selects_rows_and_drops_nan():
    new, old = odd_state(), odd_state()
    old = old._replace(single=torch.full_like(old.single, float("nan")))
    reset = torch.tensor([True, False, True, False])
    mixed = hm.states.where(reset, new, old)
    assert torch.equal(mixed.single[reset], new.single[reset])
    assert mixed.single[~reset].isnan().all()
    assert torch.equal(mixed.long, torch.where(reset, new.long, old.long))
