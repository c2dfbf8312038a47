"""One suite over every memory, and proof that the suite notices broken ones."""

from __future__ import annotations

import copy
import re
from typing import NamedTuple

import pytest
import torch
from torch import nn

import hadamem as hm
from hadamem.testing import check_memory, check_spec
from hadamem.testing.conformance import resolve

SHM_VARIANTS = {
    "step": dict(row_mode="step", theta_init=1.0),
    "episode": dict(row_mode="episode", theta_init=1.0),
    "first": dict(row_mode="first", theta_init=1.0),
    "exp": dict(calibration="exp", row_mode="step", theta_init=1.0),
    "exp-bound": dict(calibration="exp:1.5", theta_init=1.0, clip=None),
    "drift": dict(calibration="drift", theta_init=1.0),
    "drift-step": dict(calibration="drift:2.5", row_mode="step"),
    "neural_theta": dict(calibration="neural_theta"),
    "neural_theta-clip": dict(calibration="neural_theta", theta_init=1.0, clip=100.0),   # M grows to the limit
    "fixed": dict(calibration="fixed"),
    "random": dict(calibration="random"),
    "none": dict(calibration="none"),
    "clip": dict(clip=0.3, theta_init=1.0, row_mode="step"),
    "tall": dict(memory_size=9, key_size=4, theta_init=1.0),
    "wide": dict(memory_size=3, key_size=10, theta_init=1.0),
    "bare": dict(input_norm=False, normalize_keys=False, shortcut=False, read_norm=False, calibration="fixed"),
    "soft-keys": dict(soft_keys=0.2, theta_init=1.0),
    "rotary": dict(rotary=True, theta_init=1.0),
    "rotary-odd": dict(rotary=True, memory_size=7, key_size=5, row_mode="step", theta_init=1.0),
    "rotary-fixed": dict(rotary=True, rotary_gain=0.5, calibration="fixed"),
    "rotary-keys": dict(rotary=True, rotary_keys=True, rotary_gain=0.5, row_mode="step", theta_init=1.0),
    "rotary-soft-keys": dict(rotary=True, rotary_keys=True, soft_keys=0.05),
    "rotary-bare": dict(rotary=True, rotary_keys=True, normalize_keys=False, rotary_gain=0.5, read_norm=False, theta_init=1.0),
    "scan": dict(backend="scan", theta_init=1.0),
    "reference": dict(backend="reference", theta_init=1.0),
}


@pytest.mark.parametrize("name", hm.list_memories())
def test_every_memory_keeps_the_contract(name):
    check_memory(hm.make_memory(name, input_size=7, output_size=6, memory_size=10), expect_memory=name != "none")


@pytest.mark.parametrize("variant", [pytest.param(name, marks=pytest.mark.slow) if name.startswith(("exp", "drift")) else name
                                     for name in SHM_VARIANTS])
def test_every_form_of_shm_keeps_the_contract(variant):
    check_memory(hm.SHM(7, 6, **{"memory_size": 8, **SHM_VARIANTS[variant]}))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["rotary", "rotary-odd", "rotary-keys"])
def test_rotary_shm_keeps_the_contract_on_the_gpu(variant):
    check_memory(hm.SHM(7, 6, **{"memory_size": 24, **SHM_VARIANTS[variant]}).cuda())


@pytest.mark.parametrize("name", ["shm-paper", "gru"])
def test_float64_modules_keep_the_contract(name):
    check_memory(hm.make_memory(name, 5, 4, memory_size=6).double())


@pytest.mark.gpu
@pytest.mark.parametrize("name", hm.list_memories())
def test_every_memory_keeps_the_contract_on_the_gpu(name):
    check_memory(hm.make_memory(name, input_size=7, output_size=6, memory_size=24).cuda(), expect_memory=name != "none")


# --- the suite itself


class SumState(NamedTuple):
    total: torch.Tensor


