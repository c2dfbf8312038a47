"""Weights, states and gradients under the names of the published code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hadamem as hm
from hadamem import reference


def published_shm(H=4, D=3, O=2, L=8, shortcut=True, dtype=np.float64):
    shapes = {"norm.weight": (D,), "norm.bias": (D,), "key.weight": (H, D), "query.weight": (H, D),
              "value.weight": (H, D), "eta.weight": (1, D), "theta_matrix": (L, H),
              "vc_net.weight": (H, D), "out.weight": (O, H), "out.bias": (O,)}
    shapes |= {"shortcut.weight": (H, D), "shortcut.bias": (H,)} if shortcut else {}
    source = np.random.default_rng(0)
    return {n: source.normal(size=s).astype(dtype) for n, s in shapes.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_load_takes_names_sizes_and_dtype_from_the_weights(dtype):
    weights = published_shm(dtype=dtype)
    memory = reference.load("shm_popgym", weights)
    assert (memory.input_size, memory.output_size, memory.memory_size) == (3, 2, 4)
    assert memory.row_mode == "first"
    assert memory.calibration.theta.detach().numpy().dtype == dtype
    np.testing.assert_array_equal(memory.calibration.theta.detach().numpy(), weights["theta_matrix"])
    tensors = {n: torch.tensor(w) for n, w in weights.items()}
    as_tensors = reference.load("shm_popgym", tensors, {"H": 4, "O": 2, "L": 8})
    x = torch.randn(2, 5, 3, dtype=memory.key.weight.dtype)
    assert torch.equal(memory(x)[0], as_tensors(x)[0])


def test_load_gives_the_published_forms():
    pomdp = reference.load("shm_pomdp", published_shm())
    root = reference.load("shm_root", published_shm(shortcut=False))
    assert (pomdp.row_mode, pomdp.clip) == ("step", 100.0)
    assert (root.row_mode, root.clip, root.shortcut) == ("first", None, None)
    assert not any(m.read_norm for m in (pomdp, root))


def test_state_there_and_back():
    memory = reference.load("shm_pomdp", published_shm())
    M = np.random.default_rng(1).normal(size=(3, 4, 4))
    for arrays in ({"M": M}, {"state0.M": M}):
        state = reference.state(memory, arrays, generator=torch.Generator().manual_seed(1))
        np.testing.assert_array_equal(reference.arrays(memory, state)["M"], M)
    again = reference.state(memory, {"M": torch.tensor(M)}, generator=torch.Generator().manual_seed(1))
    assert torch.equal(state.clock, again.clock)
    lstm = reference.load("lstm", {n: p.detach() for n, p in torch.nn.LSTM(3, 4).named_parameters()})
    state = reference.state(lstm, {"h": np.ones((2, 4)), "c": np.zeros((2, 4))})
    assert state.h.dtype == torch.float32   # the memory's
    assert set(reference.arrays(lstm, state)) == {"h", "c"}


def test_gradients_have_the_published_names():
    weights = published_shm()
    memory = reference.load("shm_popgym", weights)
    with pytest.raises(ValueError, match=r"memory has no gradients; call backward\(\)"):
        reference.gradients(memory)
    memory(torch.randn(2, 5, 3).double())[0].sum().backward()
    gradients = reference.gradients(memory)
    assert {n: g.shape for n, g in gradients.items()} == {n: w.shape for n, w in weights.items()}
    np.testing.assert_array_equal(gradients["theta_matrix"], memory.calibration.theta.grad.numpy())


def test_load_names_what_is_wrong():
    weights = published_shm()
    with pytest.raises(ValueError, match="unknown published model 'shm'; choose from shm_pomdp, shm_popgym, shm_root"):
        reference.load("shm", weights)
    missing = {n: w for n, w in weights.items() if n not in ("eta.weight", "out.bias")}
    missing["gate.weight"] = weights["eta.weight"]
    with pytest.raises(ValueError, match=r"shm_popgym; missing: eta.weight, out.bias; not known: gate.weight"):
        reference.load("shm_popgym", missing)
    with pytest.raises(ValueError, match=r"do not match shm_root; not known: shortcut.bias, shortcut.weight"):
        reference.load("shm_root", weights)
    with pytest.raises(ValueError, match=r"key.weight must have shape \[4, 3\], got \[4, 5\]"):
        reference.load("shm_popgym", weights | {"key.weight": np.zeros((4, 5))})
    with pytest.raises(ValueError, match=r"theta_matrix must have shape \[8, 6\], got \[8, 4\]"):
        reference.load("shm_popgym", weights, {"H": 6})
    with pytest.raises(ValueError, match="have shapes that no shm_popgym has"):
        reference.load("shm_popgym", weights | {"theta_matrix": np.zeros(4)})
    with pytest.raises(ValueError, match=r"weights\['out.bias'\] must have a floating dtype"):
        reference.load("shm_popgym", weights | {"out.bias": np.zeros(2, int)})
    memory = reference.load("shm_popgym", weights)
    with pytest.raises(ValueError, match="missing: M; not known: N"):
        reference.state(memory, {"N": np.zeros((2, 4, 4))})
    with pytest.raises(ValueError, match=r"arrays\['M'\] must have shape \[2, 4, 4\], got \[2, 4, 5\]"):
        reference.state(memory, {"M": np.zeros((2, 4, 5))})
    with pytest.raises(ValueError, match=r"memory NoMemory .* is none of the published models"):
        reference.arrays(hm.NoMemory(3, 2), None)


def test_hparams_that_a_model_does_not_have_are_refused():
    weights = dict(torch.nn.GRU(3, 4).state_dict())
    with pytest.raises(ValueError, match="hparams of gru has the unknown entry 'heads'; it takes H, O, L"):
        reference.load("gru", weights, {"heads": 2})
