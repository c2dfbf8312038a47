"""Hebbian memory, linear attention, fast weight programmers and mLSTM: what each computes, on numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hadamem as hm
from hadamem.testing import check_memory

from ..cuda_graphs import captured

VARIANTS = {
    "hebbian": ("hebbian", {}),
    "hebbian-bare": ("hebbian", dict(read_norm=False)),
    "linear_attention": ("linear_attention", {}),
    "fwp": ("fwp", {}),
    "fwp-additive": ("fwp", dict(variant="additive")),
    "fwp-bare": ("fwp", dict(input_norm=False)),
    "mlstm": ("mlstm", {}),
    "mlstm-long": ("mlstm", dict(forget_bias=5.0)),
}


def make(variant, *sizes, **options):
    torch.manual_seed(0)
    name, fixed = VARIANTS[variant]
    return hm.make_memory(name, *sizes, **fixed, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_form_keeps_the_contract(variant, dtype):
    check_memory(make(variant, 7, 6, memory_size=9).to(dtype))
    check_memory(make(variant, 7, memory_size=6, backend="reference").to(dtype), long_length=65)


@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_episodes_longer_than_a_chunk(variant):
    """Values and gradients of 200 steps with resets: as the loop has them."""
    results = []
    for backend in ("reference", "scan"):
        memory = make(variant, 5, 3, memory_size=8, backend=backend).double()
        r = torch.Generator().manual_seed(1)
        x, reset = torch.randn(2, 200, 5, generator=r).double().requires_grad_(), torch.rand(2, 200, generator=r) < 0.03
        y, state = memory(x, None, reset)
        results.append([y, *state, *torch.autograd.grad(y.square().sum(), [x, *memory.parameters()])])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("variant", "width", "layer"), [
    ("hebbian", 8, False), ("linear_attention", 8, False), ("fwp-additive", 8, False), ("fwp", 8, True), ("mlstm", 8, True)])
def test_natural_width_and_output_layer(variant, width, layer):
    """A block that ends at the memory's width gets an output layer only where a width is asked for; others always have theirs."""
    bare, sized = make(variant, 5, memory_size=8), make(variant, 5, 3, memory_size=8)
    assert (bare.output_size, sized.output_size) == (width, 3)
    assert (bare.out is not None) is layer
    assert sized(torch.randn(2, 4, 5))[0].shape == (2, 4, 3)
    cells = {"linear_attention": 8 * 8 + 8, "mlstm": 8 * 8 + 8 + 1}.get(variant, 8 * 8)
    assert bare.state_size == cells


# --- by hand


def test_hebbian_memory_is_the_sum_of_outer_products():
    memory = make("hebbian-bare", 4, memory_size=3).double()
    x = torch.randn(2, 6, 4).double()
    y, state = memory(x)
    k, q = memory.key(x), memory.query(x)
    torch.testing.assert_close(state.M, torch.einsum("bti,btj->bij", k, k))
    torch.testing.assert_close(y[:, -1], (state.M @ q[:, -1, :, None])[..., 0])
    assert torch.equal(state.M, state.M.mT)
    normed = hm.Hebbian(4, memory_size=3).double()
    normed.load_state_dict(memory.state_dict())
    torch.testing.assert_close(normed(x)[0], F.layer_norm(y, (3,)))


def test_hebbian_memory_starts_by_adding_up_what_was_written():
    """What is written starts with a positive weight in what is read: from signs of chance, training does not find its way."""
    memory, x = make("hebbian", 13, memory_size=32), torch.eye(13)
    assert (memory.key(x) @ memory.query(x).mT).gt(0).float().mean() > 0.95
    assert memory.query.weight is not memory.key.weight


def test_linear_attention_is_attention_without_a_softmax():
    memory = make("linear_attention", 4, memory_size=3).double()
    x = torch.randn(2, 90, 4).double()
    n = memory.norm(x)
    k, q, v = F.elu(memory.key(n)) + 1, F.elu(memory.query(n)) + 1, memory.value(n)
    weights = (q @ k.mT).tril()
    o = weights @ v / (weights.sum(-1, keepdim=True) + 1e-5)
    y, state = memory(x)
    torch.testing.assert_close(y, memory.ff(o) + memory.shortcut(n))
    torch.testing.assert_close(state.Z, k.sum(1))