class Sum(hm.Memory):
    """Adds up its inputs: the smallest memory that keeps the contract, and the base of those that break it."""

    def __init__(self, input_size=5, output_size=4):
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.map = nn.Linear(input_size, output_size)

    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        device, dtype = self.state_options(device, dtype)
        return SumState(torch.zeros(batch_size, self.output_size, device=device, dtype=dtype))

    def clear(self, reset, total):
        return torch.where(reset[:, None], 0.0, total)

    def forward(self, x, state=None, reset=None):
        state = self.initial_state(x.shape[0]) if state is None else state
        total, ys = state.total, []
        for t, u in enumerate(self.map(x).unbind(1)):
            total = total if reset is None else self.clear(reset[:, t], total)
            total = 0.9 * total + u
            ys.append(torch.tanh(total))
        return torch.stack(ys, dim=1), SumState(total)


class Multiplies(Sum):
    def clear(self, reset, total):
        return total * (1 - reset[:, None].to(total.dtype))   # 0 * inf


class Leaks(Sum):
    def clear(self, reset, total):
        return torch.where(reset[:, None], 0.01 * total, total)


class IgnoresResets(Sum):
    def clear(self, reset, total):
        return total


class ClearsAllRows(Sum):
    def clear(self, reset, total):
        return total * 0 if reset.any() else total


class LateReset(Sum):
    """Clears after the step instead of before it."""

    def forward(self, x, state=None, reset=None):
        return super().forward(x, state, None if reset is None else torch.roll(reset, 1, dims=1))


class SeesTheFuture(Sum):
    def forward(self, x, state=None, reset=None):
        y, state = super().forward(x, state, reset)
        return y + x.mean(dim=1, keepdim=True)[..., :1], state


class MixesRows(Sum):
    def forward(self, x, state=None, reset=None):
        y, state = super().forward(x, state, reset)
        return y - y.mean(dim=0, keepdim=True), state


class KeepsItsState(Sum):
    def forward(self, x, state=None, reset=None):
        kept = getattr(self, "kept", None)
        y, self.kept = super().forward(x, state if kept is None or kept.total.shape[0] != x.shape[0] else kept, reset)
        return y, self.kept


class Forgets(Sum):
    def forward(self, x, state=None, reset=None):
        return super().forward(x, state, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))


class WritesInPlace(Sum):
    def forward(self, x, state=None, reset=None):
        y, after = super().forward(x, state, reset)
        if state is not None:
            state.total.data.copy_(after.total.detach())
        return y, after


class DetachesState(Sum):
    """Truncates gradients at every call."""

    def forward(self, x, state=None, reset=None):
        y, after = super().forward(x, state, reset)
        return y, SumState(after.total.detach())


class DetachesInside(Sum):
    """Remembers, but no gradient reaches earlier inputs (what it reads them by still learns)."""

    def __init__(self, input_size=5, output_size=4):
        super().__init__(input_size, output_size)
        self.read = nn.Linear(output_size, output_size)

    def forward(self, x, state=None, reset=None):
        y, after = super().forward(x.detach(), state, reset)
        return self.read(y.detach()), after


class DetachesWhatItIsHanded(Sum):
    def forward(self, x, state=None, reset=None):
        return super().forward(x, None if state is None else SumState(state.total.detach()), reset)


class WritesInPlaceWithoutResets(Sum):
    """As `h = h.data.mul_(0.9) + u` does: torch.where makes a copy at resets, so only calls without them change the state."""

    def forward(self, x, state=None, reset=None):
        y, after = super().forward(x, state, reset)
        if state is not None and reset is None:
            state.total.data.mul_(0.9)
        return y, after


class ReturnsTheOldState(Sum):
    def forward(self, x, state=None, reset=None):
        state = self.initial_state(x.shape[0]) if state is None else state
        return super().forward(x, state, reset)[0], state


class Explodes(Sum):
    def forward(self, x, state=None, reset=None):
        y, after = super().forward(x, state, reset)
        return y * 4.0 ** torch.arange(x.shape[1], device=x.device)[:, None], after


class TimeFirst(Sum):
    def initial_state(self, *args, **kwargs):
        return SumState(super().initial_state(*args, **kwargs).total.T)

    def forward(self, x, state=None, reset=None):
        y, after = super().forward(x, None if state is None else SumState(state.total.T), reset)
        return y, SumState(after.total.T)


class DrawsNoise(Sum):
    def forward(self, x, state=None, reset=None):
        y, after = super().forward(x, state, reset)
        return y + 0.1 * torch.randn_like(y), after


