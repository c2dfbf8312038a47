"""SHM's acting step in one fused call: the same numbers as forward(), taken only where it can stand for it."""

from __future__ import annotations

import copy
import gc
import threading
import warnings

import pytest
import torch
from torch import nn

import hadamem as hm
from hadamem.kernels import _backends, _recycle
from hadamem.memory import _acting
from hadamem.memory.calibration import Theta

pytestmark = pytest.mark.skipif("cpu" not in hm.kernels.backends(), reason="numba is not installed")
act_cpu = pytest.importorskip("hadamem.kernels.shm.act_cpu")

BARE = dict.fromkeys(("input_norm", "normalize_keys", "shortcut", "read_norm"), False)


def drifting(memory: hm.SHM) -> hm.SHM:
    nn.init.normal_(memory.calibration.drift)
    return memory


FORMS = {
    "default": lambda D, O, H: hm.SHM(D, O, H, theta_init=2.0),
    "zero theta": hm.SHM,
    "paper": hm.SHM.paper,
    "release": hm.SHM.release,
    "episode": lambda D, O, H: hm.SHM(D, O, H, row_mode="episode", theta_init=1.0),
    "one row": lambda D, O, H: hm.SHM.paper(D, O, H, theta_rows=1),
    "no shortcut": lambda D, O, H: hm.SHM(D, O, H, shortcut=False),
    "no norms": lambda D, O, H: hm.SHM(D, O, H, input_norm=False, read_norm=False),
    "plain keys": lambda D, O, H: hm.SHM(D, O, H, normalize_keys=False),
    "bare": lambda D, O, H: hm.SHM(D, O, H, theta_init=1.0, **BARE),
    "wide": lambda D, O, H: hm.SHM(D, O, H, key_size=2 * H + 3, theta_init=1.0),
    "tall": lambda D, O, H: hm.SHM(D, O, H, key_size=H // 2, theta_init=1.0),
    "clip": lambda D, O, H: hm.SHM(D, O, H, clip=0.5, theta_init=1.0),
    "exp": lambda D, O, H: hm.SHM(D, O, H, calibration="exp:1.5", theta_init=2.0, row_mode="step"),
    "drift": lambda D, O, H: drifting(hm.SHM(D, O, H, calibration="drift", theta_init=2.0)),
    "rotary": lambda D, O, H: hm.SHM(D, O, H, theta_init=2.0, rotary=True),
    "rotary gain": lambda D, O, H: hm.SHM(D, O, H, theta_init=2.0, rotary=True, rotary_gain=0.3),
    "rotary gain, no norm": lambda D, O, H: hm.SHM(D, O, H, read_norm=False, rotary=True, rotary_gain=0.3),
    "rotary keys": lambda D, O, H: hm.SHM(D, O, H, theta_init=2.0, rotary=True, rotary_keys=True, rotary_gain=0.3),
    "rotary keys, wide": lambda D, O, H: hm.SHM(D, O, H, key_size=2 * H + 3, rotary=True, rotary_keys=True),
    "rotary keys, plain": lambda D, O, H: hm.SHM(D, O, H, normalize_keys=False, read_norm=False, rotary=True, rotary_keys=True),
    "rotary step": lambda D, O, H: hm.SHM.paper(D, O, H, key_size=H + 1, rotary=True),
    "rotary drift": lambda D, O, H: drifting(hm.SHM(D, O, H, calibration="drift", theta_init=2.0, rotary=True)),
    "soft keys": lambda D, O, H: hm.SHM(D, O, H, soft_keys=0.2, theta_init=1.0),
    "rotary soft keys": lambda D, O, H: hm.SHM(D, O, H, soft_keys=0.05, rotary=True, rotary_keys=True),
    "steep": lambda D, O, H: hm.SHM(D, O, H, theta_init=300.0),
}


@pytest.fixture
def calls(monkeypatch):
    """How often the fused call was taken."""
    counted = []

    def act(*args, **options):
        counted.append(1)
        return original(*args, **options)

    original = act_cpu.act
    monkeypatch.setattr(act_cpu, "act", act)
    return counted


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def problem(memory: hm.SHM, B: int, resets: bool = True):
    for layer in memory.modules():   # a norm and biases that do something
        if isinstance(layer, nn.LayerNorm) and layer.weight is not None:
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    state = memory.initial_state(B)
    return torch.randn(B, memory.input_size), state._replace(M=torch.randn_like(state.M)), torch.rand(B) < 0.4 if resets else None


def forward(memory: hm.SHM, x, state, reset):
    y, state = memory(x[:, None], state, None if reset is None else reset[:, None])
    return y[:, 0], state


def check_step(memory: hm.SHM, x, state, reset):
    given = [t.clone() for t in (x, *state)]
    y, after = memory.step(x, state, reset)
    want, want_after = forward(memory, x, state, reset)
    torch.testing.assert_close(y, want, rtol=2e-5, atol=2e-5)
    slack = max(1.0, float(memory.calibration.theta.abs().max())) if isinstance(memory.calibration, Theta) else 1.0
    torch.testing.assert_close(after.M, want_after.M, rtol=1e-5, atol=2e-6 * slack)   # theta magnifies the rounding of W_c x
    assert torch.equal(after.clock, want_after.clock)
    assert all(torch.equal(a, b) for a, b in zip(given, (x, *state), strict=True))   # nothing was changed
    assert type(after) is type(state)
    return after


@pytest.mark.parametrize(("B", "D", "O", "H"), [(1, 3, 2, 5), (3, 7, 9, 24), (65, 20, 33, 16), (64, 64, 64, 128), (33, 5, 4, 72)])
@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_step_is_forward(form, B, D, O, H, calls):
    memory = FORMS[form](D, O, H)
    x, state, reset = problem(memory, B)
    after = check_step(memory, x, state, reset)
    check_step(memory, torch.randn_like(x), after, None)
    check_step(memory, torch.randn_like(x), memory.initial_state(B), torch.ones(B, dtype=torch.bool))
    assert len(calls) == 3


@pytest.mark.parametrize("row_mode", ["step", "episode"])
@torch.no_grad()
def test_many_steps_follow_the_clock(row_mode, calls):
    memory = hm.SHM.paper(4, 3, 6, row_mode=row_mode, theta_rows=7)
    x, reset = torch.randn(5, 40, 4), torch.rand(5, 40) < 0.2
    first = state = memory.initial_state(5)
    y = []
    for t in range(40):
        step, state = memory.step(x[:, t], state, reset[:, t])
        y.append(step)
    want, last = memory(x, first, reset)
    torch.testing.assert_close(torch.stack(y, 1), want, rtol=1e-4, atol=1e-5)
    assert torch.equal(state.clock, last.clock)
    assert len(calls) == 40


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("H", [5, 32])
@torch.no_grad()
def test_bad_numbers_stay_in_their_row_and_a_reset_drops_them(bad, H, calls):
    memory = hm.SHM(6, 4, H, clip=None)
    x, state, _ = problem(memory, 5)
    clean, _ = memory.step(x, state)
    state.M[1] = bad
    state.M[2] = bad
    x[3, 0] = bad
    reset = torch.tensor([False, True, False, False, False])
    y, after = memory.step(x, state, reset)
    assert y.isfinite().all(1).tolist() == [True, True, False, False, True]
    assert after.M[1].isfinite().all()
    assert torch.equal(y[[0, 4]], clean[[0, 4]])
    fresh, _ = memory.step(x, memory.initial_state(5))
    assert torch.equal(y[1], fresh[1])
    want, want_after = forward(memory, x, state, reset)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(after.M, want_after.M, equal_nan=True)


@pytest.mark.parametrize("form", ["default", "paper"])
@torch.no_grad()
def test_threads_and_batch_do_not_matter(form, threads, calls):
    memory = FORMS[form](64, 64, 128)
    x, state, reset = problem(memory, 70)
    results = []
    for n in (1, 2, 3, 5):
        threads(n)
        for _ in range(5):
            results.append(memory.step(x, state, reset))
    for y, after in results[1:]:
        assert torch.equal(y, results[0][0])
        assert torch.equal(after.M, results[0][1].M)
    for rows in (slice(0, 1), slice(3, 20), slice(69, 70)):
        y, after = memory.step(x[rows], type(state)(*(s[rows] for s in state)), reset[rows])
        assert torch.equal(y, results[0][0][rows])
        assert torch.equal(after.M, results[0][1].M[rows])


@torch.no_grad()
def test_calls_from_many_threads(threads):
    threads(2)
    memory = FORMS["default"](64, 64, 128)
    x, state, reset = problem(memory, 40)
    want, after = memory.step(x, state, reset)
    wrong = []

    def loop():
        with torch.no_grad():
            for _ in range(30):
                y, s = memory.step(x, state, reset)
                if not (torch.equal(y, want) and torch.equal(s.M, after.M)):
                    wrong.append(1)

    workers = [threading.Thread(target=loop) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@torch.no_grad()
def test_inputs_that_are_not_contiguous(calls):
    memory = FORMS["default"](6, 4, 8)
    x, state, reset = problem(memory, 4)
    bent = state._replace(M=state.M.mT.contiguous().mT, clock=state.clock.repeat_interleave(2)[::2])
    y, after = memory.step(x.T.contiguous().T, bent, reset.repeat_interleave(2)[::2])
    want, want_after = memory.step(x, state, reset)
    assert torch.equal(y, want)
    assert torch.equal(after.M, want_after.M)
    assert len(calls) == 2


@torch.no_grad()
def test_new_weights_are_seen_at_once(calls):
    memory = FORMS["default"](6, 4, 8)
    x, state, reset = problem(memory, 4)
    check_step(memory, x, state, reset)
    for parameter in memory.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
        check_step(memory, x, state, reset)
        parameter.data = torch.randn_like(parameter)
        check_step(memory, x, state, reset)
    memory.out = nn.Linear(8, 4)
    check_step(memory, x, state, reset)
    memory.norm = memory.shortcut = None
    check_step(memory, x, state, reset)
    assert len(calls) == 4 + 2 * (len(list(memory.parameters())) + 4) - 1


@torch.no_grad()
def test_results_are_tensors_like_any_other():
    memory = FORMS["default"](64, 64, 128)
    x, state, reset = problem(memory, 64)
    y, first = memory.step(x, state, reset)
    kept = first.M.clone()
    for _ in range(6):   # memory is used again, but not while anything looks at it
        _, state = memory.step(x, state, reset)
    view = memory.step(x, state)[1].M[3].numpy()
    seen = view.copy()
    for _ in range(6):
        _, state = memory.step(x, state, reset)
    assert torch.equal(first.M, kept)
    assert (view == seen).all()
    assert first.M.is_contiguous()
    assert not first.M._is_view()
    assert not y.requires_grad
    copy.deepcopy(first)
    del first, view, state
    gc.collect()
    assert len(_recycle._idle) <= _recycle.KEPT


# --- where the fused call must not be taken


def test_with_gradients_forward_is_used(calls):
    memory = FORMS["default"](6, 4, 8)
    x, state, reset = problem(memory, 4)
    y, after = memory.step(x, state, reset)
    (y.sum() + after.M.sum()).backward()
    assert all(p.grad is not None for p in memory.parameters())
    assert calls == []
    memory.requires_grad_(False)
    memory.step(x.requires_grad_(), state, reset)[0].sum().backward()
    assert calls == []
    memory.step(x.detach(), state, reset)   # nothing needs a gradient
    assert len(calls) == 1
    with torch.no_grad():
        memory.step(x, state, reset)
    assert len(calls) == 2


def test_inference_mode(calls):
    memory = FORMS["default"](6, 4, 8)
    with torch.inference_mode():
        x, state, reset = problem(memory, 4)
        y, after = memory.step(x, check_step(memory, x, state, reset))
    assert y.is_inference()
    assert after.M.is_inference()
    assert len(calls) == 2


HOOKED = ["norm", "key", "out", "shortcut", "read_norm", "calibration", "calibration.vc", ""]


@pytest.mark.parametrize("name", HOOKED)
@torch.no_grad()
def test_hooks_are_respected(name, calls):
    memory = FORMS["default"](6, 4, 8)
    x, state, reset = problem(memory, 4)
    layer = memory.get_submodule(name)
    for register in (layer.register_forward_hook, layer.register_forward_pre_hook):
        handle = register(lambda *args: None)
        memory.step(x, state, reset)
        assert calls == []
        handle.remove()
    memory.step(x, state, reset)
    assert len(calls) == 1


@torch.no_grad()
def test_hooks_change_the_result():
    memory = FORMS["default"](6, 4, 8)
    x, state, reset = problem(memory, 4)
    memory.norm.register_forward_hook(lambda layer, args, y: torch.zeros_like(y))
    y, _ = memory.step(x, state, reset)
    other, _ = memory.step(torch.randn_like(x), state, reset)
    assert torch.equal(y, other)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Negative(hm.SHM):
    def forward(self, *args):
        y, state = super().forward(*args)
        return -y, state


@torch.no_grad()
def test_other_parts_are_respected(calls):
    def patched(memory):
        memory.out.forward = lambda h: torch.zeros(*h.shape[:-1], 4)

    def parametrized(memory):
        nn.utils.parametrizations.weight_norm(memory.out)

    def replaced(memory):
        memory.out = Doubled(8, 4)

    for change in (patched, parametrized, replaced):
        memory = FORMS["default"](6, 4, 8)
        x, state, reset = problem(memory, 4)
        change(memory)
        check_step(memory, x, state, reset)
    memory = Negative(6, 4, 8)
    x, state, reset = problem(memory, 4)
    check_step(memory, x, state, reset)
    for options in (dict(calibration="none"), dict(calibration="neural_theta"), dict(calibration="random"), dict(backend="scan")):
        memory = hm.SHM(6, 4, 8, **options)
        x, state, reset = problem(memory, 4)
        check_step(memory, x, state, reset)
    memory = FORMS["default"](6, 4, 8).double()
    memory.step(x.double(), memory.initial_state(4))
    memory = FORMS["default"](6, 4, 8)
    memory.step(x, memory.initial_state(4, dtype=torch.float64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_step(memory, x, memory.initial_state(4), reset)
    assert calls == []

    class Named(hm.SHM):   # a subclass that leaves the mathematics alone
        pass

    check_step(Named(6, 4, 8), x, memory.initial_state(4), reset)
    assert len(calls) == 1


class Stepping(nn.Module):
    def __init__(self, memory):
        super().__init__()
        self.memory = memory

    def forward(self, x, state):
        return self.memory.step(x, state)


@torch.no_grad()
def test_transforms_go_through_forward(calls):
    memory = FORMS["default"](6, 4, 8)
    x, state, _ = problem(memory, 4)
    tangent = torch.randn_like(x)
    with torch.autograd.forward_ad.dual_level():
        memory.step(torch.autograd.forward_ad.make_dual(x, tangent), state)
    assert calls == []

    def act_with(bias):
        return torch.func.functional_call(Stepping(memory), {"memory.out.bias": bias}, (x, state))

    torch.func.vmap(act_with)(torch.stack([memory.out.bias, memory.out.bias + 1]))
    assert calls == []
    torch.func.functional_call(Stepping(memory), {"memory.out.bias": memory.out.bias + 1}, (x, state))
    assert len(calls) == 1


@torch.no_grad()
def test_errors_are_those_of_forward():
    memory = FORMS["default"](6, 4, 8)
    x, state, reset = problem(memory, 4)
    for args, error, text in [
        ((x[:, :5], state), ValueError, "input_size=6"),
        ((x[:, None], state), ValueError, r"\[B, input_size\]"),
        (("x", state), TypeError, "x must be a torch.Tensor"),
        ((x.long(), state), TypeError, "floating dtype"),
        ((x, state, reset[:2]), ValueError, "reset must have shape"),
        ((x, state, reset.float()), TypeError, "reset must be a bool"),
        ((x, state, [True] * 4), TypeError, "reset must be a bool"),
        ((x[:2], state), ValueError, "batch size 2"),
        ((x, tuple(state)), TypeError, "state must be"),
        ((x, state._replace(M=state.M[:, :4])), ValueError, "state.M must have shape"),
        ((x[:0], hm.states.index(state, slice(0, 0))), ValueError, "at least one row"),
    ]:
        with pytest.raises(error, match=text):
            memory.step(*args)
    assert memory.step(x, None)[0].shape == (4, 4)


def test_copies_and_checkpoints_are_unaffected():
    memory = FORMS["default"](6, 4, 8)
    keys = list(memory.state_dict())
    x, state, reset = problem(memory, 4)
    with torch.no_grad():
        y, _ = memory.step(x, state, reset)
        twin = copy.deepcopy(memory)
        assert list(memory.state_dict()) == list(twin.state_dict()) == keys
        assert torch.equal(twin.step(x, state, reset)[0], y)
        twin.load_state_dict(hm.SHM(6, 4, 8).state_dict())
        check_step(twin, x, state, reset)
        assert torch.equal(memory.step(x, state, reset)[0], y)


@torch.no_grad()
def test_a_kernel_that_fails_is_left_with_one_warning(monkeypatch):
    memory = FORMS["default"](6, 4, 8)
    x, state, reset = problem(memory, 4)
    want, _ = memory.step(x, state, reset)

    def broken(*args, **options):
        raise RuntimeError("no such machine")

    monkeypatch.setattr(act_cpu, "act", broken)
    monkeypatch.setattr(_backends, "_failed", {})
    with pytest.warns(RuntimeWarning, match="no such machine"):
        y, _ = memory.step(x, state, reset)
    torch.testing.assert_close(y, want, rtol=2e-5, atol=2e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.step(x, state, reset)
    assert _acting._KEY in _backends._failed
