"""SHM's forms and options: rows of theta, clocks, calibrations, sizes, precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import hadamem as hm

FORMS = {"shm": hm.SHM, "paper": hm.SHM.paper, "release": hm.SHM.release}


def by_hand(memory: hm.SHM, x: torch.Tensor, M: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of the equations in the class docstring, on a single row: x [D], M [V, K]."""
    x = memory.norm(x)
    k, q = torch.relu(memory.key.weight @ x), torch.relu(memory.query.weight @ x)
    k, q = k / (1e-5 + k.sum()), q / (1e-5 + q.sum())
    z = torch.outer(memory.calibration.theta[rows], memory.calibration.vc.weight @ x)
    M = M * (1 + torch.tanh(z)) + torch.sigmoid(memory.eta.weight @ x) * torch.outer(memory.value.weight @ x, k)
    h = M @ q
    if memory.read_norm is not None:
        h = (h - h.mean()) / torch.sqrt(h.var(unbiased=False) + 1e-5)
    return memory.out.weight @ (h + memory.shortcut.weight @ x + memory.shortcut.bias) + memory.out.bias, M


@pytest.mark.parametrize("form", FORMS)
def test_equations(form):
    memory = FORMS[form](3, 2, memory_size=4, theta_rows=5, theta_init=2.0).double()
    x = torch.randn(1, 6, 3).double()
    rows = torch.randint(5, (1, 6)) if form == "paper" else torch.zeros(1, 6, dtype=torch.int64)
    y, state = memory(x, None, None, rows)
    M = torch.zeros(4, 4).double()
    for t in range(6):
        want, M = by_hand(memory, x[0, t], M, rows[0, t])
        torch.testing.assert_close(y[0, t], want)
    torch.testing.assert_close(state.M[0], M)


def test_forms_are_what_they_say():
    shm, paper, release = (make(3, 2, 4) for make in FORMS.values())
    assert (shm.row_mode, paper.row_mode, release.row_mode) == ("first", "step", "first")
    assert shm.read_norm is not None
    assert paper.read_norm is None
    assert release.read_norm is None
    assert (shm.calibration.theta == 0).all()
    bound = math.sqrt(6 / (128 + 4))
    for memory in (paper, release):
        theta = memory.calibration.theta
        assert theta.shape == (128, 4)
        assert 0.9 * bound < theta.abs().max() <= bound
        assert memory.norm is not None
        assert memory.shortcut is not None
        assert memory.normalize_keys
    assert hm.SHM.paper(3, 2, 4, row_mode="episode").row_mode == "episode"   # every choice of a form can be overridden


def test_options_switch_parts_off():
    off = dict.fromkeys(("input_norm", "normalize_keys", "shortcut", "read_norm"), False)
    memory = hm.SHM(3, 2, 4, calibration="none", **off)
    assert {n.split(".")[0] for n, _ in memory.named_parameters()} == {"key", "query", "value", "eta", "out"}
    x = torch.randn(1, 1, 3)
    y, state = memory(x)
    u = x[0, 0]
    M = torch.sigmoid(memory.eta.weight @ u) * torch.outer(memory.value.weight @ u, memory.key.weight @ u)
    torch.testing.assert_close(state.M[0], M)
    torch.testing.assert_close(y[0, 0], memory.out(M @ (memory.query.weight @ u)))


# --- rows and clock


def rows_used(memory: hm.SHM, state, T: int, reset=None) -> torch.Tensor:
    return memory.calibration.rows(memory._clocks(state.clock, T, reset))


@pytest.mark.parametrize("options", [{}, {"rotary": True, "rotary_keys": True}])
def test_tied_start_copies_the_keys_and_nothing_else(options):
    torch.manual_seed(0)
    usual = hm.SHM(6, 5, memory_size=8, **options)
    torch.manual_seed(0)
    tied = hm.SHM(6, 5, memory_size=8, tied_start=True, **options)
    pairs = {"query.weight": "key.weight", "rotary_query.weight": "rotary_key.weight"}
    before, weights = usual.state_dict(), dict(tied.named_parameters())
    for name, weight in weights.items():
        assert torch.equal(weight, before[pairs.get(name, name)]), name
    assert weights["query.weight"] is not weights["key.weight"]
    tied(torch.randn(2, 9, 6))[0].square().mean().backward()
    assert not torch.equal(weights["query.weight"].grad, weights["key.weight"].grad)      # learned apart from then on


