"""The critical gradients against closed forms, the paper's propositions, and autograd."""

import math

import pytest
import torch

import hadamem as hm
from hadamem.diagnostics import critical_gradients, cumulative_products, live_entries, plot, stability_report


def ar1(B, T, D, rho, seed=0):
    """Gaussian inputs of variance 1, each correlated with the one before by rho: [B, T, D]."""
    noise = torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = [noise[:, 0]]
    for t in range(1, T):
        x.append(rho * x[-1] + math.sqrt(1 - rho**2) * noise[:, t])
    return torch.stack(x, dim=1)


def test_no_calibration_is_flat():
    memory = hm.SHM(6, 6, 8, calibration="none")
    curves = critical_gradients(memory, torch.randn(3, 20, 6))
    for name in ("mean", "median", "typical"):
        torch.testing.assert_close(getattr(curves, name), torch.ones(20, dtype=torch.float64))
    assert curves.underflow.max() == 0
    assert curves.G2_mean is None   # no theta
    assert curves.mean_below_one.isnan().all()


def test_zero_theta_is_flat_and_has_a_slope():
    curves = critical_gradients(hm.SHM(6, 6, 8), torch.randn(3, 20, 6))   # default: theta starts at 0
    torch.testing.assert_close(curves.mean, torch.ones(20, dtype=torch.float64))
    assert (curves.G2_mean > 0).all()


@pytest.mark.parametrize("value", [0.5, 1.5])
def test_fixed_C_gives_exact_powers(value):
    """Prop. 3: products of one matrix are its powers, which vanish below 1 and explode above."""
    memory = hm.SHM(6, 6, 8, calibration="fixed")
    torch.nn.init.constant_(memory.calibration.C, value)
    curves = critical_gradients(memory, torch.randn(2, 300, 6))
    t = torch.arange(1, 301, dtype=torch.float64)
    torch.testing.assert_close(curves.mean, value**t)
    torch.testing.assert_close(curves.median, value**t)
    torch.testing.assert_close(curves.mean_log, t * math.log(value))
    assert curves.underflow[-1] == (value < 1)
    assert curves.overflow[-1] == (value > 1)
    assert ("vanishing" if value < 1 else "exploding") in stability_report(curves)


def test_log_domain_outlives_float64():
    curves = cumulative_products(torch.full((2, 3000, 4), 0.5))
    assert curves.mean[-1] == 0
    torch.testing.assert_close(curves.mean_log[-1].item(), 3000 * math.log(0.5))


def test_zeros_in_C_divide_nothing():
    C = torch.ones(2, 6, 3)
    C[:, 2] = 0
    curves = cumulative_products(C, torch.ones_like(C))
    assert curves.mean.tolist() == [1, 1, 0, 0, 0, 0]
    assert curves.G2_mean.tolist() == [1, 2, 1, 1, 1, 1]   # only the path through the zero's own slope is left
    assert torch.isfinite(curves.mean_log_C[[0, 1, 3, 4, 5]]).all()


@pytest.mark.parametrize("std", [0.1, 0.25])
def test_mean_is_one_while_the_median_decays(std):
    """Prop. 4, and what it leaves out."""
    g = torch.Generator().manual_seed(1)
    z = std * torch.randn(100_000, 16, 1, dtype=torch.float64, generator=g)
    curves = cumulative_products(1 + torch.tanh(z))
    assert ((curves.mean - 1).abs() < 4 * curves.error).all()
    big = std * torch.randn(2_000_000, dtype=torch.float64, generator=g)
    rate = torch.log1p(torch.tanh(big)).mean().item()
    # The median of prod C is exp(median of a sum of 16 logs); their skew moves it off exp(16 E log C) by a little.
    assert curves.median[-1].item() == pytest.approx(math.exp(16 * rate), rel=0.1)
    assert curves.typical[-1].item() == pytest.approx(math.exp(16 * rate), rel=0.02)
    assert curves.median[-1] < 0.99 * curves.mean[-1]


def test_random_rows_tame_correlated_inputs():
    """AR(1) inputs, |theta| about .5, 64 steps: one theta for all steps explodes in the mean, random rows do not."""
    torch.manual_seed(0)
    B, T, H = 256, 64, 16
    x = ar1(B, T, H, rho=0.95)
    means = {}
    for mode in ("first", "step"):
        memory = hm.SHM(H, H, H, row_mode=mode, input_norm=False).double()
        sign = torch.randint(2, memory.calibration.theta.shape) * 2.0 - 1
        memory.calibration.theta.data = 0.5 * sign.double()
        memory.calibration.vc.weight.data = torch.eye(H, dtype=torch.float64)
        curves = critical_gradients(memory, x, memory.initial_state(B, generator=torch.Generator().manual_seed(2)))
        means[mode] = curves.mean[-1].item()
        assert curves.median[-1] < 0.1
    assert means["first"] > 1e6
    assert means["step"] < 100