class OnlySinglePrecision(Sum):
    def forward(self, x, state=None, reset=None):
        return super().forward(x.float(), state, reset)


class NarrowComplexState(Sum):
    """A state of complex64 whatever the module's dtype."""

    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        total = super().initial_state(batch_size, device, dtype).total
        return SumState(torch.complex(total, total))

    def forward(self, x, state=None, reset=None):
        state = self.initial_state(x.shape[0]) if state is None else state
        y, after = super().forward(x, SumState(state.total.real), reset)
        return y, SumState(torch.complex(after.total, torch.zeros_like(after.total)).to(torch.complex64))


class IgnoresTheGenerator(Sum):
    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        total = super().initial_state(batch_size, device, dtype).total
        return SumState(torch.randn_like(total) if total.device.type != "meta" else total)


class WrongStep(Sum):
    def step(self, x, state, reset=None):
        y, state = super().step(x, state)
        return y, state


class BrokenCopy(Sum):
    def __deepcopy__(self, memo):
        return type(self)(self.input_size, self.output_size)


class StoresATensor(Sum):
    def forward(self, x, state=None, reset=None):
        y, state = super().forward(x, state, reset)
        self.last = (y,)
        return y, state


class Raises(Sum):
    def forward(self, x, state=None, reset=None):
        raise TypeError(f"cannot add None to a tensor of shape {list(x.shape)}")


class TakesNoGenerator(Sum):
    def initial_state(self, batch_size, device=None, dtype=None):
        return super().initial_state(batch_size, device, dtype)


BROKEN = {
    Multiplies: "a reset recovers from inf and nan in the state",
    Leaks: "a reset forgets the past",
    IgnoresResets: "a reset forgets the past",
    ClearsAllRows: "packed episodes == each alone",
    LateReset: "packed episodes == each alone",
    SeesTheFuture: "causality",
    MixesRows: "batch rows are independent",
    KeepsItsState: "same call, same result",
    Forgets: "it remembers",
    ReturnsTheOldState: "it remembers",
    DetachesInside: "it remembers",
    DetachesWhatItIsHanded: "it remembers",
    WritesInPlace: "arguments are not changed",
    WritesInPlaceWithoutResets: "arguments are not changed",
    DetachesState: "gradients of a split == of the whole",
    Explodes: "gradients are finite over 1024 steps",
    TimeFirst: "interface",
    DrawsNoise: "same call, same result",
    OnlySinglePrecision: "works in float64",
    NarrowComplexState: "works in float64",
    IgnoresTheGenerator: "initial state",
    WrongStep: "step == forward of one step",
    BrokenCopy: "deepcopy",
}


def test_smallest_memory_passes():
    report = check_memory(Sum())
    assert report.ok
    assert len(report.checks) >= 20


@pytest.mark.parametrize("kind", BROKEN, ids=lambda k: k.__name__)
def test_suite_notices(kind):
    with pytest.raises(AssertionError, match=f"{kind.__name__} breaks") as caught:
        check_memory(kind())
    assert f"- {BROKEN[kind]}: " in str(caught.value)


@pytest.mark.parametrize("kind", [SeesTheFuture, MixesRows, ClearsAllRows, Forgets, ReturnsTheOldState, DetachesInside,
                                  WritesInPlace, WritesInPlaceWithoutResets], ids=lambda k: k.__name__)
def test_the_first_error_is_the_cause(kind):
    first = check_memory(kind(), raise_on_failure=False, long_length=16).failures[0].name
    assert first == {ClearsAllRows: "batch rows are independent"}.get(kind, BROKEN[kind])


def test_a_stored_tensor_is_named():
    with pytest.raises(AssertionError, match=r"the module keeps a tensor that forward\(\) made, last: return it as a part of the state"):
        check_memory(StoresATensor(), long_length=16)


def test_every_check_of_resets_notices_by_itself_that_they_are_ignored():
    report = check_memory(IgnoresResets(), raise_on_failure=False, long_length=16)
    assert {check.name for check in report.failures} == {
        "packed episodes == each alone", "a reset forgets the past", "a reset recovers from inf and nan in the state",
        "non-finite inputs stay in their row and end at a reset", "no gradient crosses a reset"}


