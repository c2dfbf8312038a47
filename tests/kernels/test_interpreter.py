"""Triton's interpreter as tests/interpreter.py changes it computes what it did before."""

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton import language as tl

if torch.cuda.is_available():
    pytest.skip("kernels are compiled here", allow_module_level=True)


@triton.jit
def _later_and_larger(a, x, b, y):
    return 0.5 * a + b, tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _reduce(X, Y, Z, AXIS: tl.constexpr, KEEP: tl.constexpr):
    at = tl.arange(0, 4)[:, None, None] * 16 + tl.arange(0, 2)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    x = tl.load(X + at)
    total, largest = tl.reduce((x, x.to(tl.float64)), AXIS, _later_and_larger, keep_dims=KEEP)
    zeros = tl.zeros((4, 2, 8), tl.float32)
    if not KEEP:
        total, largest = tl.expand_dims(total, AXIS), tl.expand_dims(largest, AXIS)
    tl.store(Y + at, zeros + total)
    tl.store(Z + at, zeros.to(tl.float64) + largest)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_reductions_are_the_same(monkeypatch, axis, keep):
    from triton.runtime.interpreter import ReduceOps

    x = torch.randn(4, 2, 8)
    x[1, 0, 3], x[2, 1, 5] = float("nan"), float("inf")
    both = []
    for reduce in (ReduceOps.generic_reduce, ReduceOps.generic_reduce.original):
        monkeypatch.setattr(ReduceOps, "generic_reduce", reduce)
        y, z = torch.zeros(4, 2, 8), torch.zeros(4, 2, 8, dtype=torch.float64)
        _reduce[(1,)](x, y, z, axis, keep)
        both.append((y, z))
    assert not both[0][0].isfinite().all()
    torch.testing.assert_close(both[0], both[1], rtol=0, atol=0, equal_nan=True)
