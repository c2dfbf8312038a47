"""SHM's layers are layers: hooks, norms and replacements take effect; precision and bad input."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import hadamem as hm

LAYERS = ("key", "query", "value", "eta", "shortcut", "out")


class Plus(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x) + 1.0


@pytest.mark.parametrize("name", LAYERS)
def test_a_replaced_layer_is_used(name):
    memory, x = hm.SHM(6, 4, memory_size=8), torch.randn(2, 5, 6)
    before = memory(x)[0]
    setattr(memory, name, Plus(getattr(memory, name)))
    assert not torch.allclose(memory(x)[0], before)
    with torch.no_grad():
        torch.testing.assert_close(memory.step(x[:, 0], memory.initial_state(2))[0], memory(x[:, :1])[0][:, 0])


@pytest.mark.parametrize("name", LAYERS)
def test_a_hook_is_called(name):
    memory, calls = hm.SHM(6, 4, memory_size=8), []
    getattr(memory, name).register_forward_hook(lambda *args: calls.append(name))
    memory(torch.randn(2, 5, 6))
    assert calls == [name]


def test_calling_the_layers_gives_what_the_joint_product_gives():
    memory, x = hm.SHM(6, 4, memory_size=8), torch.randn(2, 5, 6)
    want = memory(x)[0]
    memory.key.register_forward_hook(lambda *args: None)
    torch.testing.assert_close(memory(x)[0], want)


def test_weight_norm_and_pruning_train():
    memory, x = hm.SHM(6, 4, memory_size=8), torch.randn(2, 5, 6)
    prune.l1_unstructured(memory.key, "weight", 0.5)
    nn.utils.parametrizations.weight_norm(memory.value)
    optimizer = torch.optim.SGD(memory.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        memory(x)[0].square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", hm.list_memories())
def test_trains_under_autocast(name):
    memory = hm.make_memory(name, 6, 4, memory_size=8)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = memory(torch.randn(2, 5, 6))
    y.float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in memory.parameters())


def test_shapes_without_numbers():
    memory = hm.SHM(6, 4, memory_size=8).to("meta")
    y, state = memory(torch.empty(2, 5, 6, device="meta"))
    assert y.shape == (2, 5, 4)
    assert state.M.shape == (2, 8, 8)


@pytest.mark.parametrize("name", hm.list_memories())
def test_a_dtype_that_differs_is_named(name):
    memory = hm.make_memory(name, 6, 4, memory_size=8)
    with pytest.raises(TypeError, match=r"x is torch.float64 but the module's parameters are torch.float32"):
        memory(torch.randn(2, 5, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match="batch_size must be positive, got -1"):
        memory.initial_state(-1)


def test_a_state_that_is_not_one_is_named():
    memory = hm.SHM.paper(6, 4, memory_size=8)
    state = memory.initial_state(2)
    with pytest.raises(TypeError, match=r"state.clock must be an int64 tensor"):
        memory(torch.randn(2, 5, 6), state._replace(clock=state.clock.float()))
    with pytest.raises(TypeError, match=r"state.M must have a floating dtype"):
        memory(torch.randn(2, 5, 6), state._replace(M=state.M.long()))


def test_numbers_of_numpy_are_numbers():
    assert hm.SHM(np.int64(6), 4, memory_size=np.int32(8), clip=np.float32(1.0)).memory_size == 8
    with pytest.raises(ValueError, match="unknown memory"):
        hm.make_memory(["shm"], 6)
