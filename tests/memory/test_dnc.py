"""DNC and NTM: a literal loop, the framework's form of the write, what weights, usage and links must be, and a task it learns."""

from __future__ import annotations

import pytest
import torch

import hadamem as hm
from hadamem.memory.dnc import Interface, _allocate
from hadamem.testing import check_memory

from ..cuda_graphs import captured

KINDS = {
    "dnc": {},
    "ntm": dict(allocation=False, links=False),
    "no links": dict(links=False, reads=3),
    "no allocation": dict(allocation=False, reads=1),
}
N, W = 5, 4


def build(output_size=None, **options):
    """Weights large enough for sharp addressing and gates near 0 and 1."""
    memory = hm.DNC(3, output_size, N, **{"word_size": W, "controller_size": 7, **options}).double()
    with torch.no_grad():
        for p in memory.parameters():
            p.add_(0.6 * torch.randn_like(p))
    return memory


def slow(memory, x, state, reset):
    """One row x [T, 3], from the equations in the paper -> outputs, and the state of every step."""
    R, C = memory.reads, memory.controller_size
    n = memory.initial_state(1)
    fresh = type(n)(*(s[0] for s in n))
    s, ys, states = state, [], []
    for x_t, opens in zip(x, reset, strict=True):
        s = fresh if opens else s
        g = memory.input(x_t) + memory.recur.weight @ torch.cat((s.h, s.reads))
        i, f, o, a = g[:C].sigmoid(), g[C:2 * C].sigmoid(), g[2 * C:3 * C].sigmoid(), g[3 * C:].tanh()
        c = f * s.c + i * a
        h = o * c.tanh()
        xi = memory.interface(h).split([(R + 1) * W, R + 1, W, W, 1, *([1, R] if memory.allocation else []),
                                        3 * R if memory.links else R])
        keys, strengths, v, e, place = xi[0].reshape(R + 1, W), 1 + (1 + xi[1].exp()).log(), xi[2], xi[3].sigmoid(), xi[4].sigmoid()

        def content(M, key, strength):
            score = [strength * (row @ key) / ((row @ row + 1e-6) * (key @ key + 1e-6)).sqrt() for row in M]
            return torch.softmax(torch.stack(score), 0)

        by_content, u = content(s.M, keys[0], strengths[0]), s.usage
        if memory.allocation:
            write, free = xi[5].sigmoid(), xi[6].sigmoid()
            kept = torch.ones(N).double()
            for r in range(R):
                kept = kept * (1 - free[r] * s.read_weights[r])
            u = (s.usage + s.write_weights - s.usage * s.write_weights) * kept
            order, alloc, product = sorted(range(N), key=lambda n: round(1e4 * float(u[n]))), torch.zeros(N).double(), 1.0
            for n in order:
                alloc[n] = (1 - u[n]) * product
                product = product * (1e-6 + (1 - 1e-6) * u[n])
            w = write * (place * alloc + (1 - place) * by_content)
        else:
            w = place * by_content + (1 - place) * s.write_weights
        M = s.M * (1 - torch.outer(w, e)) + torch.outer(w, v)
        L, p, reads = s.links, s.precedence, []
        if memory.links:
            L = torch.zeros(N, N).double()
            for i in range(N):
                for j in range(N):
                    if i != j:
                        L[i, j] = (1 - w[i] - w[j]) * s.links[i, j] + w[i] * p[j]
            p = (1 - w.sum()) * p + w
        for r in range(R):
            last, by_content = s.read_weights[r], content(M, keys[r + 1], strengths[r + 1])
            if memory.links:
                mode = torch.softmax(xi[-1].reshape(R, 3)[r], 0)
                reads.append(mode[0] * (L.T @ last) + mode[1] * by_content + mode[2] * (L @ last))
            else:
                gate = xi[-1].sigmoid()[r]
                reads.append(gate * by_content + (1 - gate) * last)
        wr = torch.stack(reads)
        s = type(fresh)(M, wr, w, u, L, p, (wr @ M).flatten(), h, c)
        ys.append(torch.cat((h, s.reads)))
        states.append(s)
    return torch.stack(ys), states