@pytest.mark.parametrize("form", ["tanh", "sigmoid", "exp", "exp:1.5", "drift"])
def test_G2_matches_autograd(form):
    from hadamem.kernels.shm.forms import calibrate, find_form, logits, slope

    g = torch.Generator().manual_seed(3)
    theta = torch.randn(8 if find_form(form).drift else 4, dtype=torch.float64, generator=g).requires_grad_()
    vc = torch.randn(1, 7, 5, dtype=torch.float64, generator=g)
    C = calibrate(logits(theta, vc, form), form)                      # [1, 7, 4, 5], one theta for all steps
    dC = (slope(C, form) * vc[:, :, None, :]).detach()
    product = C.prod(1)[0]                                            # [4, 5]
    want = torch.stack([torch.autograd.grad(product[:, j].sum(), theta, retain_graph=True)[0][:4] for j in range(5)], dim=1)
    curves = cumulative_products(C.detach(), dC)
    assert curves.G2_mean[-1].item() == pytest.approx(want.abs().mean().item(), rel=1e-12)
    assert curves.G2_max[-1].item() == pytest.approx(want.abs().max().item(), rel=1e-12)


def test_G2_of_a_model_matches_autograd():
    torch.manual_seed(0)
    memory = hm.SHM.release(5, 5, 4).double()
    x = torch.randn(1, 6, 5, dtype=torch.float64)
    curves = critical_gradients(memory, x)
    theta = memory.calibration.theta[0].detach().requires_grad_()
    vc = memory.calibration.vc(memory.norm(x)).detach()[0]            # [6, 4]
    product = (1 + torch.tanh(theta[:, None] * vc[:, None, :])).prod(0)
    columns = (product[:, j].sum() for j in range(4))
    grads = torch.stack([torch.autograd.grad(c, theta, retain_graph=True)[0] for c in columns], dim=1)
    assert curves.G2_mean[-1].item() == pytest.approx(grads.abs().mean().item(), rel=1e-10)


@pytest.mark.parametrize("calibration", ["theta", "exp", "drift", "neural_theta", "fixed", "random", "none"])
def test_every_calibration_chunk_and_state(calibration):
    torch.manual_seed(0)
    memory = hm.SHM(6, 6, 5, calibration=calibration, theta_init=1.0, row_mode="step")
    x, reset = torch.randn(3, 17, 6), torch.rand(3, 17) < 0.2
    state = memory.initial_state(3)
    whole = critical_gradients(memory, x, state, reset)
    pieces = critical_gradients(memory, x, state, reset, chunk=4)
    for name in ("mean", "median", "mean_log", "largest_state"):
        torch.testing.assert_close(getattr(pieces, name), getattr(whole, name))
    _, last = memory(x, state, reset)
    assert whole.largest_state[-1].item() == pytest.approx(last.M.abs().max().item(), rel=1e-4)


def test_clip_limits_the_state_curve():
    memory = hm.SHM(6, 6, 5, calibration="none", clip=0.01)
    assert critical_gradients(memory, torch.randn(2, 50, 6)).largest_state.max() <= 0.01


def test_a_reset_starts_anew():
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[:, 3] = True
    curves = cumulative_products(torch.full((2, 6, 4), 0.5), reset=reset)
    assert curves.mean.tolist() == [0.5, 0.25, 0.125, 0.5, 0.25, 0.125]


def test_report_and_plot(tmp_path):
    pytest.importorskip("matplotlib")
    curves = {name: critical_gradients(hm.make_memory(name, 6, 6, memory_size=5), torch.randn(2, 9, 6))
              for name in ("shm", "shm-paper", "shm-release")}
    assert "steps" in stability_report(curves["shm-paper"], "paper")
    assert plot(curves, tmp_path / "curves.png").stat().st_size > 5000
    assert plot(curves["shm"], tmp_path / "one.png").exists()


def test_bad_input():
    with pytest.raises(TypeError, match="cumulative_products"):
        critical_gradients(hm.GRU(4), torch.randn(1, 2, 4))
    with pytest.raises(ValueError, match="chunk"):
        critical_gradients(hm.SHM(4), torch.randn(1, 2, 4), chunk=0)
    with pytest.raises(ValueError, match="at least one step"):
        cumulative_products([])


def test_live_entries_tell_which_queries_have_no_gradient():
    memory = hm.SHM(4, 4, 6, input_norm=False)
    with torch.no_grad():
        memory.query.weight.copy_(torch.cat([torch.eye(4), -torch.ones(2, 4)]))
    x = torch.tensor([[[1.0, 2.0, -1.0, -1.0], [3.0, -1.0, -1.0, -0.5], [-1.0, -1.0, -1.0, 3.0], [1.0, 1.0, 1.0, 1.0]]])
    live = live_entries(memory, x)
    assert live.query.tolist() == [[2, 1, 1, 4]]
    assert live.key.shape == (1, 4)
    y, _ = memory(x)
    for t, dead in enumerate((False, True, True, False)):
        (slope,) = torch.autograd.grad(y[0, t].square().sum(), memory.query.weight, retain_graph=True)
        assert (slope.abs().max() < 1e-4 * y[0, t].abs().max()) == dead
    with pytest.raises(TypeError, match=r"memory must be a hm\.SHM with normalize_keys=True, got GRU"):
        live_entries(hm.GRU(4, 4, 6), x)