def test_every_row_of_theta_is_drawn_evenly():
    memory = hm.SHM.paper(3, 2, 4, theta_rows=128)
    rows = rows_used(memory, memory.initial_state(64), 1000)
    counts = torch.bincount(rows.flatten(), minlength=128).double()
    expected = rows.numel() / 128
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert rows.max() == 127
    assert counts.min() > 0
    assert 127 - 5 * math.sqrt(254) < chi_square < 127 + 5 * math.sqrt(254)


def test_every_row_of_theta_gets_a_gradient():
    memory = hm.SHM.paper(3, 2, 4, theta_rows=7)
    y, _ = memory(torch.randn(4, 50, 3))
    y.sum().backward()
    assert (memory.calibration.theta.grad != 0).any(dim=1).all()
    release = hm.SHM.release(3, 2, 4, theta_rows=7)
    release(torch.randn(4, 50, 3))[0].sum().backward()
    assert (release.calibration.theta.grad != 0).any(dim=1).tolist() == [True] + [False] * 6


def test_stored_state_replays_its_rows():
    memory = hm.SHM.paper(3, 2, 4)
    x = torch.randn(2, 9, 3)
    state = memory.initial_state(2)
    y, _ = memory(x, state)
    torch.manual_seed(99)
    assert torch.equal(memory(x, state)[0], y)                                   # nothing is drawn outside the state
    assert torch.equal(memory(x, state, None, rows_used(memory, state, 9))[0], y)
    assert not torch.equal(memory(x, memory.initial_state(2))[0], y)             # another clock, other rows


def test_rows_of_the_batch_have_streams_of_their_own():
    memory = hm.SHM.paper(3, 2, 4)
    rows = rows_used(memory, memory.initial_state(2), 64)
    assert (rows[0] != rows[1]).float().mean() > 0.9


def test_clock_by_step_counts_steps_and_ignores_resets():
    memory = hm.SHM(3, 2, 4, row_mode="step")
    state = memory.initial_state(2)
    reset = torch.rand(2, 9) < 0.5
    assert torch.equal(memory(torch.randn(2, 9, 3), state, reset)[1].clock, state.clock + 9)


def test_clock_by_episode_counts_resets_and_keeps_the_row():
    memory = hm.SHM(3, 2, 4, row_mode="episode")
    state = memory.initial_state(2)
    reset = torch.tensor([[False, False, True, False, True, False], [True, False, False, False, False, False]])
    after = memory(torch.randn(2, 6, 3), state, reset)[1]
    assert (after.clock - state.clock).tolist() == [2, 1]
    rows = rows_used(memory, state, 6, reset)
    assert len({*rows[0, :2].tolist()}) == len({*rows[0, 2:4].tolist()}) == len({*rows[1].tolist()}) == 1
    many = rows_used(memory, state, 300, torch.ones(2, 300, dtype=torch.bool))
    assert len(many[0].unique()) > 64   # a new row at every episode


def test_clock_of_the_first_row_stands_still():
    memory = hm.SHM(3, 2, 4)
    state = memory.initial_state(2)
    assert state.clock.tolist() == [0, 0]
    assert memory(torch.randn(2, 5, 3), state, torch.ones(2, 5, dtype=torch.bool))[1].clock.tolist() == [0, 0]


def test_initial_clock_follows_the_generator():
    memory = hm.SHM.paper(3, 2, 4)
    draw = lambda seed: memory.initial_state(5, generator=torch.Generator().manual_seed(seed)).clock   # noqa: E731
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert len(draw(1).unique()) == 5


# --- calibrations


class Forgetting(hm.Calibration):
    """The example of memory/calibration.py: forgets at a learned rate per column."""

    def __init__(self, input_size, value_size, key_size):
        super().__init__()
        self.value_size, self.rate = value_size, nn.Linear(input_size, key_size)

    def forward(self, x, clock):
        C = torch.sigmoid(self.rate(x))[..., None, :]                    # [B, T, 1, K]
        return C.expand(*x.shape[:2], self.value_size, -1)               # [B, T, V, K]


class Fading(hm.Calibration):
    """A user's calibration on the fused path: C = sigmoid(theta ⊗ W x)."""

    def __init__(self, input_size, value_size, key_size):
        super().__init__()
        self.theta, self.vc = nn.Parameter(torch.ones(value_size)), nn.Linear(input_size, key_size)

    def forward(self, x, clock):
        return hm.Factors(self.theta.expand(*x.shape[:2], -1), self.vc(x), form="sigmoid")


OWN = [Forgetting, Fading, Forgetting(6, 5, 3)]   # a class, one on the fused path, an instance


