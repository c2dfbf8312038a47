"""The forms of C: bounds, symmetry of the logarithm, its mean, and how exactly the cpu backend computes them."""

from __future__ import annotations

import math

import pytest
import torch

from hadamem.kernels.shm.forms import calibrate, find_form

FORMS = ["exp", "exp:1.2", "exp:3", "drift"]   # "drift" of z alone, as it is where the drift is 0


@pytest.mark.parametrize("form", FORMS)
def test_log_C_is_odd_bounded_and_near_z(form):
    z = torch.cat([torch.linspace(-50, 50, 10_001), torch.tensor([-1e30, 1e30])]).double()
    C, numbers = calibrate(z, form), find_form(form)
    torch.testing.assert_close(C * calibrate(-z, form), torch.ones_like(z))
    assert C.min() >= numbers.floor - 1e-15
    assert C.max() <= 1 / numbers.floor + 1e-15
    assert C[-2:].tolist() == pytest.approx([numbers.floor, 1 / numbers.floor])
    assert numbers.top == pytest.approx(1 / numbers.floor)
    assert calibrate(torch.zeros(1), form).item() == 1
    near = torch.linspace(-0.01, 0.01, 5).double()
    torch.testing.assert_close(calibrate(near, form).log(), near, rtol=0.01, atol=0)


@pytest.mark.parametrize("bound", [1.1, 1.5, 2.0, 3.0])
def test_bounds_are_those_of_the_name(bound):
    assert find_form(f"exp:{bound}").top == pytest.approx(bound, rel=1e-3)
    s = math.log(find_form(f"exp:{bound}").top)                          # close to the better known exp(s tanh(z / s))
    z = torch.linspace(-20, 20, 4001).double()
    off = calibrate(z, f"exp:{bound}").log() - s * torch.tanh(z / s)
    assert off.abs().max() < 0.03 * s


@pytest.mark.parametrize("std", [0.1, 0.5, 1.0])
def test_mean_log_C_is_zero_where_tanh_drifts(std):
    z = std * torch.randn(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for form in FORMS:
        log_C = calibrate(z, form).log()
        assert abs(log_C.mean()) < 4 * log_C.std() / len(z) ** 0.5
    log_C = calibrate(z, "tanh").log()
    assert log_C.mean() < -10 * log_C.std() / len(z) ** 0.5


@pytest.mark.parametrize("calibration", ["tanh", "sigmoid", "exp", "exp:1.1", "exp:2.7"])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 3e-7), (torch.float64, 1e-14)])
def test_fused_C_is_accurate(calibration, dtype, error):
    pytest.importorskip("numba")
    from hadamem.kernels.shm.fused_cpu import shm_cpu

    wide, near = torch.linspace(-60, 60, 120_001), torch.linspace(-0.01, 0.01, 1001)
    z = torch.cat([wide, near, torch.tensor([-1e30, 1e30, -1e-30, 0.0])]).to(dtype)
    N = z.numel()
    one, column = torch.ones(1, 1, 1, dtype=dtype), torch.zeros(1, 1, N, dtype=dtype)
    M0 = torch.ones(1, 1, N, dtype=dtype)
    _, C = shm_cpu(one, z.view(1, 1, N), one * 0, column, column, M0, None, None, calibration)
    form = find_form(calibration)
    assert (C.view(N).double() - calibrate(z.double(), calibration)).abs().max() < error
    assert C.min() >= form.floor
    assert C.max() <= torch.tensor(form.top, dtype=dtype)
    assert C.view(N)[-1] == (0.5 if calibration == "sigmoid" else 1)   # z = 0 keeps the memory exactly
