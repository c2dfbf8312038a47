"""Rotary rows of SHM: the equations, step by step; only the distance between two steps counts; a query can ask for the past."""

import math

import pytest
import torch

import hadamem as hm
from hadamem.memory.rotary import PERIOD, angles, rotate, turns


def slow(memory, x, clock, reset):
    """y of a memory with C = 1 + tanh(theta_0 ⊗ vc), one step at a time, in plain torch."""
    V, K, n = memory.memory_size, memory.key_size, memory.memory_size - memory.memory_size // 2
    M = x.new_zeros(x.shape[0], V, K)
    ys = []
    for t in range(x.shape[1]):
        z = memory.norm(x[:, t])
        own = (memory.rotary_key or memory.key, memory.rotary_query or memory.query)
        k, q, *turning = (torch.relu(layer(z)) for layer in (memory.key, memory.query, *own))
        k, q, *turning = (a / (1e-5 + a.sum(-1, keepdim=True)) for a in (k, q, *turning))
        angle = 2 * math.pi / PERIOD * memory._turns.to(x.dtype) * (clock + 1 + t)
        both = []
        for a in turning:
            pairs = torch.complex(a[:, :K // 2], a[:, K // 2:2 * (K // 2)]) * torch.polar(torch.ones_like(angle), angle)
            both.append(torch.cat([pairs.real, pairs.imag, a[:, 2 * (K // 2):]], -1))
        keys = torch.cat([k[:, None].expand(-1, n, -1), both[0][:, None].expand(-1, V - n, -1)], 1)           # of every row
        queries = torch.cat([q[:, None].expand(-1, n, -1), both[1][:, None].expand(-1, V - n, -1)], 1)
        vc = memory.calibration.vc(z)
        paired = torch.cat([vc[:, :K // 2], vc[:, :K // 2], vc[:, 2 * (K // 2):]], -1)
        columns = torch.cat([vc[:, None].expand(-1, n, -1), paired[:, None].expand(-1, V - n, -1)], 1)
        C = 1 + torch.tanh(memory.calibration.theta[0][:, None] * columns)
        v = torch.sigmoid(memory.eta(z)) * memory.value(z)
        M = torch.where(reset[:, t, None, None], 0.0, M) * C + v[..., None] * keys
        h = (M * queries).sum(-1)
        plain, turned = (torch.nn.functional.layer_norm(part, part.shape[-1:]) for part in (h[:, :n], h[:, n:]))
        h = torch.cat([plain, turned if memory.rotary_gain is None else memory.rotary_gain * turned], -1)
        ys.append(memory.out(h + memory.shortcut(z)))
    return torch.stack(ys, 1)


@pytest.mark.parametrize(("V", "K", "T", "gain"), [(8, 8, 1, None), (6, 5, 9, 0.3), (7, 4, 23, None), (7, 6, 11, -2.0), (4, 2, 5, None)])
def test_forward_and_gradients_are_those_of_a_slow_loop(V, K, T, gain):
    torch.manual_seed(0)
    memory = hm.SHM(5, 3, memory_size=V, key_size=K, theta_init=1.0, rotary=True, rotary_gain=gain, rotary_keys=gain is not None).double()
    x, reset = torch.randn(4, T, 5, dtype=torch.float64, requires_grad=True), torch.rand(4, T) < 0.2
    state = memory.initial_state(4)
    want, got = slow(memory, x, 0, reset), memory(x, state, reset)[0]
    torch.testing.assert_close(got, want)
    inputs = [x, *memory.parameters()]
    dy = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(got, inputs, dy), torch.autograd.grad(want, inputs, dy), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("start", [1, 12345, PERIOD - 3, 7 * PERIOD + 11, (1 << 61) + 5])
def test_only_the_distance_between_steps_counts(start):
    torch.manual_seed(1)
    memory = hm.SHM(5, 3, memory_size=16, theta_init=1.0, rotary=True)
    x, state = torch.randn(2, 12, 5), memory.initial_state(2)
    later = state._replace(clock=state.clock + start)
    want, got = memory(x, state)[0], memory(x, later)
    torch.testing.assert_close(got[0], want, rtol=1e-4, atol=1e-5)
    assert got[1].clock.tolist() == [start + 12] * 2
    with torch.no_grad():      # and in the fused step
        y, _ = memory.step(x[:, 0], later)
    torch.testing.assert_close(y, want[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lag", [0, 1, 5, 17])
def test_a_turned_query_reads_what_was_written_some_steps_ago(lag):
    torch.manual_seed(2)
    K, T = 64, 40
    clock, frequencies = torch.arange(1, T + 1), turns(K)
    key = torch.cat([torch.ones(K // 2), torch.zeros(K // 2)]) / (K // 2) ** 0.5
    ago = rotate(key, *(a if i == 0 else -a for i, a in enumerate(angles(torch.tensor(lag), frequencies, torch.float32))))
    cos, sin = angles(clock, frequencies, torch.float32)
    k, q, v = rotate(key.expand(T, K), cos, sin), rotate(ago.expand(T, K), cos, sin), torch.randn(T, 8)
    h, _ = hm.kernels.shm(None, None, v[None], k[None], q[None], calibration="none")
    likeness = torch.nn.functional.cosine_similarity(h[0, lag:], v[:T - lag], dim=-1)
    assert likeness.mean() > 0.8      # the other 39 steps leave some noise


@pytest.mark.parametrize("size", [2, 3, 64, 128, 1024])
def test_frequencies_differ_and_stay_below_half_a_turn_per_step(size):
    found = turns(size)
    assert found.min() >= 1
    assert found.max() <= PERIOD // 2
    assert len(found.unique()) == size // 2


def test_states_of_a_memory_pass_through_vectors():
    memory = hm.SHM(5, 3, memory_size=4, rotary=True)
    _, state = memory(torch.randn(2, 7, 5), memory.initial_state(2)._replace(clock=torch.tensor([3, 1 << 61])))
    again = hm.states.from_vector(memory, hm.states.to_vector(state))
    assert torch.equal(again.M, state.M)
    assert torch.equal(again.clock, state.clock)


@pytest.mark.parametrize(("options", "message"), [
    ({"row_mode": "episode"}, "row_mode='episode'"), ({"memory_size": 3, "key_size": 4}, "at least 2, got 3 and 4"),
    ({"rotary": 1}, "rotary must be"), ({"rotary": False, "rotary_gain": 0.1}, "belong to rotary rows"),
    ({"rotary_gain": "loud"}, "rotary_gain must be"),
])
def test_bad_options(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        hm.SHM(5, 3, **{"memory_size": 4, "rotary": True, **options})


def test_a_gain_of_zero_leaves_the_plain_rows():
    torch.manual_seed(3)
    memory = hm.SHM(5, 3, memory_size=8, rotary=True, rotary_gain=0.0)
    x = torch.randn(2, 6, 5)
    y, _ = memory(x)
    memory.value.weight.data[4:] += 1.0      # values of the rotary rows
    torch.testing.assert_close(memory(x)[0], y)


def test_published_forms_are_not_rotary():
    assert not any(make(5, 3, memory_size=4).rotary for make in (hm.SHM, hm.SHM.paper, hm.SHM.release))