@pytest.mark.parametrize("calibration", ["theta", "exp", "drift", "exp:1.5", "neural_theta", "fixed", "random", "none", *OWN])
def test_calibrations_run_and_learn(calibration):
    memory = hm.SHM(6, 4, memory_size=5, key_size=3, calibration=calibration, theta_init=1.0)
    y, state = memory(torch.randn(2, 7, 6))
    assert y.shape == (2, 7, 4)
    assert state.M.shape == (2, 5, 3)
    y.sum().backward()
    for name, p in memory.calibration.named_parameters():
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name


def test_fixed_c_is_used_as_it_is():
    memory = hm.SHM(3, 2, 4, calibration="fixed")
    start = memory.initial_state(1)._replace(M=torch.randn(1, 4, 4))
    memory.value.weight.data.zero_()
    _, state = memory(torch.randn(1, 3, 3), start)
    torch.testing.assert_close(state.M[0], start.M[0] * memory.calibration.C**3)


def test_random_c_has_mean_one_and_replays():
    from hadamem.memory.calibration import RandomC

    clock = torch.arange(20_000)[None]
    for kind in ("tanh", "normal"):
        C = RandomC(3, 2, 2, kind=kind)(torch.zeros(1, 20_000, 3), clock)
        assert C.shape == (1, 20_000, 2, 2)
        assert abs(C.mean() - 1) < 0.005
        assert C.std(dim=1).min() > 0.2
        assert torch.equal(C, RandomC(3, 2, 2, kind=kind)(torch.zeros(1, 20_000, 3), clock))
    with pytest.raises(ValueError, match="unknown kind 'flat'"):
        RandomC(3, 2, 2, kind="flat")


def test_clip_needs_a_calibration_without_a_tensor():
    memory = hm.SHM(3, 2, 4, calibration="fixed", clip=1.0)
    with pytest.raises(ValueError, match="clip works with a calibration that gives Factors or None, FixedC"):
        memory(torch.randn(1, 2, 3))


@pytest.mark.parametrize(("memory", "clip"), [
    (hm.SHM(3, 2, 4), 1e8), (hm.SHM(3, 2, 4, calibration="exp"), 1e8), (hm.SHM(3, 2, 4, calibration="drift:1.5"), 1e8),
    (hm.SHM(3, 2, 4, calibration="neural_theta"), 1e8), (hm.SHM(3, 2, 4, clip=None), None),
    (hm.SHM.paper(3, 2, 4), None), (hm.SHM.release(3, 2, 4), None), (hm.SHM.paper(3, 2, 4, clip=7), 7),
    *((hm.SHM(3, 2, 4, calibration=name), None) for name in ("none", "fixed", "random")),
])
def test_what_limits_the_memory_by_default(memory, clip):
    assert memory.clip == clip
    memory(torch.randn(2, 5, 3))


@pytest.mark.parametrize("written", ["every column", "some columns"])
@pytest.mark.parametrize("clip", ["auto", None])
def test_long_growth_is_survived_by_default_only(clip, written):
    memory, x = hm.SHM(3, 2, 4, clip=clip), torch.tensor([0.5, -1.0, 2.0]).expand(2, 600, 3)
    with torch.no_grad():
        memory.calibration.theta.fill_(100.0)             # C is 0 or 2, the same at every step
        memory.key.weight.copy_(memory.norm(x)[0, :4])    # and every column is written to
        if written == "some columns":
            memory.key.weight[1:3].neg_()
    y, state = memory(x)
    grads = torch.autograd.grad(y.sum(), list(memory.parameters()))
    assert all(bool(g.isfinite().all()) for g in (y, state.M, *grads)) == (clip == "auto")


def test_clip_limits_the_memory():
    memory = hm.SHM(3, 2, 4, clip=0.05)
    _, state = memory(torch.randn(2, 20, 3))
    assert state.M.abs().max() <= 0.05


# --- sizes and precision


def test_sizes():
    memory = hm.SHM(3, memory_size=6, key_size=2)
    assert memory.output_size == 6
    assert memory.state_size == 12
    assert memory.initial_state(4).M.shape == (4, 6, 2)


def test_half_precision_module_keeps_a_wide_state():
    memory = hm.SHM(3, 2, 4).bfloat16()
    y, state = memory(torch.randn(2, 5, 3).bfloat16())
    assert y.dtype == torch.bfloat16
    assert state.M.dtype == torch.float32


def test_autocast_keeps_a_wide_state():
    memory = hm.SHM.paper(8, 8, 8)
    x, state = torch.randn(2, 5, 8), memory.initial_state(2)
    want, _ = memory(x, state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, after = memory(x, state)
    assert y.dtype == torch.bfloat16
    assert after.M.dtype == torch.float32
    torch.testing.assert_close(y.float(), want, rtol=0.05, atol=0.05)
    y.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in memory.parameters() if p.grad is not None)