def problem(memory, B=3, T=12, seed=1):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        _, state = memory(torch.randn(B, 4, 3, generator=g).double())
    return torch.randn(B, T, 3, generator=g).double(), state, torch.rand(B, T, generator=g) < 0.15


def trace(memory, x, state=None):
    """The state after every step."""
    state, found = memory.initial_state(x.shape[0]) if state is None else state, []
    with torch.no_grad():
        for t in range(x.shape[1]):
            state = memory.step(x[:, t], state)[1]
            found.append(state)
    return type(state)(*(torch.stack(s, dim=1) for s in zip(*found, strict=True)))


@pytest.mark.parametrize("kind", KINDS)
def test_matches_a_literal_loop(kind):
    memory = build(**KINDS[kind])
    x, state, reset = problem(memory)
    with torch.no_grad():
        y, after = memory(x, state, reset)
        for b in range(3):
            ys, states = slow(memory, x[b], hm.states.index(state, b), reset[b])
            torch.testing.assert_close(y[b], ys, rtol=1e-8, atol=1e-10)
            for name, got, want in zip(after._fields, after, states[-1], strict=True):
                torch.testing.assert_close(got[b], want, rtol=1e-8, atol=1e-10, msg=lambda m, n=name: f"state.{n}: {m}")


@pytest.mark.parametrize("kind", ["ntm", "no links", "no allocation"])
def test_every_form_keeps_the_contract(kind):
    check_memory(build(6, **KINDS[kind]), long_length=64)


@pytest.mark.parametrize("kind", ["dnc", "ntm"])
def test_its_write_is_the_hadamard_frameworks(kind):
    memory = build(**KINDS[kind])
    x, state, _ = problem(memory)
    s = trace(memory, x, state)
    with torch.no_grad():
        said = memory._say(memory.interface(s.h).flatten(0, 1))
    e, v = (z.unflatten(0, (3, 12)) for z in (said.erase, said.add))
    w = s.write_weights[..., None]
    M = hm.kernels.hadamard(1 - w * e[..., None, :], w * v[..., None, :], None, state.M)
    torch.testing.assert_close(M, s.M)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_usage_and_links_stay_in_their_ranges(kind):
    memory = build(**KINDS[kind])
    s = trace(memory, 3 * torch.randn(4, 60, 3).double())
    for weights in (s.read_weights, s.write_weights):
        assert weights.min() >= 0
        assert weights.sum(-1).max() <= 1 + 1e-12
    if not memory.allocation:
        torch.testing.assert_close(s.write_weights.sum(-1), torch.ones(4, 60).double())
    if not memory.links:
        torch.testing.assert_close(s.read_weights.sum(-1), torch.ones(4, 60, memory.reads).double())
    else:
        assert s.links.min() >= 0
        assert s.links.sum(-1).max() <= 1 + 1e-12
        assert s.links.sum(-2).max() <= 1 + 1e-12
        assert (s.links.diagonal(dim1=-2, dim2=-1) == 0).all()
        assert s.precedence.sum(-1).max() <= 1 + 1e-12
    if memory.allocation:
        assert s.usage.min() >= 0
        assert s.usage.max() <= 1


def say(memory, write_to="free", add=1.0, free=0.0, mode=1, key=None):
    """An interface with gates fully open or shut, for one row; reading by content unless `mode` says otherwise."""
    R, one, zero = memory.reads, torch.ones(1, 1).double(), torch.zeros(1, 1).double()
    key = torch.ones(1, R, W).double() if key is None else key.expand(1, R, W)
    return Interface(50 * torch.ones(1, 1, W).double() / W**0.5, 50 * key / key.norm(dim=-1, keepdim=True), add * torch.ones(1, W).double(),
                     torch.ones(1, W).double(), one if write_to == "free" else zero, zero if write_to is None else one,
                     free * torch.ones(1, R).double(), torch.eye(3)[mode].double().expand(1, R, 3))


def access(memory, said, state):
    apart = 1 - torch.eye(N).double()
    return memory._access(said, state, torch.rsqrt(state.M.square().sum(-1) + 1e-6), apart)[0]


def test_slots_are_allocated_one_after_the_other_and_freed_by_reading():
    memory = build(reads=1)
    state, places = memory.initial_state(1), []
    for n in range(3):
        state = access(memory, say(memory, add=n + 1.0), state)
        places.append(int(state.write_weights.argmax()))
        assert state.usage[0, places[-1]] <= state.usage.min() + 1e-4               # usage before this write
        torch.testing.assert_close(state.M[0, places[-1]], torch.full((W,), n + 1.0).double(), rtol=1e-4, atol=1e-4)
    assert len(set(places)) == 3
    state = state._replace(read_weights=torch.eye(N)[places[1]].double()[None, None])
    state = access(memory, say(memory, write_to=None, free=1.0), state)             # the slot just read is set free
    used = [n in (places[0], places[2]) for n in range(N)]
    torch.testing.assert_close(state.usage[0], torch.tensor(used).double(), rtol=0, atol=1e-4)
    state = access(memory, say(memory, add=9.0), state)
    assert not used[int(state.write_weights.argmax())]


def test_rounding_does_not_decide_which_of_equally_free_slots_is_written():
    usage = torch.full((1, 6), 0.3, dtype=torch.float64)
    noise = 1e-7 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(_allocate(usage + noise), _allocate(usage).expand(50, 6), rtol=0, atol=1e-5)


def test_reading_walks_forward_and_backward_in_the_order_of_writing():
    memory = build(reads=1)
    state = memory.initial_state(1)
    words = torch.randn(4, W).double()
    for word in words:
        state = access(memory, say(memory)._replace(add=word[None]), state)
    state = access(memory, say(memory, write_to=None, key=words[0]), state)         # find the first by its content
    torch.testing.assert_close(state.reads[0], words[0], rtol=1e-3, atol=1e-3)
    for n in (1, 2, 3):
        state = access(memory, say(memory, write_to=None, mode=2), state)
        torch.testing.assert_close(state.reads[0], words[n], rtol=1e-3, atol=1e-3)
    for n in (2, 1, 0):
        state = access(memory, say(memory, write_to=None, mode=0), state)
        torch.testing.assert_close(state.reads[0], words[n], rtol=1e-3, atol=1e-3)


def test_allocation_of_unused_full_and_equal_slots():
    u = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.2, 0.5], [1.0, 0.0, 0.3]]).double().requires_grad_()
    want = torch.tensor([[1, 0, 0], [0, 0, 0], [0.5 * 0.2, 0.8, 0.5 * 0.2 * 0.5], [0, 1, 0]]).double()
    a = _allocate(u)
    torch.testing.assert_close(a, want, rtol=0, atol=1e-5)
    (a * torch.randn_like(a)).sum().backward()
    assert u.grad.isfinite().all()
    assert u.grad.abs().max() < 10


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_over_long_ragged_episodes(kind):
    memory = hm.DNC(3, 2, 8, word_size=6, controller_size=16, **KINDS[kind])
    x = torch.randn(3, 256, 3, requires_grad=True)
    y, _ = memory(x, None, torch.rand(3, 256, generator=torch.Generator().manual_seed(4)) < 0.02)
    y.square().sum().backward()
    for g in (x.grad, *(p.grad for p in memory.parameters())):
        assert g.isfinite().all()
        assert g.abs().max() > 0


def test_learns_to_copy():
    """Three words of four bits, then silence in which they must be repeated: an answer without memory is right in half of the bits."""
    torch.manual_seed(0)
    memory = hm.DNC(5, 4, 8, word_size=8, reads=1, controller_size=24)
    optimiser = torch.optim.Adam(memory.parameters(), lr=1e-2)

    def batch(B=32, length=3):
        words = torch.randint(2, (B, length, 4)).float()
        x = torch.zeros(B, 2 * length, 5)
        x[:, :length, :4], x[:, length:, 4] = 2 * words - 1, 1
        return x, words

    for _ in range(250):
        x, words = batch()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(memory(x)[0][:, 3:], words)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(memory.parameters(), 5.0)
        optimiser.step()
    x, words = batch(256)
    with torch.no_grad():
        right = ((memory(x)[0][:, 3:] > 0) == (words > 0.5)).float().mean()
    assert right > 0.95, float(right)


def test_autocast_and_half_precision_keep_a_wide_state():
    memory, x, reset = hm.DNC(3, 2, N, word_size=W, controller_size=8), torch.randn(2, 7, 3), torch.rand(2, 7) < 0.2
    want, _ = memory(x, None, reset)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = memory(x, None, reset)
    assert all(s.dtype == torch.float32 for s in state)
    torch.testing.assert_close(y.float(), want, rtol=0.05, atol=0.05)
    y, state = memory.bfloat16()(x.bfloat16(), None, reset)
    assert y.dtype == torch.bfloat16
    assert all(s.dtype == torch.float32 for s in state)


def test_sizes():
    memory = hm.DNC(3)
    assert memory.output_size == 128 + 2 * 16
    assert memory.state_size == 32 * 16 + 2 * 32 + 32 + 32 + 32 * 32 + 32 + 2 * 16 + 2 * 128
    assert hm.DNC(3, **KINDS["ntm"]).state_size == 32 * 16 + 2 * 32 + 32 + 2 * 16 + 2 * 128
    with pytest.raises(ValueError, match="word_size must be positive, got 0"):
        hm.DNC(3, word_size=0)
    for flag in ("allocation", "links"):
        with pytest.raises(TypeError, match=f"{flag} must be True or False, got 'no'; pass a bool"):
            hm.DNC(3, **{flag: "no"})
    assert "3, 160, memory_size=32, word_size=16, reads=2, controller_size=128, allocation=True, links=True" in repr(memory)
    with pytest.raises(ValueError, match=r"state.usage must have shape \[B, 32\], got \[2, 0\]"):
        memory(torch.randn(2, 4, 3), hm.DNC(3, **KINDS["ntm"]).initial_state(2)._replace(read_weights=torch.zeros(2, 2, 32)))


def test_a_compiled_step_takes_any_batch_size(monkeypatch):
    """One graph for the first size and one for all others: PyTorch gives up after eight."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    memory = hm.DNC(3, 2, 6, word_size=4, controller_size=8)
    inputs = [torch.randn(B, 3, 3) for B in (5, 2, 3, 7, 11, 4, 8, 6, 9)]
    want = [memory(x)[0] for x in inputs]
    compiled = torch.compile(hm.DNC._step, backend=count)
    monkeypatch.setattr("hadamem.memory.dnc.one_step", lambda step, x: compiled)
    torch.testing.assert_close([memory(x)[0] for x in inputs], want)
    assert len(graphs) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dnc", "fast_weights"])
def test_captured_with_gradients_in_a_cuda_graph(name):
    """Forward and backward, with resets inside: nothing of it may look at a value on the host."""
    memory = hm.make_memory(name, 3, 2, memory_size=8).cuda()
    x = torch.randn(2, 6, 3, device="cuda", requires_grad=True)
    reset = torch.rand(2, 6, device="cuda") < 0.3
    state = memory.initial_state(2)

    def run():
        y, after = memory(x, state, reset)
        return y, *after, *torch.autograd.grad(y.square().sum(), [x, *memory.parameters()])

    want, got, graph = captured(run, warm_up=2)
    graph.replay()
    torch.testing.assert_close(got, want)


@pytest.mark.gpu
def test_a_compiled_caller_compiles_the_step_and_gets_the_same():
    torch.manual_seed(0)
    memory = hm.DNC(7, 6, 8, word_size=5, controller_size=16).cuda()
    x, reset = torch.randn(3, 9, 7, device="cuda"), torch.zeros(3, 9, dtype=torch.bool, device="cuda")
    reset[1, 4] = True

    def loss(x):
        y, state = memory(x, memory.initial_state(3), reset)
        return y.square().sum() + state.M.square().sum()

    results = []
    for call in (loss, torch.compile(loss, dynamic=False)):
        memory.zero_grad()
        value = call(x)
        value.backward()
        results.append([value.detach(), *(p.grad.clone() for p in memory.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
