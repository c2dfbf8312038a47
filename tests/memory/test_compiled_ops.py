"""torch.compile finds the fused operators, not the loops of the reference: compiled updates depend on it."""

import pytest
import torch

import hadamem as hm
from hadamem.kernels import _backends

CASES = [("shm", "cpu"), ("shm-rotary", "cpu"), pytest.param("shm-rotary", "cuda", marks=pytest.mark.gpu),
         *(pytest.param(name, "cpu", marks=pytest.mark.slow) for name in ("shm-paper", "ffm", "s6")),
         *(pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in ("shm", "shm-paper", "ffm", "s6", "gru"))]


@pytest.mark.parametrize(("name", "device"), CASES)
def test_a_compiled_pass_calls_fused_operators(name, device):
    rotary = {"rotary": True} if name == "shm-rotary" else {}
    memory = hm.make_memory(name.removesuffix("-rotary"), 6, 4, memory_size=4, **rotary).to(device)
    found = []

    def look(graph, inputs):
        found.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    with torch._dynamo.config.patch(allow_rnn=True):      # for GRU, which holds the library's module
        torch.compile(memory, backend=look, fullgraph=True)(torch.randn(2, 5, 6, device=device))
    assert any(target.startswith("hadamem.") for target in found), found


def test_exporting_is_told_apart_from_compiling():
    seen = []

    def step(x):
        seen.append(_backends.exporting())
        return x + 1

    torch.compile(step, backend="eager")(torch.ones(2))
    assert seen == [False]
