"""The `triton` backend of the readout: a program per step and batch row, for a few of them and without gradient."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .._ops import on_device


@triton.jit
def readout_kernel(H, S, BIAS, WEIGHT, OUT_BIAS, Y, V: tl.constexpr, O: tl.constexpr, EPS: tl.constexpr, HAS_S: tl.constexpr,
                   HAS_BIAS: tl.constexpr, HAS_OUT_BIAS: tl.constexpr, BV: tl.constexpr, BO: tl.constexpr):
    """Grid (rows, blocks of outputs)."""
    n = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BV)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    i_ok = i < V
    o_ok = o < O
    weight = tl.load(WEIGHT + o[:, None] * V + i[None, :], mask=o_ok[:, None] & i_ok[None, :], other=0.0)
    h = tl.load(H + n * V + i, mask=i_ok, other=0.0)
    if EPS is not None:
        h = tl.where(i_ok, h - tl.sum(h, axis=0) / V, 0.0)
        h = h * tl.rsqrt(tl.sum(h * h, axis=0) / V + EPS)
    if HAS_BIAS:
        h += tl.load(BIAS + i, mask=i_ok, other=0.0)
    if HAS_S:
        h += tl.load(S + n * V + i, mask=i_ok, other=0.0)
    y = tl.sum(weight * h[None, :], axis=1)
    if HAS_OUT_BIAS:
        y += tl.load(OUT_BIAS + o, mask=o_ok, other=0.0)
    tl.store(Y + n * O + o, y, mask=o_ok)


def readout_triton(h: Tensor, shortcut: Tensor | None, bias: Tensor | None, weight: Tensor, out_bias: Tensor | None,
                   eps: float | None) -> Tensor:
    """See `readout`."""
    B, T, V = h.shape
    O = weight.shape[0]
    h, weight = h.contiguous(), weight.contiguous()
    shortcut = None if shortcut is None else shortcut.contiguous()
    y = h.new_empty(B, T, O)
    BO = min(triton.next_power_of_2(O), 32)
    with on_device(h):
        readout_kernel[(B * T, triton.cdiv(O, BO))](
            h, h if shortcut is None else shortcut, h if bias is None else bias, weight, h if out_bias is None else out_bias, y,
            V=V, O=O, EPS=eps, HAS_S=shortcut is not None, HAS_BIAS=bias is not None, HAS_OUT_BIAS=out_bias is not None,
            BV=triton.next_power_of_2(V), BO=BO, num_warps=4,
        )
    return y
