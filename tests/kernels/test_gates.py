"""SHM's gates: the fused kernel computes what the plain PyTorch steps do, forward and backward."""

import math

import pytest
import torch

from hadamem.kernels import backends
from hadamem.kernels.gates import gates
from hadamem.kernels.gates.reference import gates_reference, positive, sum_to_one, widths

CASES = [   # B, T, V, K, normalize, calibrated, shortcut, softness
    (1, 1, 4, 4, True, True, True, 0.0), (2, 3, 5, 7, True, True, False, 0.0), (2, 2, 24, 9, False, False, True, 0.0),
    (1, 5, 3, 3, True, False, False, 0.0), (2, 3, 5, 7, True, True, False, 0.1), (1, 5, 3, 8, True, False, True, 2.0),
]


def test_reference_is_what_the_equations_say():
    P = torch.tensor([[[1.0, -2.0, 3.0, 1.0, 0.5, -0.5, 0.2, 0.3, 4.0, 5.0, 0.0]]])
    k, q, v, vc, s = gates_reference(P, 2, 2, True, True, True)
    torch.testing.assert_close(k, torch.tensor([[[1.0, 0.0]]]) / 1.00001)
    torch.testing.assert_close(q, torch.tensor([[[3.0, 1.0]]]) / 4.00001)
    torch.testing.assert_close(v, torch.tensor([[[0.25, -0.25]]]))
    assert vc is not None
    assert s is not None
    torch.testing.assert_close(torch.cat((vc, s), -1), torch.tensor([[[0.2, 0.3, 4.0, 5.0]]]))


def test_soft_keys_are_what_the_equation_says_and_keep_their_digits():
    x = torch.tensor([-8.0, -1.0, -0.25, 0.0, 0.25, 3.0, 1e4], dtype=torch.float64, requires_grad=True)
    y = positive(x, 0.25)
    e = math.exp(-1)
    want = torch.tensor([0.25 * e**32, 0.25 * e**4, 0.25 * e, 0.25, 0.5, 3.25, 1e4 + 0.25], dtype=torch.float64)
    torch.testing.assert_close(y, want, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(positive(x.float(), 0.25).double(), y, rtol=3e-7, atol=0.0)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope, torch.tensor([e**32, e**4, e, 1, 1, 1, 1], dtype=torch.float64), rtol=1e-12, atol=0.0)
    assert torch.autograd.gradcheck(lambda x: sum_to_one(positive(x, 0.3)), torch.randn(3, 4, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("entries", [[-1.0, -2.0, -0.5], [3.0, -2.0, -0.2]], ids=["none is positive", "one is positive"])
def test_relu_keys_can_die_and_soft_ones_cannot(entries):
    def slope(softness):
        x = torch.tensor(entries, requires_grad=True)
        return torch.autograd.grad(sum_to_one(positive(x, softness)) @ torch.tensor([1.0, 2.0, 3.0]), x)[0].abs().max()

    assert slope(0.0) < 1e-5 < 1e-4 < slope(0.1)


@pytest.mark.skipif("triton" not in backends(), reason="triton cannot run here")
@pytest.mark.parametrize(("B", "T", "V", "K", "normalize", "calibrated", "shortcut", "softness"), CASES)
def test_triton_matches_reference(B, T, V, K, normalize, calibrated, shortcut, softness):
    from hadamem.kernels.gates.triton import gates_triton

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    P = torch.randn(B, T, sum(widths(V, K, calibrated, shortcut)) + (B - 1) * 3, generator=generator).to(device)
    results = []
    for run in (gates_reference, gates_triton):
        leaf = P.clone().requires_grad_()
        outputs = [x for x in run(leaf, V, K, normalize, calibrated, shortcut, softness) if x is not None]
        weights = [torch.linspace(-1, 1, x.numel(), device=device).reshape(x.shape) for x in outputs]
        (grad,) = torch.autograd.grad(sum((x * w).sum() for x, w in zip(outputs, weights, strict=True)), leaf)
        results.append([*outputs, grad])
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.skipif("triton" not in backends(), reason="triton cannot run here")
@pytest.mark.parametrize("softness", [0.0, 0.1])
def test_nan_and_infinity_pass_as_in_the_reference(softness):
    from hadamem.kernels.gates.triton import gates_triton

    device = "cuda" if torch.cuda.is_available() else "cpu"
    P = torch.randn(1, 3, 18, device=device)
    P[0, 0, 1], P[0, 1, 2] = float("nan"), float("-inf")
    args = P, 4, 3, True, True, True, softness
    for got, want in zip(gates_triton(*args), gates_reference(*args), strict=True):
        assert got is not None
        assert want is not None
        torch.testing.assert_close(got, want, equal_nan=True)


def test_other_dtypes_take_the_plain_path():
    P = torch.randn(1, 2, 21, dtype=torch.float64)
    assert all(x is not None and x.dtype == torch.float64 for x in gates(P, 4, 4, True, True, True))
