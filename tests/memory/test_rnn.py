"""GRU and LSTM: packed episodes, the masked loop, torch's own modules, torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hadamem as hm

KINDS = {"gru": (hm.GRU, nn.GRU), "lstm": (hm.LSTM, nn.LSTM)}
pytestmark = pytest.mark.parametrize("kind", KINDS)


def problem(kind, B=3, T=11, rate=0.3, **options):
    memory = KINDS[kind][0](4, None, memory_size=5, **options).double()
    state = memory.initial_state(B)
    state = type(state)(*(torch.randn_like(s) for s in state))
    reset = torch.rand(B, T, generator=torch.Generator().manual_seed(2)) < rate
    return memory, torch.randn(B, T, 4).double(), state, reset


def run_with_grads(memory, run, x, state):
    leaf, start = x.clone().requires_grad_(), type(state)(*(s.clone().requires_grad_() for s in state))
    memory.zero_grad()
    y, after = run(leaf, start)
    (y.cos().sum() + sum(s.sin().sum() for s in after)).backward()
    return [y, *after, leaf.grad, *(s.grad for s in start), *(p.grad.clone() for p in memory.parameters())]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 1.0])
def test_packed_is_masked_loop_is_separate_runs(kind, rate):
    memory, x, state, reset = problem(kind, rate=rate)

    def separate(x, state):
        rows, last = [], []
        for b in range(x.shape[0]):
            now, ys = hm.states.index(state, slice(b, b + 1)), []
            starts = sorted({0, *reset[b].nonzero()[:, 0].tolist()})
            for start, end in zip(starts, [*starts[1:], x.shape[1]], strict=True):
                now = hm.states.where(reset[b:b + 1, start], memory.initial_state(1), now)
                y, now = memory(x[b:b + 1, start:end], now)
                ys.append(y)
            rows.append(torch.cat(ys, dim=1))
            last.append(now)
        return torch.cat(rows), type(state)(*(torch.cat(s) for s in zip(*last, strict=True)))

    def masked(x, state):
        y, after = memory._masked_loop(x, tuple(state), reset)
        return y, type(state)(*after)

    want = run_with_grads(memory, separate, x, state)
    for run in (lambda x, s: memory(x, s, reset), masked):
        for got, expected in zip(run_with_grads(memory, run, x, state), want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def test_without_resets_it_is_torchs_module(kind):
    memory, x, _, _ = problem(kind)
    twin = KINDS[kind][1](4, 5, batch_first=True).double()
    twin.load_state_dict(memory.rnn.state_dict())
    torch.testing.assert_close(memory(x)[0], twin(x)[0])


def test_output_map(kind):
    plain = KINDS[kind][0](4, memory_size=5)
    assert plain.out is None
    assert plain.output_size == 5
    mapped = KINDS[kind][0](4, 3, memory_size=5)
    y, _ = mapped(torch.randn(2, 7, 4))
    assert y.shape == (2, 7, 3)
    assert mapped.state_size == {"gru": 5, "lstm": 10}[kind]


def test_hint_of_resets_at_the_start(kind):
    """With resets_only_at_start only the first column is looked at; a true hint changes nothing."""
    memory, x, state, reset = problem(kind)
    reset[:, 1:] = False
    want, want_state = memory(x, state, reset)
    got, got_state = memory(x, state, reset, resets_only_at_start=True)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(got_state, want_state)


@pytest.mark.parametrize(("size", "captured", "taken"), [(256, True, True), (256, False, False), (64, True, False)])
def test_whole_sequences_take_the_kernel_of_a_large_layer_in_a_graph(kind, size, captured, taken, monkeypatch):
    memory = KINDS[kind][0](4, memory_size=size)
    monkeypatch.setattr(type(memory), "_kernel_works", lambda self, dtype: True)
    monkeypatch.setattr("hadamem.kernels.gru_is_fused", lambda *_: False)
    monkeypatch.setattr("hadamem.cuda_graphs._planned", captured)
    assert memory._kernel_is_faster(torch.float32, whole=True) == taken
    assert memory._kernel_is_faster(torch.float32, whole=False)


def test_compiled_with_resets_inside(kind):
    memory, x, state, reset = problem(kind, T=4)
    reset[0, 2] = True
    want, want_state = memory(x, state, reset)
    torch._dynamo.reset()
    got, got_state = torch.compile(memory, backend="eager")(x, state, reset)   # dynamo leaves library RNNs alone
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(tuple(got_state), tuple(want_state))
    with torch._dynamo.config.patch(allow_rnn=True):                           # and where it must: a masked loop
        torch._dynamo.reset()
        got, got_state = torch.compile(memory, backend="eager", fullgraph=True)(x, state, reset)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(tuple(got_state), tuple(want_state))


def test_half_precision_module_keeps_a_wide_state(kind):
    memory = KINDS[kind][0](4, 3, memory_size=5).bfloat16()
    y, state = memory(torch.randn(2, 7, 4).bfloat16(), None, torch.rand(2, 7) < 0.3)
    assert y.dtype == torch.bfloat16
    assert all(s.dtype == torch.float32 for s in state)


def test_autocast(kind):
    memory = KINDS[kind][0](4, 3, memory_size=5)
    x, reset = torch.randn(2, 7, 4), torch.rand(2, 7) < 0.3
    want, _ = memory(x, None, reset)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = memory(x, None, reset)
    assert all(s.dtype == torch.float32 for s in state)
    torch.testing.assert_close(y.float(), want, rtol=0.05, atol=0.05)


def test_inf_and_nan_stay_behind_a_reset(kind):
    memory, x, state, _ = problem(kind)
    reset = torch.zeros(3, 11, dtype=torch.bool)
    reset[:, 4] = True
    want, _ = memory(x, state, reset)
    sick = x.clone()
    sick[0, 2] = float("nan")
    got, after = memory(sick, state, reset)
    torch.testing.assert_close(got[:, 4:], want[:, 4:])
    torch.testing.assert_close(got[1:], want[1:])
    assert all(s.isfinite().all() for s in after)
