"""Small numbers by hand: the closed form, the order of reset, write, clip and read, gradients at the clip."""

from __future__ import annotations

import math

import pytest
import torch

from hadamem import kernels

PLAIN = ["reference", "scan"]


def closed_form(C, U, M0):
    """Eq. 10: every M_t as products and sums over the whole past, term by term."""
    out = []
    for t in range(C.shape[1]):
        M = M0 * C[:, :t + 1].prod(dim=1)
        for i in range(t + 1):
            M = M + U[:, i] * C[:, i + 1:t + 1].prod(dim=1)
        out.append(M)
    return torch.stack(out, dim=1)


@pytest.mark.parametrize("backend", PLAIN)
def test_recurrence_is_closed_form_also_at_zeros(backend):
    C, U, M0 = torch.randn(2, 11, 3, 4).double(), torch.randn(2, 11, 3, 4).double(), torch.randn(2, 3, 4).double()
    C[:, 2], C[0, 5, 1] = 0.0, 0.0
    got = kernels.hadamard(C, U, M0=M0, backend=backend)
    torch.testing.assert_close(got, closed_form(C, U, M0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", PLAIN)
def test_two_steps_by_hand(backend):
    """One cell: C_1 = 1 + tanh(.5), M_1 = 2 C_1 + 3 * .1; then C_2 = 1 + tanh(-1)."""
    one = lambda *xs: torch.tensor(xs, dtype=torch.float64).reshape(1, -1, 1)   # noqa: E731
    vectors = one(0.5, -1.0), one(1.0, 1.0), one(3.0, 1.0), one(0.1, 4.0), one(1.0, 10.0)
    h, M = kernels.shm(*vectors, M0=torch.tensor([[[2.0]]]).double(), backend=backend)
    first = 2 * (1 + math.tanh(0.5)) + 0.3
    second = first * (1 + math.tanh(-1.0)) + 4.0
    assert h.flatten().tolist() == pytest.approx([first, 10 * second], rel=1e-14)   # the read is after the write
    assert M.item() == pytest.approx(second, rel=1e-14)


@pytest.mark.parametrize("backend", PLAIN)
def test_rows_of_M_are_values_and_columns_keys(backend):
    v, k = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[10.0, 20.0]]])
    h, M = kernels.shm(None, None, v, k, torch.tensor([[[1.0, 0.0]]]), calibration="none", backend=backend)
    assert M[0].tolist() == [[10, 20], [20, 40], [30, 60]]
    assert h[0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("backend", PLAIN)
def test_calibration_is_outer_product_of_theta_and_vc(backend):
    zero = torch.zeros(1, 1, 2)
    theta, vc = torch.tensor([[[0.3, -0.7]]]), torch.tensor([[[1.0, 2.0]]])
    _, M = kernels.shm(theta, vc, zero, zero, zero, torch.ones(1, 2, 2), backend=backend)
    want = [[1 + math.tanh(0.3), 1 + math.tanh(0.6)], [1 + math.tanh(-0.7), 1 + math.tanh(-1.4)]]
    torch.testing.assert_close(M[0], torch.tensor(want))


@pytest.mark.parametrize("backend", PLAIN)
def test_reset_comes_before_the_write(backend):
    """Step 1 opens an episode: what step 0 wrote is gone, what step 1 writes stays."""
    v = torch.tensor([5.0, 7.0, 11.0]).reshape(1, 3, 1)
    one = torch.ones(1, 3, 1)
    reset = torch.tensor([[False, True, False]])
    h, M = kernels.shm(None, None, v, one, one, torch.tensor([[[100.0]]]), reset, calibration="none", backend=backend)
    assert h.flatten().tolist() == [105, 7, 18]
    assert M.item() == 18


@pytest.mark.parametrize("backend", PLAIN)
def test_clip_after_the_write_and_its_gradient_mask(backend):
    """Entries past the limit get no gradient, entries at or inside it do (the mask includes the limit)."""
    v = torch.tensor([1.5, 2.0, 9.0, -9.0], dtype=torch.float64).reshape(1, 1, 4).requires_grad_()
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    h, M = kernels.shm(None, None, v, one, one, clip=2.0, calibration="none", backend=backend)
    assert M.flatten().tolist() == [1.5, 2, 2, -2]
    h.sum().backward()
    assert v.grad.flatten().tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", PLAIN)
def test_gradients_pass_an_entry_that_rests_at_the_clip(backend, dtype):
    """0.7 is no number of float32 or float64: all comparisons must be with the same one."""
    v, one = torch.full((1, 4, 1), 7.0, dtype=dtype), torch.ones(1, 4, 1, dtype=dtype)
    k = torch.tensor([1.0, 0, 0, 0], dtype=dtype).reshape(1, 4, 1).requires_grad_()
    h, M = kernels.shm(None, None, v, k, one, clip=0.7, calibration="none", backend=backend)
    assert M.item() == torch.tensor(0.7, dtype=dtype).item()
    h.sum().backward()
    assert k.grad.flatten().tolist() == [0, 21, 14, 7]


@pytest.mark.parametrize("backend", PLAIN)
def test_clip_forgets_how_far_it_was_passed(backend):
    """6 is cut to 2 before -1 is added: 1, not 2."""
    v = torch.tensor([6.0, -1.0]).reshape(1, 2, 1)
    one = torch.ones(1, 2, 1)
    h, _ = kernels.shm(None, None, v, one, one, clip=2.0, calibration="none", backend=backend)
    assert h.flatten().tolist() == [2, 1]


@pytest.mark.parametrize("backend", PLAIN)
def test_growth_to_the_clip_stays_finite(backend):
    """400 aligned doublings overflow float32 unless the limit is applied at every step."""
    x = torch.full((1, 400, 1), 20.0)
    leaf = x.clone().requires_grad_()
    h, M = kernels.shm(x, x, leaf, x, x, clip=100.0, backend=backend)
    assert M.item() == 100
    h.sum().backward()
    assert leaf.grad.isfinite().all()


def test_mean_of_products_is_one_and_median_is_not():
    """Prop. 4: symmetric z gives E prod C = 1; the typical product is smaller (Jensen)."""
    z = 0.25 * torch.randn(200_000, 16, generator=torch.Generator().manual_seed(0))
    products = (1 + torch.tanh(z)).prod(dim=1)
    error = products.std() / len(products) ** 0.5
    assert abs(products.mean() - 1) < 5 * error
    assert products.median() < 0.8


def gradcheck_inputs(T=5, V=2, K=3, rows=None):
    make = lambda *shape: (0.7 * torch.randn(*shape, dtype=torch.float64)).requires_grad_()   # noqa: E731
    return make(2, T, rows or V), make(2, T, K), make(2, T, V), make(2, T, K), make(2, T, K), make(2, V, K)


@pytest.mark.parametrize("calibration", ["tanh", "sigmoid", "exp", "drift"])
@pytest.mark.parametrize("backend", PLAIN)
def test_gradcheck_twice(backend, calibration):
    reset = torch.tensor([[False, False, True, False, False], [False, True, False, False, True]])
    run = lambda *args: kernels.shm(*args, reset, None, calibration, backend)   # noqa: E731
    args = gradcheck_inputs(rows=4 if calibration == "drift" else None)
    assert torch.autograd.gradcheck(run, args)
    assert torch.autograd.gradgradcheck(run, args)


@pytest.mark.parametrize("backend", PLAIN)
def test_gradcheck_hadamard_twice(backend):
    make = lambda *shape: torch.randn(*shape, dtype=torch.float64).requires_grad_()   # noqa: E731
    reset = torch.tensor([[False, False, True, False]])
    run = lambda C, U, q, M0: kernels.hadamard(C, U, q, M0, reset, backend)   # noqa: E731
    args = make(1, 4, 2, 3), make(1, 4, 2, 3), make(1, 4, 3), make(1, 2, 3)
    assert torch.autograd.gradcheck(run, args)
    assert torch.autograd.gradgradcheck(run, args)
