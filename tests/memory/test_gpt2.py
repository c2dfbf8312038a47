"""GPT-2: a literal loop over windows, both rules past the window, packed episodes, the fast paths, state and errors."""

from __future__ import annotations

import math

import pytest
import torch

import hadamem as hm
from hadamem.memory.transformer import Block
from hadamem.testing import check_memory

from ..cuda_graphs import captured

RULES = ("slide", "recompute")


def build(rule="slide", window=5, layers=2, scale=15.0, **options):
    """Weights far from their small start, so that attention is sharp and every bias counts."""
    memory = hm.GPT2(4, options.pop("output_size", None), 8, window=window, layers=layers, past_window=rule, **options).double()
    with torch.no_grad():
        for p in memory.parameters():
            p.mul_(scale) if p.ndim == 2 else p.add_(0.3 * torch.randn_like(p))
    return memory


def sines(position, width):
    row = torch.zeros(width, dtype=torch.float64)
    for i in range(0, width, 2):
        angle = position * 10000.0 ** (-i / width)
        row[i], row[i + 1] = math.sin(angle), math.cos(angle)
    return row


def normed(x, norm):
    x = x - x.mean()
    return x / (x.square().mean() + 1e-5).sqrt() * norm.weight + norm.bias


def gelu(u):
    return 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))


def one_row(memory, z):
    """Outputs of one episode; z: list of embedded steps. A step sees at most `window` keys."""
    heads, width = memory.heads, memory.memory_size
    for block in memory.blocks:
        qkv = [block.attention.weight @ normed(s, block.norm1) + block.attention.bias for s in z]
        after = []
        for t, s in enumerate(z):
            q = qkv[t][:width].reshape(heads, -1)
            mixed = []
            for n in range(heads):
                seen = range(max(0, t - memory.window + 1), t + 1)
                k = torch.stack([qkv[j][width:2 * width].reshape(heads, -1)[n] for j in seen])
                v = torch.stack([qkv[j][2 * width:].reshape(heads, -1)[n] for j in seen])
                mixed.append(torch.softmax(k @ q[n] / math.sqrt(width / heads), 0) @ v)
            s = s + block.project.weight @ torch.cat(mixed) + block.project.bias
            u = gelu(block.expand.weight @ normed(s, block.norm2) + block.expand.bias)
            after.append(s + block.contract.weight @ u + block.contract.bias)
        z = after
    return [normed(s, memory.norm) for s in z]


def slow(memory, x):
    """One episode x [T, D], step by step from the equations."""
    e = [memory.map.weight @ s + memory.map.bias for s in x]
    if memory.past_window == "slide":
        return torch.stack(one_row(memory, [s + sines(t, memory.memory_size) for t, s in enumerate(e)]))
    ys = []
    for t in range(len(e)):
        window = e[max(0, t - memory.window + 1):t + 1]
        ys.append(one_row(memory, [s + sines(n, memory.memory_size) for n, s in enumerate(window)])[-1])
    return torch.stack(ys)


def resets(B, T, rate=0.2, seed=3):
    return torch.rand(B, T, generator=torch.Generator().manual_seed(seed)) < rate


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("window", "layers"), [(4, 1), (4, 2), (50, 2)])
def test_matches_a_literal_loop(rule, window, layers):
    memory, x = build(rule, window, layers), torch.randn(2, 13, 4).double()
    reset = torch.zeros(2, 13, dtype=torch.bool)
    reset[1, 6] = True
    want = torch.stack([slow(memory, x[0]), torch.cat((slow(memory, x[1, :6]), slow(memory, x[1, 6:])))])
    got, _ = memory(x, None, reset)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    state, ys = memory.initial_state(2), []
    for t in range(13):
        y, state = memory.step(x[:, t], state, reset[:, t])
        ys.append(y)
    torch.testing.assert_close(torch.stack(ys, 1), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("window", "layers"), [(2, 1), (5, 2), (64, 3)])
def test_keeps_the_contract_with_sharp_attention(rule, window, layers):
    check_memory(build(rule, window, layers, output_size=3), long_length=64)


def test_rules_agree_within_the_window_and_differ_beyond():
    slide, x = build("slide", window=6), torch.randn(2, 9, 4).double()
    again = hm.GPT2(4, memory_size=8, layers=2, window=6, past_window="recompute").double()
    again.load_state_dict(slide.state_dict())
    a, b = slide(x)[0], again(x)[0]
    torch.testing.assert_close(a[:, :6], b[:, :6])
    assert (a[:, 6:] - b[:, 6:]).abs().amax(dim=(0, 2)).min() > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_one_layer_forgets_exactly_what_leaves_the_window(rule):
    memory, x = build(rule, window=4, layers=1), torch.randn(1, 9, 4).double()
    other = x.clone()
    other[:, 2] += 1
    change = (memory(x)[0] - memory(other)[0]).abs().amax(dim=(0, 2))
    assert (change[2:6] > 1e-6).all()
    assert (change[6:] == 0).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("T", [5, 12])
def test_hints_change_nothing_but_the_cost(rule, T):
    memory, x = build(rule, window=8), torch.randn(3, T, 4).double()
    _, past = memory(torch.randn(3, 6, 4).double())
    reset = torch.zeros(3, T, dtype=torch.bool)
    reset[1, 0] = True
    want, want_state = memory(x, past, reset)
    got, state = memory(x, past, reset, resets_only_at_start=True)
    torch.testing.assert_close((got, *state), (want, *want_state))
    reset = torch.ones(3, 1, dtype=torch.bool) & (torch.arange(T) == 0)
    want, want_state = memory(x, past, reset)
    got, state = memory(x, past, reset, resets_only_at_start=True, starts_fresh=True)
    torch.testing.assert_close((got, *state), (want, *want_state))


def test_a_fresh_sequence_takes_plain_causal_attention(monkeypatch):
    """No mask is built, and no empty past attended to, on the way a learner of whole episodes takes."""
    memory, x, calls = build(window=32), torch.randn(3, 9, 4).double(), []
    attend = Block._attend
    monkeypatch.setattr(Block, "_attend", lambda self, q, kv, mask, causal=False: calls.append((kv.shape[1], mask, causal))
                        or attend(self, q, kv, mask, causal))
    memory(x)
    memory(x, memory.initial_state(3), torch.ones(3, 9, dtype=torch.bool), resets_only_at_start=True, starts_fresh=True)
    assert calls == [(9, None, True)] * 4


@pytest.mark.parametrize("rule", RULES)
def test_what_is_not_finite_is_seen_by_its_window_only(rule):
    memory, x = build(rule, window=4, layers=1), torch.randn(1, 12, 4).double()
    want = memory(x)[0]
    x[0, 3] = torch.nan
    whole, _ = memory(x)
    steps, state = [], memory.initial_state(1)
    for t in range(12):
        y, state = memory.step(x[:, t], state)
        steps.append(y)
    for got in (whole, torch.stack(steps, 1)):
        assert got[0, 3:7].isnan().all()
        torch.testing.assert_close(got[0, :3], want[0, :3])
        torch.testing.assert_close(got[0, 7:], want[0, 7:])


@pytest.mark.parametrize("rule", RULES)
def test_state_is_the_episode_alone(rule):
    memory, x, reset = build(rule, window=7), torch.randn(3, 20, 4).double(), resets(3, 20)
    reset[:, 17] = True
    _, state = memory(x, None, reset)
    _, alone = memory(x[:, 17:], None, reset[:, 17:])
    start = 17 + torch.where(reset[:, 17:], torch.arange(3), 0).amax(1)
    assert (state.position == 20 - start).all()
    torch.testing.assert_close(tuple(state), tuple(alone))
    assert (state.past[:, :, :3] == 0).all()


def test_late_positions_keep_their_digits():
    memory = hm.GPT2(4, memory_size=8)
    far = 10**7 + 3
    torch.testing.assert_close(memory._sines(torch.tensor([far]))[0], sines(far, 8).float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_autocast_and_half_precision_keep_a_wide_state(rule):
    memory = hm.GPT2(4, 3, 8, window=5, past_window=rule)
    x, reset = torch.randn(2, 9, 4), resets(2, 9)
    want, _ = memory(x, None, reset)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = memory(x, memory.initial_state(2), reset)
        _, state = memory.step(x[:, 0], state)
    assert state.past.dtype == torch.float32
    torch.testing.assert_close(y.float(), want, rtol=0.05, atol=0.05)
    y, state = memory.bfloat16()(x.bfloat16(), None, reset)
    assert (y.dtype, state.past.dtype) == (torch.bfloat16, torch.float32)


def test_large_keys_of_half_precision_are_finite():
    """Sums over keys and values overflow float16 long before they do: a whole sequence is its steps also then."""
    memory, x = hm.GPT2(4, memory_size=8, window=9), torch.randn(2, 6, 4)
    with torch.no_grad():
        memory.blocks[0].attention.bias[8:].fill_(6e3)
    memory, x, state, ys = memory.half(), x.half(), None, []
    with torch.no_grad():
        want, _ = memory(x)
        for x_t in x.split(1, dim=1):
            y, state = memory(x_t, state)
            ys.append(y)
    assert want.isfinite().all()
    torch.testing.assert_close(torch.cat(ys, dim=1), want, rtol=2e-2, atol=2e-2)


def test_dropout_is_for_training():
    memory, x = hm.GPT2(4, memory_size=8, dropout=0.5), torch.randn(2, 9, 4)
    assert not torch.equal(memory(x)[0], memory(x)[0])
    memory.eval()
    assert torch.equal(memory(x)[0], memory(x)[0])


@pytest.mark.parametrize("rule", RULES)
def test_compiles_in_one_graph(rule):
    memory, x, reset = build(rule, window=4), torch.randn(2, 6, 4).double(), resets(2, 6)
    compiled = torch.compile(memory, backend="aot_eager", fullgraph=True)
    want, want_state = memory(x, memory.initial_state(2), reset)
    got, state = compiled(x, memory.initial_state(2), reset)
    torch.testing.assert_close((got, *state), (want, *want_state))


def test_published_weights_of_any_number_of_layers():
    """Names are the published code's, matrices are (in, out) there; what is missing is named."""
    theirs = {"attention": "attn.c_attn", "project": "attn.c_proj", "expand": "mlp.c_fc", "contract": "mlp.c_proj",
              "norm1": "ln_1", "norm2": "ln_2"}
    memory, weights = build("recompute", window=6, layers=3), {}
    for name, p in memory.named_parameters():
        parts, p = name.split("."), p.detach()
        if parts[0] == "blocks":
            weights[f"transformer.h.{parts[1]}.{theirs[parts[2]]}.{parts[3]}"] = p.T if p.ndim == 2 else p
        else:
            weights[f"transformer.ln_f.{parts[1]}" if parts[0] == "norm" else name] = p
    loaded, x = hm.reference.load("gpt2", weights, {"n_head": 4, "max_seq_length": 6}), torch.randn(2, 9, 4).double()
    torch.testing.assert_close(loaded(x)[0], memory(x)[0])
    loaded(x)[0].sum().backward()
    got = hm.reference.gradients(loaded)
    assert {k: g.shape for k, g in got.items()} == {k: tuple(w.shape) for k, w in weights.items()}
    del weights["transformer.h.1.ln_2.bias"]
    with pytest.raises(ValueError, match=r"missing: transformer.h.1.ln_2.bias"):
        hm.reference.load("gpt2", weights)


@pytest.mark.parametrize(("options", "message"), [
    (dict(memory_size=10, heads=4), "heads must divide memory_size=10, got heads=4"),
    (dict(window=0), "window must be positive, got 0"),
    (dict(layers=0), "layers must be positive"),
    (dict(dropout=1.0), r"dropout must be in \[0, 1\), got 1.0"),
    (dict(dropout="x"), "dropout must be a number, got 'x'"),
    (dict(past_window="forget"), "unknown past_window 'forget'; choose from slide, recompute"),
])
def test_bad_options(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        hm.GPT2(4, **options)


def test_defaults_and_repr():
    memory = hm.GPT2(4)
    assert (memory.window, memory.state_size) == (256, 2 * 255 * 128)
    assert "4, 128, memory_size=128, heads=4, layers=1, window=256, past_window='slide'" in repr(memory)


@pytest.mark.parametrize("rule", RULES)
def test_acting_gives_the_same_and_leaves_its_past_alone(rule):
    """Without gradients, a reset and the new step are written in the one copy that a step makes of its past."""
    memory, x, reset = build(rule, window=6), torch.randn(3, 4).double(), torch.tensor([True, False, True])
    state = hm.states.detach(memory(torch.randn(3, 8, 4).double())[1])
    state.past[0] = torch.nan
    want, want_after = memory.step(x, state, reset)
    with torch.no_grad():
        before = state.past.clone()
        y, after = memory.step(x, state, reset)
    torch.testing.assert_close(state.past, before, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close((y, *after), (want, *want_after))
    assert (after.past[[0, 2], :, :-1] == 0).all()


def test_bad_states():
    memory, x = hm.GPT2(4, memory_size=8, window=5), torch.randn(2, 3, 4)
    other = hm.GPT2(4, memory_size=8, window=6).initial_state(2)
    with pytest.raises(ValueError, match=r"state.past must have shape \[B, 1, 4, 16\], got \[2, 1, 5, 16\]"):
        memory(x, other)
    with pytest.raises(TypeError, match=r"state.position must be an int64 tensor"):
        memory(x, memory.initial_state(2)._replace(position=torch.zeros(2)))


@pytest.mark.gpu
@pytest.mark.parametrize("rule", RULES)
def test_captured_in_a_cuda_graph(rule):
    memory = hm.GPT2(4, memory_size=32, window=6, past_window=rule).cuda()
    x, reset = torch.randn(5, 9, 4, device="cuda"), resets(5, 9).cuda()
    past = memory(torch.randn(5, 8, 4, device="cuda"))[1]
    with torch.no_grad():
        want, got, graph = captured(lambda: memory(x, past, reset), warm_up=2)
        graph.replay()
    torch.testing.assert_close(got, want)


def test_a_past_window_that_is_no_name():
    with pytest.raises(ValueError, match="unknown past_window"):
        hm.make_memory("gpt2", 3, 2, memory_size=4, past_window=[1, 2])
    with pytest.raises(ValueError, match="unknown past_window array"):
        hm.make_memory("gpt2", 3, 2, memory_size=4, past_window=torch.ones(3).numpy())
