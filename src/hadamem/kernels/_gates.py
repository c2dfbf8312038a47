"""Triton functions for recurrent layers that launch one kernel per step: the products with the recurrent weights.

A program has N units of R batch rows, and multiplies the whole state of these rows with its part of the weights. Every gate's product is
cut into S parts, and every warp has one of these, C numbers of the state at a time; a layer with three gates has a fourth of zeros.

Where the GPU can, a step is launched while the one before still runs (programmatic dependent launch): it loads its first weights and then
waits for the other. The first step of a sequence is launched as usual, so that whatever wrote the weights has ended by then.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._backends import interpreting

# benchmarks/rnn_steps.py compares others. DOT: the products on tensor cores, each in three, which keep all but the last digit of float32.
PLAN = {"R": 16, "N": 8, "S": 2, "C": 128, "DOT": "tf32x3", "num_warps": 8}
OVERLAP = True


def plan(like: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options for launches on the device of `like`: for the first step, and for the steps after it."""
    part = triton.next_power_of_2(triton.cdiv(like.shape[-1], PLAN["S"]))
    first = PLAN | {"C": min(PLAN["C"], max(16, part)), "OVERLAP": False}
    if torch.version.hip:
        first["DOT"] = "ieee"
    if not OVERLAP or interpreting() or not _can_overlap(like.device):
        return first, first
    return first, first | {"OVERLAP": True, "launch_pdl": True}


@functools.cache
def _can_overlap(device: torch.device) -> bool:
    return not torch.version.hip and torch.cuda.get_device_capability(device) >= (9, 0) and hasattr(tl.extra.cuda, "gdc_wait")


def grid(groups: int, rows: int, H: int) -> tuple[int, int]:
    """The programs for `groups` weights of `rows` batch rows each."""
    return groups * triton.cdiv(rows, PLAN["R"]), triton.cdiv(H, PLAN["N"])


@triton.jit
def place(rows, H, R: tl.constexpr, N: tl.constexpr):
    """Batch rows b [R] and units i [N] of this program, which of them exist, and the group whose weights they share. Grid: `grid`."""
    blocks = (rows + R - 1) // R
    group = (tl.program_id(0) // blocks).to(tl.int64)
    r = tl.program_id(0) % blocks * R + tl.arange(0, R)
    i = tl.program_id(1) * N + tl.arange(0, N)
    return group * rows + r, r < rows, i, i < H, group


@triton.jit
def take_turn():
    """Wait until the step before is done; then let the next one start, which waits here in turn."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def numbers(X, at, ok, fresh):
    """X[at] [R, K], where rows exist and are not fresh; 0 elsewhere. at [R, K], ok [R, K], fresh [R]."""
    return tl.where(fresh[:, None] != 0, 0.0, tl.load(X + at, mask=ok, other=0.0))


@triton.jit
def parts(S: tl.constexpr, C: tl.constexpr):
    """The gate [4S] of every part, and the C numbers of the state that it begins with [4S, C]."""
    part = tl.arange(0, 4 * S)
    return part // S, (part % S * C)[:, None] + tl.arange(0, C)[None, :]


@triton.jit
def tiles(W, gate, k, i, i_ok, H, GATES: tl.constexpr, BACK: tl.constexpr):
    """[4S, C, N]: every gate's weights from state numbers k [4S, C] to units i [N]; with BACK from gates k to state numbers i."""
    ok = ((k < H) & (gate < GATES)[:, None])[:, :, None] & i_ok[None, None, :]
    if BACK:
        at = k[:, :, None] * H + i[None, None, :]
    else:
        at = k[:, :, None] + i[None, None, :] * H
    return tl.load(W + gate[:, None, None] * (H * H) + at, mask=ok, other=0.0)


@triton.jit
def states(X, at, k, b_ok, fresh, H):
    """[4S, R, C]: numbers k [4S, C] of X, for rows that begin at `at` [4S or 1, R]; 0 for rows that do not exist or are fresh."""
    ok = (b_ok & (fresh == 0))[None, :, None] & (k < H)[:, None, :]
    return tl.load(X + at[:, :, None] + k[:, None, :], mask=ok, other=0.0)


@triton.jit
def products(X, at, W, i, i_ok, b_ok, fresh, H: tl.constexpr, R: tl.constexpr, N: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
             DOT: tl.constexpr, GATES: tl.constexpr, BACK: tl.constexpr, OVERLAP: tl.constexpr):
    """[4S, R, N]: the parts of every gate's product with the H numbers at X + at [4S or 1, R], which the step before has written."""
    gate, k = parts(S, C)
    weights = tiles(W, gate, k, i, i_ok, H, GATES, BACK)
    total = tl.zeros((4 * S, R, N), tl.float32)
    if OVERLAP:
        take_turn()
    for _ in range(0, H, S * C):
        total = tl.dot(states(X, at, k, b_ok, fresh, H), weights, total, input_precision=DOT)
        k += S * C
        weights = tiles(W, gate, k, i, i_ok, H, GATES, BACK)
    return total


@triton.jit
def by_gate(total, S: tl.constexpr, R: tl.constexpr, N: tl.constexpr):
    """The four gates [R, N] of `total` [4S, R, N]."""
    x = tl.sum(tl.reshape(total, (4, S, R, N)), axis=1)
    even, odd = tl.split(tl.reshape(tl.permute(x, (1, 2, 0)), (R, N, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth
