"""Triton functions for recurrent layers that launch one kernel per step: the products with the recurrent weights.

A program has N units of R batch rows. It multiplies their whole state of H numbers with its part of the weights, C columns at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

PLAN = {"R": 16, "N": 16, "C": 64, "num_warps": 4}     # benchmarks/rnn_steps.py compares others


@triton.jit
def place(rows, H, R: tl.constexpr, N: tl.constexpr):
    """Batch rows b [R] and units i [N] of this program, which of them exist, and the group whose weights they share. Grid: `grid`."""
    blocks = (rows + R - 1) // R
    group = (tl.program_id(1) // blocks).to(tl.int64)
    r = tl.program_id(1) % blocks * R + tl.arange(0, R)
    i = tl.program_id(0) * N + tl.arange(0, N)
    return group * rows + r, r < rows, i, i < H, group


def grid(groups: int, rows: int, H: int) -> tuple[int, int]:
    """The programs for `groups` weights of `rows` batch rows each."""
    return triton.cdiv(H, PLAN["N"]), groups * triton.cdiv(rows, PLAN["R"])


@triton.jit
def numbers(X, at, ok, fresh):
    """X[at] [R, K], where rows exist and are not fresh; 0 elsewhere. at [R, K], ok [R, K], fresh [R]."""
    return tl.where(fresh[:, None] != 0, 0.0, tl.load(X + at, mask=ok, other=0.0))


@triton.jit
def forward_tile(W, i, i_ok, k, k_ok, H):
    """The weights from columns k to rows i, [K, N]."""
    return tl.load(W + i[None, :] * H + k[:, None], mask=i_ok[None, :] & k_ok[:, None], other=0.0)


@triton.jit
def backward_tile(W, i, i_ok, k, k_ok, H):
    """The weights from rows k to columns i, [K, N]: the transposed ones."""
    return tl.load(W + k[:, None] * H + i[None, :], mask=i_ok[None, :] & k_ok[:, None], other=0.0)


@triton.jit
def times(x, W):
    """x [R, K] W [K, N] in full float32."""
    return tl.dot(x, W, input_precision="ieee")
