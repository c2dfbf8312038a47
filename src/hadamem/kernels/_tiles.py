"""Triton functions for recurrent layers that fit into the registers of one processor: a program walks a batch row through all steps.

The recurrent weights stay in registers, as one P x P tile for each gate (P: H padded to a power of two). A tile is loaded as [P, C, K],
which makes Triton give K / 4 lanes of a warp to a row, four neighbouring columns at a time, and leave the rest of the columns to registers.
So most of a product's sum is added up inside a thread, and few shuffles follow. In a backward pass the tiles are the transposed weights, so
that its sums run along columns too. Only speed depends on that layout.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from ._backends import interpreting
from ._ops import on_device


@triton.jit
def tanh(x):
    """tanh to the last digits: a series near 0, where the other form cancels."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-1.0 / 3 + s * (2.0 / 15 + s * (-17.0 / 315))))
    return tl.where(s < 0.04, near, tl.where(x < 0.0, -far, far))


@triton.jit
def tile(W, P: tl.constexpr, K: tl.constexpr):
    """The P x P numbers at W."""
    i = tl.arange(0, P)[:, None, None]
    c = tl.arange(0, P // K)[None, :, None]
    k = tl.arange(0, K)[None, None, :]
    return tl.reshape(tl.load(W + i * P + c * K + k), (P, P))


@triton.jit
def times(W, x):
    """W x [P]."""
    return tl.sum(W * x[None, :], axis=1)


def padded_size(H: int) -> int:
    """P."""
    return max(16, triton.next_power_of_2(H))


def padded(W: Tensor) -> Tensor:
    """W [G, gates, H, H] with zeros up to the padded size, contiguous, at an address that suits the widest loads."""
    H = W.shape[-1]
    missing = padded_size(H) - H
    if missing:
        return F.pad(W, (0, missing, 0, missing))
    return W if W.is_contiguous() and W.data_ptr() % 16 == 0 else W.clone(memory_format=torch.contiguous_format)


def launch(kernel: Any, plans: dict[int, tuple[int, int]], groups: int, like: Tensor, tensors: tuple[Tensor, ...], **options: bool) -> None:
    """Start a program for every batch row of `like` [B, T, H]. Plans, by padded size: K, and warps."""
    B, T, H = like.shape
    P = padded_size(H)
    K, warps = plans[P]
    with on_device(like):
        kernel[(B,)](*tensors, T, B // groups, H=H, P=P, K=K, FAST=not interpreting(), num_warps=warps, **options)
