"""The readout: the fused kernel computes what the plain PyTorch steps do."""

import itertools

import pytest
import torch

from hadamem.kernels import backends
from hadamem.kernels.readout.reference import readout_reference


@pytest.mark.skipif("triton" not in backends(), reason="triton cannot run here")
@pytest.mark.parametrize("eps", [1e-5, None])
@pytest.mark.parametrize(("shortcut", "bias", "out_bias"), list(itertools.product((True, False), repeat=3)))
def test_triton_matches_reference(shortcut, bias, out_bias, eps):
    from hadamem.kernels.readout.triton import readout_triton

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for B, T, V, O in ((1, 1, 4, 3), (3, 2, 24, 40)):
        h, s, b, weight, c = (torch.randn(*shape, device=device) for shape in ((B, T, V), (B, T, V), (V,), (O, V), (O,)))
        args = (h, s if shortcut else None, b if bias else None, weight, c if out_bias else None, eps)
        torch.testing.assert_close(readout_triton(*args), readout_reference(*args), rtol=1e-5, atol=1e-5)
