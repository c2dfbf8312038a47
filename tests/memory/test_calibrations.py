"""The calibrations "exp" and "drift": no drift of log C, or a learned one, within bounds; the paper's decays."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import hadamem as hm
from hadamem.diagnostics import critical_gradients
from hadamem.memory.calibration import DriftTheta, ExpTheta


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def memory_with(calibration: str, D: int = 8) -> hm.SHM:
    """z has a standard deviation of 0.25 for inputs of 1: theta is ±0.25, and W_c the identity."""
    torch.manual_seed(0)
    memory = hm.SHM(D, D, D, calibration=calibration, row_mode="step", theta_rows=64, input_norm=False).double()
    with torch.no_grad():
        memory.calibration.theta.copy_(0.25 * normal(64, D).sign())
        memory.calibration.vc.weight.copy_(torch.eye(D))
    return memory


def test_median_of_products_stays_near_one_where_tanh_decays():
    x = normal(96, 1000, 8)
    curves = {name: critical_gradients(memory_with(name), x, state_curve=False) for name in ("exp", "drift", "theta")}
    for T in (100, 1000):
        for name in ("exp", "drift"):
            assert 0.5 < curves[name].median[T - 1] < 2
        assert curves["theta"].median[T - 1] < math.exp(-0.025 * T)
    assert (curves["exp"].G2_mean > 0).all()


@pytest.mark.parametrize("rate", [-0.05, 0.02])
def test_a_drift_moves_the_median(rate):
    memory = memory_with("drift")
    torch.nn.init.constant_(memory.calibration.drift, rate)
    curves = critical_gradients(memory, normal(96, 100, 8), state_curve=False)
    assert curves.median[-1].log().item() == pytest.approx(100 * rate, rel=0.25)
    memory.calibration.reset_parameters()
    assert memory.calibration.drift.eq(0).all()


@pytest.mark.parametrize("row_mode", ["first", "step", "episode"])
def test_the_drift_learns_even_where_theta_is_zero(row_mode):
    memory = hm.SHM(6, 4, memory_size=5, key_size=3, calibration="drift", row_mode=row_mode)   # theta starts at 0
    y, _ = memory(torch.randn(2, 7, 6))
    y.square().sum().backward()
    assert (memory.calibration.drift.grad != 0).all()
    assert (memory.calibration.theta.grad[0] != 0).any() or row_mode != "first"


@pytest.mark.parametrize("calibration", ["exp", "exp:1.5", "drift"])
@pytest.mark.parametrize("row_mode", ["first", "step", "episode"])
def test_equations_by_hand(calibration, row_mode):
    memory = hm.SHM(3, 2, 4, calibration=calibration, row_mode=row_mode, theta_init=2.0, input_norm=False, clip=None).double()
    x, start = normal(2, 5, 3), memory.initial_state(2, generator=torch.Generator().manual_seed(1))
    start = start._replace(M=normal(2, 4, 4, seed=2))
    own = memory.calibration
    if calibration == "drift":
        torch.nn.init.normal_(own.drift)
    M, r = start.M, {"exp:1.5": 0.2}.get(calibration, 1 / 3)
    rows = own.rows(memory._clocks(start.clock, 5, None))
    for t in range(5):
        k, _, v, *_ = memory._project(x[:, t:t + 1])
        z = own.theta[rows[:, t]][:, :, None] * own.vc(x[:, t])[:, None, :]
        z = z + own.drift[:, None] if calibration == "drift" else z
        share = r * torch.tanh(z / (2 * r))
        M = M * (1 + share) / (1 - share) + v[:, 0, :, None] * k[:, 0, None, :]
    tolerance = dict(rtol=5e-3, atol=1e-3) if calibration == "exp:1.5" else dict(rtol=1e-10, atol=1e-12)   # 1/1.5 is rounded to 11 bits
    torch.testing.assert_close(memory(x, start)[1].M, M, **tolerance)


@pytest.mark.parametrize("calibration", ["exp:1.5", "drift"])
def test_steps_weights_and_states_survive_a_round_trip(calibration, tmp_path):
    options = dict(memory_size=5, calibration=calibration, row_mode="step", theta_init=1.0)
    memory, other = hm.SHM(6, 4, **options), hm.make_memory("shm", 6, 4, **options)
    for p in memory.calibration.parameters():
        torch.nn.init.normal_(p)
    x, reset, start = torch.randn(3, 9, 6), torch.rand(3, 9) < 0.2, memory.initial_state(3)
    torch.save((memory.state_dict(), tuple(start)), tmp_path / "memory.pt")
    weights, saved = torch.load(tmp_path / "memory.pt")
    other.load_state_dict(weights)
    want, last = memory(x, start, reset)
    got, state = [], type(start)(*saved)
    with torch.no_grad():
        for t in range(9):
            y, state = other.step(x[:, t], state, reset[:, t])
            got.append(y)
    torch.testing.assert_close(torch.stack(got, 1), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.M, last.M, rtol=1e-4, atol=1e-5)
    assert torch.equal(copy.deepcopy(memory)(x, start, reset)[0], want)


def test_compiles_without_a_graph_break():
    memory = hm.SHM(6, 4, memory_size=5, calibration="drift:1.5", theta_init=1.0)
    x = torch.randn(2, 4, 6)
    y, _ = torch.compile(memory, fullgraph=True, backend="aot_eager")(x, memory.initial_state(2))
    torch.testing.assert_close(y, memory(x)[0])


def test_built_by_class():
    assert isinstance(hm.SHM(3, 2, 4, calibration=ExpTheta).calibration, ExpTheta)
    own = hm.SHM(3, 2, 4, calibration=lambda D, V, K: DriftTheta(D, V, K, bound=1.5, rows=7, init=0.0))
    assert own.calibration.form == "drift:1.5"
    assert own.calibration.table().shape == (7, 8)