def test_control_must_not_remember():
    with pytest.raises(AssertionError, match=r"it does not remember: y after the first step, .* expected .* got"):
        check_memory(Sum(), expect_memory=False)
    with pytest.raises(AssertionError, match="it remembers: two sequences that differ in their first input"):
        check_memory(hm.make_memory("none", 5, 4))


def test_report_instead_of_exception():
    report = check_memory(Leaks(), raise_on_failure=False)
    assert not report
    assert "FAIL  a reset forgets the past" in str(report)
    assert f"{len(report.checks) - len(report.failures)} of {len(report.checks)} properties hold" in str(report)
    assert "causality" not in str(report)
    assert "ok    causality" in str(check_memory(Sum(), long_length=16))


@pytest.mark.parametrize(("kind", "advice"), [
    (Raises, r"at .*test_memories.py:\d+ in forward: raise TypeError\(f\"cannot add"),
    (TakesNoGenerator, r"to do: write it as def initial_state\(self, batch_size, device=None, dtype=None, generator=None\)"),
])
def test_an_error_of_many_checks_is_told_once(kind, advice):
    report = check_memory(kind(), raise_on_failure=False, long_length=16)
    assert len(report.failures) > 15
    with pytest.raises(AssertionError, match=advice) as caught:
        check_memory(kind(), long_length=16)
    assert isinstance(caught.value.__cause__, TypeError)      # with its traceback
    for text in (str(report), str(caught.value)):
        assert text.count("raised TypeError") == 1
        assert re.search(advice, text)
        assert all(check.name in " ".join(text.split()) for check in report.failures)


def test_module_and_generators_are_left_alone():
    memory = hm.SHM.paper(5, 4, memory_size=6)
    memory.train()
    memory.norm.eval()
    before, rng = copy.deepcopy(memory.state_dict()), torch.get_rng_state()
    check_memory(memory)
    assert torch.equal(torch.get_rng_state(), rng)
    assert memory.training
    assert not memory.norm.training
    assert all(torch.equal(v, before[k]) for k, v in memory.state_dict().items())
    assert all(p.grad is None for p in memory.parameters())


def test_same_verdict_every_time():
    memory = MixesRows()
    first, second = (str(check_memory(memory, raise_on_failure=False)) for _ in range(2))
    assert first == second


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, got type; build it first"):
        check_memory(Sum)
    with pytest.raises(ValueError, match=r"module.input_size must be a positive int, got None; .* pass input_size="):
        check_memory(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="batch_size must be at least 2"):
        check_memory(Sum(), batch_size=1)


def test_module_without_the_interface_fails_clearly():
    with pytest.raises(AssertionError, match=r"Linear breaks .* properties"):
        check_memory(nn.Linear(2, 2), input_size=2)


# --- by name


def test_spec_of_a_class_a_function_and_a_name():
    here = __name__
    assert check_spec(f"{here}:Sum").ok
    assert check_spec("hadamem:SHM.paper", options=dict(memory_size=6)).ok
    assert check_spec("none", options=dict(memory_size=6)).ok
    report = check_spec(f"{here}:Leaks")
    assert not report.ok
    assert report.subject == f"{here}:Leaks"
    assert isinstance(resolve(f"{here}:READY"), Sum)


READY = Sum()
NUMBER = 3


def not_a_module(input_size, output_size):
    return "memory"


@pytest.mark.parametrize(("spec", "message"), [
    ("shm.paper", "must be written package.module:Class, or be one of shm"),
    (":SHM", "must be written package.module:Class"),
    ("no_such_package.memory:Class", "cannot import module 'no_such_package.memory'"),
    ("hadamem:NoSuch", "module 'hadamem' has no 'NoSuch'"),
    (f"{__name__}:NUMBER", "must be a class, a function or a torch.nn.Module, got int"),
    (f"{__name__}:not_a_module", "must build a torch.nn.Module, got str"),
    ("torch.nn:Linear", "cannot be built with input_size, output_size"),
])
def test_bad_spec(spec, message):
    with pytest.raises(ValueError, match=message):
        resolve(spec)
