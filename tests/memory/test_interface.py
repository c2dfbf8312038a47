"""The errors of every memory for wrong calls: they name the argument, its value and the fix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hadamem as hm

pytestmark = pytest.mark.parametrize("name", hm.list_memories())

ONES = torch.ones
BAD_CALL = {
    "x-list": (dict(x=[[1.0]]), TypeError, "x must be a torch.Tensor, got list"),
    "x-sparse": (dict(x=ONES(2, 5, 3).to_sparse()), TypeError, "x must be a dense torch.Tensor"),
    "x-int": (dict(x=ONES(2, 5, 3, dtype=torch.int64)), TypeError, r"x must have a floating dtype, .* x.float\(\)"),
    "x-width": (dict(x=ONES(2, 5, 4)), ValueError, r"x must have shape \[B, T, input_size=3\], got \[2, 5, 4\]"),
    "x-flat": (dict(x=ONES(2, 3)), ValueError, r"x must have shape .* use step\(\) for a single step"),
    "x-empty": (dict(x=ONES(2, 0, 3)), ValueError, "x must hold at least one row and one step"),
    "x-device": (dict(x=ONES(2, 5, 3, device="meta")), ValueError, "x is on meta but the module is on cpu"),
    "state-type": (dict(state=3), TypeError, "state must be what initial_state"),
    "state-other": (dict(state="another memory's"), TypeError, "state must be what initial_state"),
    "reset-float": (dict(reset=ONES(2, 5)), TypeError, "reset must be a bool tensor"),
    "reset-list": (dict(reset=[True]), TypeError, "reset must be a bool torch.Tensor"),
    "reset-shape": (dict(reset=ONES(2, dtype=torch.bool)), ValueError, r"reset must have shape \[B, T\] = \[2, 5\]"),
    "reset-device": (dict(reset=torch.ones(2, 5, dtype=torch.bool, device="meta")), ValueError, "reset is on meta"),
}


def make(name):
    return hm.make_memory(name, 3, 2, memory_size=4)


@pytest.mark.parametrize("case", BAD_CALL)
def test_forward_names_the_bad_argument(name, case):
    changed, kind, message = BAD_CALL[case]
    if isinstance(changed.get("state"), str):
        other = "gru" if name != "gru" else "lstm"
        changed = dict(state=make(other).initial_state(2))
    with pytest.raises(kind, match=message):
        make(name)(**{"x": ONES(2, 5, 3), **changed})


def test_state_of_another_batch(name):
    memory = make(name)
    with pytest.raises(ValueError, match=r"state\.\w+ must have batch size 2 like x, got shape \[7"):
        memory(ONES(2, 5, 3), memory.initial_state(7))


def test_state_of_another_size(name):
    if name == "none":      # whose state has no size
        assert make(name).state_size == 0
        return
    other = hm.make_memory(name, 3, 2, memory_size=9).initial_state(2)
    with pytest.raises(ValueError, match=r"state\.\w+ must have shape \[B, \d.*\], got \[2, \d"):
        make(name)(ONES(2, 5, 3), other)


def test_state_on_another_device(name):
    memory = make(name)
    with pytest.raises(ValueError, match=r"state\.\w+ is on meta but x is on cpu"):
        memory(ONES(2, 5, 3), memory.initial_state(2, device="meta"))


def test_state_of_integers(name):
    """A raw error of PyTorch's would not tell which argument it is about."""
    memory = make(name)
    state = memory.initial_state(2)
    state = type(state)(*(torch.zeros_like(s, dtype=torch.int64) for s in state))
    if name != "none":
        with pytest.raises(TypeError, match=r"state\.\w+ must have a (floating|complex) dtype, got torch.int64"):
            memory(ONES(2, 5, 3), state)


@pytest.mark.parametrize(("module", "narrow", "wide"), [
    (torch.float32, torch.bfloat16, torch.float32), (torch.float64, torch.float32, torch.float64),
    (torch.float32, torch.float64, torch.float64)], ids=str)