def test_delta_rule_overwrites_and_addition_adds_up():
    """The same key twice, written fully: the delta rule reads the second value, addition the sum of both."""
    x = torch.tensor([[[1.0, 0, 0, 0], [0, 1.0, 0, 0]]])
    read = {}
    for variant in ("delta", "additive"):
        memory = hm.FWP(4, memory_size=2, variant=variant, input_norm=False)
        with torch.no_grad():
            for p in memory.parameters():
                p.zero_()
            memory.key.weight[0], memory.query.weight[0] = 1e6, 1e6                 # k = q = (1, 0) but for 1e-11
            memory.value.weight[:, 0], memory.value.weight[:, 1] = torch.tensor([3.0, 4.0]), torch.tensor([5.0, -6.0])
            if memory.beta is not None:
                memory.beta.weight.fill_(100.0)                                     # beta = 1
                memory.out.weight.copy_(torch.eye(2))
            else:
                memory.ff = nn.Identity()
        read[variant] = memory(x)[0][0, 1].tolist()
    assert read["delta"] == pytest.approx([5.0, -6.0])
    assert read["additive"] == pytest.approx([8.0, -2.0])


def published_mlstm(memory, x, C, n):
    """The published equations, without a stabiliser, for one step from the state (C, n)."""
    q, k, v = memory.query(x), memory.key(x) / memory.memory_size ** 0.5, memory.value(x)
    i, f, o = memory.input_gate(x).exp(), memory.forget_gate(x).sigmoid(), memory.gate(x).sigmoid()
    C = f[..., None] * C + i[..., None] * v[..., :, None] * k[..., None, :]
    n = f * n + i * k
    h = (C @ q[..., None])[..., 0] / (n * q).sum(-1, keepdim=True).abs().clamp(min=1)
    return memory.out(o * h), C, n


def test_mlstm_is_the_published_recurrence_in_other_units():
    memory = make("mlstm", 4, 3, memory_size=5).double()
    x, C, n = torch.randn(2, 80, 4).double(), torch.zeros(2, 5, 5).double(), torch.zeros(2, 5).double()
    y, state = memory(x)
    for t in range(80):
        want, C, n = published_mlstm(memory, x[:, t], C, n)
        torch.testing.assert_close(y[:, t], want)
    torch.testing.assert_close(torch.exp(state.m)[:, None, None] * state.C, C)
    torch.testing.assert_close(torch.exp(state.m)[:, None] * state.n, n)


def test_mlstm_does_not_have_the_published_defect():
    """The released module, called on a whole sequence, combines every step with the initial state alone: it has no memory. Ours has."""
    memory = make("mlstm", 4, 3, memory_size=5).double()
    x = torch.randn(2, 6, 4).double()
    y, _ = memory(x)
    memoryless, *_ = published_mlstm(memory, x, torch.zeros(5, 5).double(), torch.zeros(5).double())
    torch.testing.assert_close(y[:, 0], memoryless[:, 0])
    assert (y[:, 1:] - memoryless[:, 1:]).abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize("gate", [95.0, 3000.0])
def test_mlstm_survives_gains_beyond_float32(gate):
    memory = make("mlstm", 4, 3, memory_size=5)
    with torch.no_grad():
        memory.input_gate.bias.fill_(gate)
    x = torch.randn(2, 200, 4).requires_grad_()
    y, state = memory(x)
    y.sum().backward()
    wide = make("mlstm", 4, 3, memory_size=5).double()
    wide.load_state_dict(memory.state_dict())
    if gate < 100:      # beyond, float32 has no digits left for the differences between gates
        torch.testing.assert_close(y.double(), wide(x.double())[0], rtol=1e-3, atol=1e-3)
    assert all(s.isfinite().all() for s in (*state, x.grad, *(p.grad for p in memory.parameters())))


def test_mlstm_reads_nothing_where_nothing_was_written():
    """C q = n · q = 0 is 0 / max(0, 1), however large the gains are."""
    memory = hm.MLSTM(2, 3, 4)
    with torch.no_grad():
        for layer in (memory.query, memory.key, memory.value):
            layer.bias.zero_()
        memory.input_gate.bias.fill_(110.0)
    x = torch.zeros(1, 3, 2, requires_grad=True)
    y, state = memory(x)
    torch.testing.assert_close(y, memory.out.bias.expand(1, 3, 3))
    torch.testing.assert_close(memory.step(x[:, 0], state)[0], y[:, 0])
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


def test_published_mlstm_states_enter_and_leave_at_any_size():
    memory = make("mlstm", 4, 3, memory_size=5)
    names = hm.reference.MODELS["mlstm"]
    C, n = torch.randn(2, 5, 5).double() * 1e60, torch.randn(2, 5).double() * 1e60
    entered = hm.reference.state(memory, {"C": C, "n": n})
    assert entered.C.isfinite().all()
    back = names.leave(entered)
    torch.testing.assert_close(back["C"] / 1e60, C / 1e60, rtol=1e-4, atol=1e-4)
    small = hm.reference.state(memory, {"C": C / 1e60, "n": n / 1e60})
    assert (small.m == 0).all()
    assert torch.equal(small.C, (C / 1e60).float())


# --- acting


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("reset", [None, [True, False, True]])
def test_acting_gives_new_memory_and_the_same_numbers(variant, reset):
    """Without gradients a step on a CPU writes in place, into a copy: never into a state that someone may still hold."""
    memory = make(variant, 5, 4, memory_size=300)       # large enough for memory that is used again
    x, reset = torch.randn(3, 4, 5), None if reset is None else torch.tensor(reset)
    state = hm.states.detach(memory(x)[1])
    saved = hm.states.apply(torch.clone, state)
    want, after = memory.step(x[:, 0], state, reset)
    with torch.no_grad():
        first, one = memory.step(x[:, 0], state, reset)
        kept = hm.states.apply(torch.clone, one)
        memory.step(x[:, 1], one, reset)
    size = max(10.0, float(want.detach().abs().max()))  # hundreds where nothing divides what is read, and rounded accordingly
    torch.testing.assert_close(first, want, rtol=1.3e-6, atol=1e-6 * size)
    for a, b, c, d, e, f in zip(one, after, state, saved, one, kept, strict=True):
        torch.testing.assert_close(a, b)
        assert torch.equal(c, d)
        assert torch.equal(e, f)


# --- errors and layers


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="unknown backend 'triton'; choose from auto, reference, scan"):
        hm.MLSTM(4, backend="triton")
    with pytest.raises(ValueError, match="unknown variant 'sum'; choose from delta, additive"):
        hm.FWP(4, variant="sum")
    with pytest.raises(ValueError, match="pass input_norm=False with input_size=1"):
        hm.LinearAttention(1)
    with pytest.raises(TypeError, match="forget_bias must be a number, got None; pass a float"):
        hm.MLSTM(4, forget_bias=None)
    with pytest.raises(TypeError, match="read_norm must be True or False, got 1"):
        hm.Hebbian(4, read_norm=1)
    with pytest.raises(TypeError, match="input_norm must be True or False, got 'no'"):
        hm.FWP(4, input_norm="no")
    memory = hm.MLSTM(4, memory_size=3)
    with pytest.raises(ValueError, match=r"state.m must have shape \[B\], got \[2, 3\]"):
        memory(torch.randn(2, 3, 4), memory.initial_state(2)._replace(m=torch.zeros(2, 3)))
    with pytest.raises(TypeError, match=r"state.m must have a floating dtype, got torch.int64"):
        memory(torch.randn(2, 3, 4), memory.initial_state(2)._replace(m=torch.zeros(2, dtype=torch.int64)))


@pytest.mark.parametrize("variant", ["hebbian", "linear_attention", "fwp", "mlstm"])
def test_a_layer_with_a_hook_is_called(variant):
    memory, calls = make(variant, 5, 3, memory_size=4), []
    x = torch.randn(2, 3, 5)
    want = memory(x)[0]
    memory.key.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(memory(x)[0], want)
    assert calls


@pytest.mark.parametrize("variant", [pytest.param("linear_attention", marks=pytest.mark.slow), "fwp",
                                     pytest.param("mlstm", marks=pytest.mark.slow)])
def test_compiles_without_a_graph_break(variant):
    memory = make(variant, 5, 3, memory_size=4)
    x, reset = torch.randn(2, 70, 5), torch.rand(2, 70) < 0.1
    state = memory.initial_state(2)
    want = memory(x, state, reset)[0]
    got = torch.compile(memory, fullgraph=True, backend="aot_eager")(x, state, reset)[0]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_and_acting_inside_cuda_graphs(variant):
    memory = make(variant, 16, 8, memory_size=64).cuda()
    x, reset = torch.randn(4, 130, 16, device="cuda"), torch.rand(4, 130, device="cuda") < 0.05
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
