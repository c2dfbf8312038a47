"""A user's own memories, by registered name and by package.module:Class."""

import pytest

import hadamem as hm
from hadamem.memory import MEMORIES


class Mine(hm.GRU):
    """A user's memory."""


class Rigid(hm.GRU):
    def __init__(self, input_size, output_size=None):
        super().__init__(input_size, output_size, 4)


class Stubborn(hm.GRU):
    def __init__(self, input_size, output_size=None, memory_size=4):
        super().__init__(input_size, 5, memory_size)


def not_a_memory(input_size, output_size, memory_size):
    return "memory"


READY = Mine(3, 2)
NUMBER = 3


@pytest.fixture(autouse=True)
def _restored():
    saved = dict(MEMORIES)
    yield
    MEMORIES.clear()
    MEMORIES.update(saved)


def test_registered_by_call_and_as_a_decorator():
    assert hm.register_memory("mine", Mine) is Mine
    assert type(hm.make_memory("mine", 3, 2, memory_size=4)) is Mine
    assert hm.list_memories()[-1] == "mine"

    @hm.register_memory("half")
    def half(input_size, output_size=None, memory_size=8):
        return Mine(input_size, output_size, memory_size // 2)

    assert hm.make_memory("half", 3, memory_size=8).output_size == 4
    with pytest.raises(ValueError, match="unknown memory 'mien'; did you mean 'mine'"):
        hm.make_memory("mien", 3)


def test_a_taken_name_is_refused():
    with pytest.raises(ValueError, match=r"already a memory 'gru' \(hadamem.memory.rnn:GRU\).*overwrite=True"):
        hm.register_memory("gru", Mine)
    assert MEMORIES["gru"] is hm.GRU
    hm.register_memory("gru", Mine, overwrite=True)
    assert type(hm.make_memory("gru", 3, 2)) is Mine


@pytest.mark.parametrize(("name", "factory", "kind", "words"), [
    (Mine, None, TypeError, r'@hm.register_memory\("my-memory"\)'),
    ("a:b", Mine, ValueError, "letters, digits"),
    ("", Mine, ValueError, "letters, digits"),
    ("mine", 3, TypeError, "factory must be a hm.Memory class or a function"),
    ("mine", READY, TypeError, "ready-made Mine; pass its class"),
])
def test_what_cannot_be_registered(name, factory, kind, words):
    with pytest.raises(kind, match=words):
        hm.register_memory(name, factory)


def test_by_module_and_class():
    memory = hm.make_memory(f"{__name__}:Mine", 3, 2, memory_size=4)
    assert type(memory) is Mine
    assert memory.state_size == 4
    assert hm.make_memory("hadamem:SHM.paper", 3, 2, memory_size=4).row_mode == "step"


@pytest.mark.parametrize(("spec", "words"), [
    (f"{__name__}:Mien", "did you mean 'Mine'"),
    ("no_such_package.memory:Class", "cannot import module 'no_such_package.memory'"),
    ("..:Class", "cannot import module"),
    ("hadamem:", "must be written package.module:Class"),
    (f"{__name__}:READY", "is a ready-made Mine; name its class"),
    (f"{__name__}:NUMBER", "must be a class, a function"),
    (f"{__name__}:Rigid", "'memory_size'; let it take memory_size, or set network.memory_size to none"),
    (f"{__name__}:Stubborn", "asked for output_size=2 and has 5; set self.output_size"),
    ("torch.nn:LayerNorm", "must be a subclass of hm.Memory, got the class LayerNorm"),
    (f"{__name__}:not_a_memory", "must build a hm.Memory, got str"),
])
def test_what_cannot_be_built(spec, words):
    with pytest.raises(ValueError, match=words):
        hm.make_memory(spec, 3, 2, memory_size=4)


def test_an_option_that_does_not_exist_names_those_that_do():
    with pytest.raises(ValueError, match=r"the option 'memsize'; did you mean 'memory_size'\? it takes memory_size, forget_bias"):
        hm.make_memory("mlstm", 6, 4, memsize=3)


@pytest.mark.parametrize(("name", "option"), [("shm", "read_norm"), ("shm", "shortcut")])
def test_flags_take_true_or_false(name, option):
    with pytest.raises(TypeError, match=f"{option} must be True or False, got 'no'"):
        hm.make_memory(name, 6, 4, **{option: "no"})