def test_torch_compile_has_no_graph_break():
    memory = hm.SHM.paper(3, 2, 4)
    x, state, reset = torch.randn(2, 5, 3), memory.initial_state(2), torch.rand(2, 5) < 0.3
    want, want_state = memory(x, state, reset)
    got, got_state = torch.compile(memory, fullgraph=True, backend="aot_eager")(x, state, reset)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(got_state.M, want_state.M)
    assert torch.equal(got_state.clock, want_state.clock)


# --- bad input

BAD_BUILD = {
    "memory_size": (dict(memory_size=0), ValueError, "memory_size must be positive, got 0"),
    "memory_size-negative": (dict(memory_size=-3), ValueError, "memory_size must be positive, got -3"),
    "memory_size-float": (dict(memory_size=2.5), TypeError, "memory_size must be a positive int, got 2.5"),
    "input_size": (dict(input_size=0), ValueError, "input_size must be positive"),
    "output_size": (dict(output_size="6"), TypeError, "output_size must be a positive int"),
    "key_size": (dict(key_size=0), ValueError, "key_size must be positive"),
    "theta_rows": (dict(theta_rows=0), ValueError, "theta_rows must be positive"),
    "row_mode": (dict(row_mode="random"), ValueError, "unknown row_mode 'random'; choose from step, episode, first"),
    "soft_keys": (dict(soft_keys=-0.1), ValueError, "soft_keys must be 0 or more, and 0 with normalize_keys=False, got -0.1"),
    "soft_keys without": (dict(soft_keys=0.1, normalize_keys=False), ValueError, "soft_keys must be 0 or more, and 0 with normalize_keys"),
    "theta_init": (dict(theta_init=-0.5), ValueError, "theta_init must be 0 or more, got -0.5"),
    "row_mode-array": (dict(row_mode=np.ones(3)), ValueError, "unknown row_mode array"),
    "row_mode-unused": (dict(row_mode="random", calibration="none"), ValueError, "unknown row_mode 'random'"),
    "calibration": (dict(calibration="tanh"), ValueError, "unknown calibration 'tanh'; choose from theta"),
    "calibration-bound": (dict(calibration="exp:9"), ValueError, "bound of a calibration must be a number in 1.1..3, .* got '9'"),
    "calibration-no-bound": (dict(calibration="drift:"), ValueError, "bound of a calibration must be a number .* got ''"),
    "calibration-without-bound": (dict(calibration="fixed:2"), ValueError, "unknown calibration 'fixed:2'; choose from theta, exp, drift"),
    "calibration-module": (dict(calibration=nn.Linear(3, 3)), TypeError, "calibration must be a name"),
    "calibration-function": (dict(calibration=len), TypeError, "calibration must be a name, .* len cannot be called so"),
    "calibration-number": (dict(calibration=3), TypeError, "calibration must be a name, a hm.Cal"),
    "clip": (dict(clip=0), ValueError, "clip must be positive"),
    "clip-array": (dict(clip=np.ones(3)), TypeError, "clip must be a positive number or None, got ndarray"),
    "clip-inf": (dict(clip=float("inf")), ValueError, "clip must be positive, .* got inf; use clip=None"),
    "backend-array": (dict(backend=np.ones(3)), ValueError, "unknown backend array"),
    "backend": (dict(backend="gpu"), ValueError, "unknown backend 'gpu'"),
}


@pytest.mark.parametrize("case", BAD_BUILD)
def test_building_names_the_bad_argument(case):
    changed, kind, message = BAD_BUILD[case]
    with pytest.raises(kind, match=message):
        hm.SHM(**{"input_size": 3, "output_size": 2, **changed})


def test_rows_must_fit():
    memory, x = hm.SHM.paper(3, 2, 4, theta_rows=5), torch.randn(2, 6, 3)
    good = torch.zeros(2, 6, dtype=torch.int64)
    for rows in (good[:, 1:], good.float(), good + 5, good - 1):
        with pytest.raises(ValueError, match=r"rows must be an int64 tensor of shape \[2, 6\] with entries in 0..4"):
            memory(x, None, None, rows)
    with pytest.raises(ValueError, match="rows was given, but calibration NoCalibration has no table"):
        hm.SHM(3, 2, 4, calibration="none")(x, None, None, torch.zeros(2, 6, dtype=torch.int64))


def test_unknown_memory_name_suggests_one():
    with pytest.raises(ValueError, match="unknown memory 'sham'; did you mean 'shm'"):
        hm.make_memory("sham", 3, 2)
