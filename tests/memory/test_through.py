"""What agents ask of a memory beside the interface: a layer on top of it, and a promise about resets. Neither changes a result."""

import pytest
import torch

import hadamem as hm
from hadamem import states

NAMES = hm.list_memories()


@pytest.mark.parametrize("name", NAMES)
def test_through_a_layer_is_the_layer_on_the_output(name):
    torch.manual_seed(0)
    memory, layer = hm.make_memory(name, 6, 20, memory_size=8).double(), torch.nn.Linear(20, 5).double()
    x, reset = torch.randn(3, 11, 6).double(), torch.rand(3, 11) < 0.2
    state = memory.initial_state(3)
    wanted, last = memory(x, state, reset)
    wanted = layer(wanted)
    got, state = memory.through(layer, x, state, reset)
    torch.testing.assert_close(got, wanted)
    parameters = [*memory.parameters(), *layer.parameters()]
    weight = torch.randn_like(wanted)
    for a, b in zip(torch.autograd.grad((got * weight).sum(), parameters, allow_unused=True),
                    torch.autograd.grad((wanted * weight).sum(), parameters, allow_unused=True), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
    for a, b in zip(states.tensors(state), states.tensors(last), strict=True):
        torch.testing.assert_close(a, b)


def test_a_hooked_layer_is_called():
    memory, layer = hm.SHM(6, 20, memory_size=8), torch.nn.Linear(20, 5)
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    memory.through(layer, torch.randn(2, 3, 6))
    assert calls


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", [True, False])
def test_a_promise_about_resets_changes_nothing(name, first):
    torch.manual_seed(0)
    memory = hm.make_memory(name, 6, 7, memory_size=8).double()
    x, reset = torch.randn(4, 9, 6).double(), torch.zeros(4, 9, dtype=torch.bool)
    reset[:, 0] = torch.tensor([first, False, first, True])
    state = memory(x, memory.initial_state(4))[1]
    wanted, last = memory(x, state, reset)
    memory.resets_only_at_start = True
    got, state = memory(x, state, reset)
    torch.testing.assert_close(got, wanted)
    for a, b in zip(states.tensors(state), states.tensors(last), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_a_promise_of_fresh_sequences_changes_nothing(name):
    torch.manual_seed(0)
    memory = hm.make_memory(name, 6, 7, memory_size=8).double()
    x, reset = torch.randn(4, 9, 6).double(), torch.zeros(4, 9, dtype=torch.bool)
    reset[:, 0] = True
    state = memory(x, memory.initial_state(4))[1]
    wanted = memory(x, state, reset)[0]
    memory.resets_only_at_start = memory.starts_fresh = True
    torch.testing.assert_close(memory(x, state, reset)[0], wanted)
    step, _ = memory.step(x[:, 0], state, torch.zeros(4, dtype=torch.bool))      # single steps may still go on from a state
    memory.resets_only_at_start = memory.starts_fresh = False
    torch.testing.assert_close(step, memory.step(x[:, 0], state, torch.zeros(4, dtype=torch.bool))[0])
