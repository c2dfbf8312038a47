"""The `triton` backend of SHM's gates: one pass over the projection each way. Every program handles one step of one batch row."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._ops import fold_batch, forbid_double_backward, is_plain, on_device
from .reference import widths

EPS = tl.constexpr(1e-5)


@triton.jit
def _positive(x, ok, softness, SOFT: tl.constexpr):
    """relu(x), or its smooth form, and the slope there; nan passes."""
    if SOFT:
        slope = tl.exp(tl.where(x >= 0, 0.0, x) / softness)
        return tl.where(ok, tl.where(x <= 0, 0.0, x) + softness * slope, 0.0), slope
    else:
        return tl.where(x <= 0, 0.0, x), tl.where(x > 0, 1.0, 0.0)


@triton.jit
def forward_kernel(P, KO, QO, VO, CO, SO, softness, V: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, ETA: tl.constexpr,
                   NORMALIZE: tl.constexpr, SOFT: tl.constexpr, CALIBRATED: tl.constexpr, SHORTCUT: tl.constexpr, BV: tl.constexpr,
                   BK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    P += n * WIDTH
    i = tl.arange(0, BV)
    j = tl.arange(0, BK)
    row_ok = i < V
    col_ok = j < K
    k = tl.load(P + j, mask=col_ok, other=0.0)
    q = tl.load(P + K + j, mask=col_ok, other=0.0)
    if NORMALIZE:
        k, _ = _positive(k, col_ok, softness, SOFT)
        q, _ = _positive(q, col_ok, softness, SOFT)
        k = k / (EPS + tl.sum(k, axis=0))
        q = q / (EPS + tl.sum(q, axis=0))
    tl.store(KO + n * K + j, k, mask=col_ok)
    tl.store(QO + n * K + j, q, mask=col_ok)
    v = tl.load(P + 2 * K + i, mask=row_ok, other=0.0)
    eta = tl.load(P + ETA)
    tl.store(VO + n * V + i, tl.sigmoid(eta) * v, mask=row_ok)
    if CALIBRATED:
        tl.store(CO + n * K + j, tl.load(P + 2 * K + V + j, mask=col_ok, other=0.0), mask=col_ok)
    if SHORTCUT:
        tl.store(SO + n * V + i, tl.load(P + ETA - V + i, mask=row_ok, other=0.0), mask=row_ok)


@triton.jit
def _through_norm(x, dx, ok, softness, NORMALIZE: tl.constexpr, SOFT: tl.constexpr):
    """Gradient of r(x) / (eps + sum r(x)) with respect to x, r being relu or its smooth form."""
    if NORMALIZE:
        r, slope = _positive(x, ok, softness, SOFT)
        total = EPS + tl.sum(r, axis=0)
        dx = (dx - tl.sum(dx * r, axis=0) / total) / total
        return tl.where(slope > 0, dx * slope, 0.0)
    else:
        return dx


@triton.jit
def backward_kernel(P, DKO, DQO, DVO, DCO, DSO, DP, softness, V: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, ETA: tl.constexpr,
                    NORMALIZE: tl.constexpr, SOFT: tl.constexpr, CALIBRATED: tl.constexpr, SHORTCUT: tl.constexpr, BV: tl.constexpr,
                    BK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    P += n * WIDTH
    DP += n * WIDTH
    i = tl.arange(0, BV)
    j = tl.arange(0, BK)
    row_ok = i < V
    col_ok = j < K
    k = tl.load(P + j, mask=col_ok, other=0.0)
    q = tl.load(P + K + j, mask=col_ok, other=0.0)
    dk = tl.load(DKO + n * K + j, mask=col_ok, other=0.0)
    dq = tl.load(DQO + n * K + j, mask=col_ok, other=0.0)
    tl.store(DP + j, _through_norm(k, dk, col_ok, softness, NORMALIZE, SOFT), mask=col_ok)
    tl.store(DP + K + j, _through_norm(q, dq, col_ok, softness, NORMALIZE, SOFT), mask=col_ok)
    v = tl.load(P + 2 * K + i, mask=row_ok, other=0.0)
    dv = tl.load(DVO + n * V + i, mask=row_ok, other=0.0)
    gate = tl.sigmoid(tl.load(P + ETA))
    tl.store(DP + 2 * K + i, gate * dv, mask=row_ok)
    tl.store(DP + ETA, gate * (1 - gate) * tl.sum(dv * v, axis=0))
    if CALIBRATED:
        tl.store(DP + 2 * K + V + j, tl.load(DCO + n * K + j, mask=col_ok, other=0.0), mask=col_ok)
    for rest in tl.static_range(ETA + 1, WIDTH):
        tl.store(DP + rest, 0.0)
    if SHORTCUT:
        tl.store(DP + ETA - V + i, tl.load(DSO + n * V + i, mask=row_ok, other=0.0), mask=row_ok)


def _launch(kernel: Any, P: Tensor, V: int, K: int, normalize: bool, calibrated: bool, shortcut: bool, softness: float,
            *tensors: Tensor) -> None:
    B, T, width = P.shape
    with on_device(P):
        kernel[(B * T,)](P, *tensors, softness, V=V, K=K, WIDTH=width, ETA=sum(widths(V, K, calibrated, shortcut)) - 1,
                         NORMALIZE=normalize, SOFT=softness > 0, CALIBRATED=calibrated, SHORTCUT=shortcut,
                         BV=triton.next_power_of_2(V), BK=triton.next_power_of_2(K), num_warps=1)


def _forward(P: Tensor, V: int, K: int, normalize: bool, calibrated: bool, shortcut: bool,
             softness: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    k, q, v, vc, s = outputs = _outputs(P, V, K, normalize, calibrated, shortcut, softness)
    _launch(forward_kernel, P.contiguous(), V, K, normalize, calibrated, shortcut, softness, k, q, v, vc, s)
    return outputs


def _backward(P: Tensor, V: int, K: int, normalize: bool, calibrated: bool, shortcut: bool, softness: float,
              dk: Tensor, dq: Tensor, dv: Tensor, dvc: Tensor, ds: Tensor) -> Tensor:
    dP = torch.empty_like(P, memory_format=torch.contiguous_format)
    grads = [x.contiguous() for x in (dk, dq, dv, dvc, ds)]
    _launch(backward_kernel, P.contiguous(), V, K, normalize, calibrated, shortcut, softness, *grads, dP)
    return dP


def _outputs(P: Tensor, V: int, K: int, normalize: bool, calibrated: bool, shortcut: bool,
             softness: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, _ = P.shape
    k, q, v, vc, s = (P.new_empty(B, T, width) if width else P.new_empty(0) for width in widths(V, K, calibrated, shortcut)[:5])
    return k, q, v, vc, s


_op = torch.library.custom_op("hadamem::gates_triton", _forward, mutates_args=())
_grad_op = torch.library.custom_op("hadamem::gates_triton_backward", _backward, mutates_args=())
_op.register_fake(_outputs)
_grad_op.register_fake(lambda P, *args: torch.empty_like(P, memory_format=torch.contiguous_format))


def _keep(ctx, inputs, output=None):
    P, *ctx.options = inputs
    ctx.save_for_backward(P)


def _differentiate(ctx, *grads, run=_grad_op):
    return (run(*ctx.saved_tensors, *ctx.options, *grads), None, None, None, None, None, None)


_op.register_autograd(_differentiate, setup_context=_keep)
forbid_double_backward(_grad_op, "gates", "triton")
fold_batch(_op, outputs=5)
fold_batch(_grad_op, outputs=1)


class _Eager(torch.autograd.Function):
    """The same without the operator's cost."""

    @staticmethod
    def forward(ctx, *inputs):
        _keep(ctx, inputs)
        return _forward(*inputs)

    @staticmethod
    def backward(ctx, *grads):
        return _differentiate(ctx, *grads, run=_grad_op if torch.is_grad_enabled() else _backward)


def gates_triton(P: Tensor, V: int, K: int, normalize: bool, calibrated: bool, shortcut: bool, softness: float = 0.0):
    """See `gates`."""
    run = _Eager.apply if is_plain(P) else _op
    k, q, v, vc, s = run(P, V, K, normalize, calibrated, shortcut, softness)
    return k, q, v, vc if calibrated else None, s if shortcut else None
