"""Adam on a flat vector: the fused kernel and the reference do what torch's Adam does after clip_grad_norm_."""

import math

import pytest
import torch

from hadamem.kernels import backends
from hadamem.kernels.adam import AdamState, adam
from hadamem.kernels.adam.reference import adam_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ["reference", pytest.param("triton", marks=pytest.mark.skipif("triton" not in backends(), reason="triton cannot run here"))]


def scalar(x):
    return torch.tensor(float(x), device=DEVICE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 5, 1024, 3001])
@pytest.mark.parametrize("max_norm", [0.5, math.inf])
def test_agrees_with_torch(backend, size, max_norm):
    start = torch.randn(size, device=DEVICE)
    state = AdamState.of(start.clone())
    wanted = torch.nn.Parameter(start.double())
    torch_adam = torch.optim.Adam([wanted], lr=1e-2, eps=1e-6)
    size_of_mean = torch.zeros_like(wanted)      # the mean of the gradients' sizes: where signs cancel, the mean is as exact as that allows
    for i in range(8):
        grad = torch.randn(size, device=DEVICE) * 10.0 ** (i - 4)
        adam(state, grad, scalar(1e-2), scalar(0), scalar(0), max_norm, 1e-6, backend)
        wanted.grad = grad.double()
        norm = torch.nn.utils.clip_grad_norm_([wanted], max_norm)
        torch_adam.step()
        size_of_mean = 0.9 * size_of_mean + 0.1 * wanted.grad.abs()
        torch.testing.assert_close(state.norm.double(), norm, rtol=1e-6, atol=0)
        torch.testing.assert_close(state.param.double(), wanted.data, rtol=1e-5, atol=1e-6)
    own = torch_adam.state[wanted]
    torch.testing.assert_close(state.exp_avg_sq.double(), own["exp_avg_sq"], rtol=1e-5, atol=1e-9)
    assert ((state.exp_avg.double() - own["exp_avg"]).abs() <= 1e-6 * size_of_mean).all()
    assert state.steps == 8
    assert state.skip == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("loss", "blocked", "entry"), [(math.nan, 0, 1.0), (math.inf, 0, 1.0), (0, 1, 1.0), (0, 0, math.inf),
                                                        (0, 0, math.nan), (-math.inf, 1, math.nan)])
def test_what_is_not_finite_is_skipped(backend, loss, blocked, entry):
    state = AdamState.of(torch.randn(2000, device=DEVICE))
    grad = torch.randn(2000, device=DEVICE)
    adam(state, grad, scalar(1e-2), scalar(0), scalar(0), 0.5, 1e-8, backend)
    before = [x.clone() for x in state[:4]]
    grad[1234] = entry
    adam(state, grad, scalar(1e-2), scalar(loss), scalar(blocked), 0.5, 1e-8, backend)
    assert state.skip == 1
    for x, y in zip(before, state[:4], strict=True):
        assert torch.equal(x, y)


@pytest.mark.skipif("triton" not in backends(), reason="triton cannot run here")
def test_a_long_vector_has_several_rounds(monkeypatch):
    """Each program of the first kernel then sums several blocks."""
    from hadamem.kernels.adam import triton as module

    monkeypatch.setattr(module, "MOST_SUMS", 2)
    grad = torch.randn(5 * module.BLOCK + 7, device=DEVICE)
    states = [AdamState.of(grad.sin()) for _ in range(2)]
    for state, run in zip(states, (module.adam_triton, adam_reference), strict=True):
        run(state, grad, scalar(1e-3), scalar(0), scalar(0), 0.5, 1e-8)
    for x, y in zip(*states, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-7)
