"""What agents ask of a memory besides the interface: a layer on top of it, and hints about resets. Neither changes a result."""

import pytest
import torch

import hadamem as hm
from hadamem import states
from hadamem.memory.shm import Folded

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


@pytest.mark.parametrize("name", [*NAMES, "shm-rotary", "shm-rotary-odd", "shm-rotary-keys", "shm-no-table"])
def test_steps_through_a_folded_layer(name):
    """What was multiplied out beforehand gives what the layer gives, for memories that multiply out and others."""
    torch.manual_seed(0)
    options = {"shm-rotary": {"rotary": True, "key_size": 6}, "shm-rotary-odd": {"rotary": True, "memory_size": 9},
               "shm-rotary-keys": {"rotary": True, "rotary_keys": True, "normalize_keys": False, "rotary_gain": 0.5},
               "shm-no-table": {"calibration": "none", "shortcut": False}}
    memory = hm.make_memory(name if name in NAMES else "shm", 6, 20, **{"memory_size": 8, **options.get(name, {})}).double()
    layer, state = torch.nn.Linear(20, 5).double(), memory.initial_state(3)
    assert isinstance(memory.fold(layer.weight, layer.bias), Folded) == name.startswith("shm")
    with torch.no_grad():
        folded, other = memory.fold(layer.weight, layer.bias), state
        for x, reset in zip(torch.randn(7, 3, 6).double(), torch.rand(7, 3) < 0.3, strict=True):
            got, state = memory.step_through(folded, x, state, reset)
            wanted, other = memory.step(x, other, reset)
            torch.testing.assert_close(got, layer(wanted))
            for a, b in zip(states.tensors(state), states.tensors(other), strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("method", ["step", "forward", "_project"])
def test_a_subclass_of_shm_with_a_method_of_its_own_is_not_folded(method):
    kind = type("Mine", (hm.SHM,), {method: lambda self, *args, **options: getattr(hm.SHM, method)(self, *args, **options)})
    layer = torch.nn.Linear(20, 5)
    assert not isinstance(kind(6, 20, memory_size=8).fold(layer.weight, layer.bias), Folded)


def test_a_replaced_layer_of_shm_is_not_folded():
    layer = torch.nn.Linear(20, 5)
    for name in ("out", "query"):
        memory = hm.SHM(6, 20, memory_size=8)
        getattr(memory, name).register_forward_hook(lambda *_: None)
        assert not isinstance(memory.fold(layer.weight, layer.bias), Folded)


def test_a_hooked_layer_is_called():
    memory, layer = hm.SHM(6, 20, memory_size=8), torch.nn.Linear(20, 5)
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    memory.through(layer, torch.randn(2, 3, 6))
    assert calls


def test_a_subclass_of_shm_with_its_own_forward_is_called():
    class Doubled(hm.SHM):
        def forward(self, x, state=None, reset=None):
            y, state = super().forward(x, state, reset)
            return 2 * y, state

    memory, layer, x = Doubled(6, 20, memory_size=8), torch.nn.Linear(20, 5), torch.randn(2, 3, 6)
    torch.testing.assert_close(memory.through(layer, x, starts_fresh=True)[0], layer(memory(x)[0]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", [True, False])
def test_a_hint_about_resets_changes_nothing(name, first):
    torch.manual_seed(0)
    memory = hm.make_memory(name, 6, 7, memory_size=8).double()
    x, reset = torch.randn(4, 9, 6).double(), torch.zeros(4, 9, dtype=torch.bool)
    reset[:, 0] = torch.tensor([first, False, first, True])
    state = memory(x, memory.initial_state(4))[1]
    wanted, last = memory(x, state, reset)
    got, state = memory(x, state, reset, **memory.hints(True, False))
    torch.testing.assert_close(got, wanted)
    for a, b in zip(states.tensors(state), states.tensors(last), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_a_hint_of_fresh_sequences_changes_nothing(name):
    torch.manual_seed(0)
    memory = hm.make_memory(name, 6, 7, memory_size=8).double()
    x, reset = torch.randn(4, 9, 6).double(), torch.zeros(4, 9, dtype=torch.bool)
    reset[:, 0] = True
    state = memory(x, memory.initial_state(4))[1]
    wanted = memory(x, state, reset)[0]
    torch.testing.assert_close(memory(x, state, reset, **memory.hints(True, True))[0], wanted)
    none = torch.zeros(4, 1, dtype=torch.bool)
    step, _ = memory(x[:, :1], state, none, **memory.hints(True, True))          # a single step may still continue from a state
    torch.testing.assert_close(step[:, 0], memory.step(x[:, 0], state, none[:, 0])[0])


@pytest.mark.parametrize("name", NAMES)
def test_through_passes_the_hints_on(name, monkeypatch):
    memory, layer, given = hm.make_memory(name, 6, 20, memory_size=8), torch.nn.Linear(20, 5), []
    place = "_forward" if isinstance(memory, hm.SHM) else "forward"
    plain = getattr(memory, place)
    monkeypatch.setattr(memory, place, lambda *args, **options: given.append((args[-2:], options)) or plain(*args, **options))
    reset = torch.arange(3).expand(2, 3) == 0
    memory.through(layer, torch.randn(2, 3, 6), None, reset, resets_only_at_start=True, starts_fresh=True)
    (last, options), = given
    assert last == (True, True) if place == "_forward" else options == dict.fromkeys(memory._hints, True)


HINTED = {"shm": 2, "shm-paper": 2, "shm-release": 2, "hebbian": 2, "linear_attention": 2, "fwp": 2, "mlstm": 2, "gpt2": 2,
          "gru": 1, "lstm": 1, "fast_weights": 1, "dnc": 1, "ffm": 0, "s6": 0, "none": 0}      # how many of the hints each can use


@pytest.mark.parametrize("name", NAMES)
def test_which_memories_take_hints(name):
    assert len(hm.make_memory(name, 6, 20, memory_size=8)._hints) == HINTED[name]


class Plain(hm.GRU):
    """A forward with the interface's three arguments, as other people write it."""

    def forward(self, x, state=None, reset=None):
        return super().forward(x, state, reset)


class Half(hm.GRU):
    def forward(self, x, state=None, reset=None, *, starts_fresh=False):
        self.seen = starts_fresh
        return super().forward(x, state, reset)


class Inherits(Half):
    pass


def test_a_forward_without_hints_works_and_ignores_them():
    torch.manual_seed(0)
    x, layer = torch.randn(2, 3, 6), torch.nn.Linear(8, 5)
    reset = torch.arange(3).expand(2, 3) == 0
    memory = Plain(6, None, 8)
    assert memory.hints(True, True) == {}
    got, _ = memory.through(layer, x, None, reset, resets_only_at_start=True, starts_fresh=True)
    torch.testing.assert_close(got, layer(memory(x, None, reset)[0]))
    for kind in (Half, Inherits):
        memory = kind(6, None, 8)
        memory.through(layer, x, None, reset, resets_only_at_start=True, starts_fresh=True)
        assert memory.seen is True


def test_hints_compile_in_one_graph():
    torch._dynamo.reset()
    memory, layer = hm.make_memory("hebbian", 6, 8, memory_size=8), torch.nn.Linear(8, 5)
    x, reset = torch.randn(2, 3, 6), torch.arange(3).expand(2, 3) == 0

    def call(x, reset):
        return memory.through(layer, x, None, reset, resets_only_at_start=True, starts_fresh=True)[0]

    torch.testing.assert_close(torch.compile(call, backend="eager", fullgraph=True)(x, reset), call(x, reset))
