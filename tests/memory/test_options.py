"""All options of a memory as plain values: they build the same memory, today and after a default has changed."""

import inspect
import json

import pytest
import torch

import hadamem as hm
from hadamem import states
from hadamem.memory import MEMORIES, find_memory, resolve_options

CASES = [(name, {}) for name in hm.list_memories()] + [
    ("shm", {"memory_size": 6, "calibration": "neural_theta"}), ("shm", {"calibration": "none"}),
    ("shm", {"calibration": "exp:1.5"}), ("shm", {"calibration": "drift", "row_mode": "step"}), ("shm", {"clip": None, "key_size": 3}),
    ("shm-paper", {"row_mode": "episode"}), ("shm-release", {"clip": "auto"}), ("gpt2", {"memory_size": 6}),
    ("fwp", {"variant": "additive"}), ("shm", {"rotary": True}), ("shm", {"rotary": True, "rotary_keys": True}),
    ("shm", {"soft_keys": 0.1}), ("shm", {"tied_start": True}),
    ("hadamem:SHM.paper", {}), ("hadamem:GRU", {"memory_size": 3}),
]


def results(name, options):
    """Weights, outputs and state of a memory built from a seed."""
    torch.manual_seed(0)
    memory = hm.make_memory(name, 5, 4, **options)
    y, state = memory(torch.randn(2, 6, 5), memory.initial_state(2, generator=torch.Generator().manual_seed(1)))
    return [*memory.state_dict().values(), y, *states.tensors(state)]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_resolved_options_build_the_same_memory(name, options):
    found = resolve_options(name, options)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["memory_size"] >= 1
    assert resolve_options(name, found) == found
    for a, b in zip(results(name, options), results(name, found), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", hm.list_memories())
def test_every_option_is_there_and_no_choice_is_left_open(name):
    factory = find_memory(name)
    taken = set(inspect.signature(getattr(factory, "__self__", factory)).parameters) - {"input_size", "output_size"}
    found = resolve_options(name)
    assert set(found) == taken
    open_choices = {key for key, value in found.items() if value in ("auto", None)} - {"backend"}
    none = {"shm": {"rotary_gain"}, **{form: {"clip", "rotary_gain"} for form in ("shm-paper", "shm-release")}}  # None: no gain, no limit
    assert open_choices == none.get(name, set())
    assert hm.make_memory(name, 5).memory_size == found["memory_size"]


def test_what_shm_chooses():
    assert resolve_options("shm")["clip"] == 1e8
    assert resolve_options("shm", {"calibration": "random"})["clip"] is None
    assert resolve_options("shm", {"calibration": "exp:1.5"}).items() >= {"calibration": "exp:1.5", "clip": 1e8}.items()
    assert resolve_options("shm", {"calibration": hm.memory.calibration.NeuralTheta})["clip"] == 1e8
    assert resolve_options("shm", {"memory_size": 6})["key_size"] == 6
    form = {"row_mode": "step", "theta_init": 1.0, "read_norm": False, "clip": None}
    assert resolve_options("shm-paper").items() >= form.items()
    assert resolve_options("shm-release").items() >= {**form, "row_mode": "first"}.items()
    assert resolve_options("gpt2", {"memory_size": 6})["heads"] == 3


def test_natural_sizes():
    assert [resolve_options(name)["memory_size"] for name in ("shm", "gru", "lstm")] == [128, 256, 256]


class Own(hm.GRU):
    def __init__(self, input_size, output_size=None, memory_size=7, *, gain=0.5, shape=(1, 2), make=dict, names=("a",)):
        super().__init__(input_size, output_size, memory_size)


class OwnSHM(hm.SHM):
    def __init__(self, input_size, output_size=None, memory_size=9, **options):
        super().__init__(input_size, output_size, memory_size, **{"clip": 3.0, **options})


def build(input_size, output_size=None, **options):
    return hm.GRU(input_size, output_size, **options)


def test_other_peoples_classes_and_functions(monkeypatch):
    assert resolve_options(f"{__name__}:Own", {"gain": 2.0}) == {"memory_size": 7, "gain": 2.0}       # what JSON would change is left out
    assert resolve_options(f"{__name__}:OwnSHM") == {"memory_size": 9}                            # its clip is its own business
    assert hm.make_memory(f"{__name__}:OwnSHM", 3, **resolve_options(f"{__name__}:OwnSHM")).clip == 3.0
    assert resolve_options(f"{__name__}:build", {"memory_size": 3}) == {"memory_size": 3}
    assert resolve_options(f"{__name__}:build") == {}
    monkeypatch.setitem(MEMORIES, "own", Own)
    assert resolve_options("own")["memory_size"] == 7
    with pytest.raises(ValueError, match="unknown memory 'onw'; did you mean 'own'"):
        resolve_options("onw")
