"""The backends of hm.GRU: PyTorch's own kernels ("torch"), and those of hm.kernels.gru."""

from __future__ import annotations

import pytest
import torch

import hadamem as hm
from hadamem.runs.config import make_config, to_flat
from hadamem.testing import check_memory


@pytest.mark.parametrize("backend", hm.kernels.backends("gru"))
@pytest.mark.parametrize("T", [1, 7])
def test_all_backends_give_what_torch_gives(backend, T):
    memory, twin = hm.GRU(4, 3, memory_size=5, backend=backend), hm.GRU(4, 3, memory_size=5, backend="torch")
    twin.load_state_dict(memory.state_dict())
    x, reset = torch.randn(3, T, 4), torch.rand(3, T) < 0.3
    found = []
    for module in (memory, twin):
        start, leaf = torch.full((3, 5), 0.5, requires_grad=True), x.clone().requires_grad_()
        y, state = module(leaf, type(module.initial_state(1))(start), reset)
        found.append([y, state.h, *torch.autograd.grad(y.cos().sum() + state.h.sin().sum(), [leaf, start, *module.parameters()])])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=2e-5)


def test_the_reference_backend_is_a_memory():
    check_memory(hm.GRU(7, memory_size=6, backend="reference"), long_length=65)


def test_auto_is_torch_on_a_cpu_bit_for_bit():
    memory, twin = hm.GRU(4, memory_size=5), hm.GRU(4, memory_size=5, backend="torch")
    twin.load_state_dict(memory.state_dict())
    x, reset = torch.randn(3, 9, 4), torch.rand(3, 9) < 0.3
    assert not memory._has_kernel(x, whole=False)
    assert torch.equal(memory(x, None, reset)[0], twin(x, None, reset)[0])


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="unknown backend 'cudnn'; choose from auto, reference, triton, torch"):
        hm.GRU(4, backend="cudnn")


def test_a_saved_run_names_a_backend_only_if_it_was_chosen():
    flat = to_flat(make_config(env="TMaze", memory="gru"))
    assert "backend" not in flat["network.memory_options"]
    chosen = make_config(env="TMaze", memory="gru", **{"network.memory_options": {"backend": "torch"}})
    assert to_flat(chosen)["network.memory_options"]["backend"] == "torch"


@pytest.mark.parametrize("backend", hm.kernels.backends("gru"))
def test_compiles_with_resets_inside(backend):
    memory = hm.GRU(4, memory_size=5, backend=backend)
    x, reset = torch.randn(3, 4, 4), torch.rand(3, 4) < 0.5
    want, _ = memory(x, None, reset)
    with torch._dynamo.config.patch(allow_rnn=True):
        torch._dynamo.reset()
        got, _ = torch.compile(memory, backend="aot_eager", fullgraph=True)(x, None, reset)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    assert all(p.grad is not None for p in memory.parameters())