def test_states_are_as_wide_as_the_widest_and_no_narrower_than_float32(name, module, narrow, wide):
    """Of the state handed in, the module and float32: steps are computed and returned in that, whatever memory it is."""
    memory = hm.make_memory(name, 3, 2, memory_size=4).to(module)
    x, kinds = torch.randn(2, 5, 3, dtype=module), {True: torch.promote_types(torch.complex64, wide), False: wide}
    with torch.no_grad():
        state = memory(x)[1]
        given = type(state)(*(s.to(narrow) if s.is_floating_point() else s for s in state))
        if name == "ffm":
            given = type(state)(*(s.to(torch.promote_types(narrow, torch.complex64)) for s in state))
        same = type(state)(*(s.to(kinds[s.is_complex()]) if s.is_floating_point() or s.is_complex() else s for s in given))
        for T in (1, 5):
            y, after = memory(x[:, :T], given)
            want, want_after = memory(x[:, :T], same)
            for s in after:
                assert s.dtype in (torch.int64, kinds[s.is_complex()])
            torch.testing.assert_close((y, *after), (want, *want_after))


def test_step_names_the_bad_argument(name):
    memory = make(name)
    state = memory.initial_state(2)
    with pytest.raises(ValueError, match=r"x must have shape \[B, input_size\] in step\(\), got \[2, 5, 3\]"):
        memory.step(ONES(2, 5, 3), state)
    with pytest.raises(TypeError, match=r"x must be a torch.Tensor, got list"):
        memory.step([1.0], state)
    with pytest.raises(TypeError, match=r"reset must be a bool torch.Tensor"):
        memory.step(ONES(2, 3), state, [True, False])
    with pytest.raises(TypeError, match="reset must be a bool tensor"):
        memory.step(ONES(2, 3), state, ONES(2))
    with pytest.raises(ValueError, match=r"reset must have shape \[B\] = \[2\] in step\(\)"):
        memory.step(ONES(2, 3), state, torch.ones(2, 1, dtype=torch.bool))


@pytest.mark.parametrize(("sizes", "kind", "message"), [
    (dict(input_size=0), ValueError, "input_size must be positive, got 0"),
    (dict(input_size=3.0), TypeError, "input_size must be a positive int, got 3.0"),
    (dict(output_size=-1), ValueError, "output_size must be positive, got -1"),
    (dict(memory_size=0), ValueError, "memory_size must be positive, got 0"),
    (dict(memory_size=True), TypeError, "memory_size must be a positive int, got True"),
    (dict(memory_size=10**12), ValueError, "memory_size must be at most 16777216, got 1000000000000"),
    (dict(input_size=10**5000), ValueError, "input_size must be at most 16777216, got a number of 16610 bits"),
    (dict(input_size=np.ones(3)), TypeError, "input_size must be a positive int, got array"),
])
def test_sizes_must_fit(name, sizes, kind, message):
    with pytest.raises(kind, match=message):
        hm.make_memory(name, **{"input_size": 3, "output_size": 2, **sizes})


def test_sizes_of_numpy(name):
    memory = hm.make_memory(name, np.int64(3), np.int32(2), memory_size=np.uint8(4))
    assert memory(torch.ones(2, 5, 3))[0].shape == (2, 5, 2)


def test_an_unknown_option_is_named(name):
    with pytest.raises(ValueError, match=f"'{name}' cannot be built with the option 'nonsense'; it takes "):
        hm.make_memory(name, 3, 2, nonsense=1)


def test_a_state_in_eight_bits(name):
    memory = make(name)
    state = memory.initial_state(2)
    narrow = type(state)(*(s.to(torch.float8_e5m2) if s.is_floating_point() else s for s in state))
    if any(s.dtype == torch.float8_e5m2 for s in narrow):
        with pytest.raises(TypeError, match=r"state\.\w+ must have a dtype of 16 bits or more, got torch.float8_e5m2"):
            memory(ONES(2, 5, 3), narrow)
