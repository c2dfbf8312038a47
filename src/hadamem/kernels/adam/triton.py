"""The `triton` backend of Adam: a kernel that sums squares of the gradient by blocks, and one that adds these up and updates."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from .._ops import on_device
from .reference import BETAS

if TYPE_CHECKING:
    from . import AdamState

BLOCK = 1024          # numbers that a program handles at a time
MOST_SUMS = 1024      # partial sums; each program of the second kernel adds up all of them


@triton.jit
def squares_kernel(GRAD, SUMS, COUNT, BEFORE, N, ROUNDS, BLOCK: tl.constexpr):
    """Program i: the sum of squares of ROUNDS blocks, from block i * ROUNDS on. The first one also notes the count of steps so far."""
    i = tl.program_id(0)
    if i == 0:
        tl.store(BEFORE, tl.load(COUNT))
    total = tl.zeros((BLOCK,), tl.float32)
    for r in range(ROUNDS):
        at = (i * ROUNDS + r).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        g = tl.load(GRAD + at, mask=at < N, other=0.0)
        total += g * g
    tl.store(SUMS + i, tl.sum(total, axis=0))


@triton.jit
def update_kernel(PARAM, MEAN, SQUARE, COUNT, NORM, SKIP, GRAD, SUMS, BEFORE, RATE, LOSS, BLOCKED, LOGS, N, S, max_norm, eps,
                  beta2, left1, left2, SP: tl.constexpr, BLOCK: tl.constexpr):
    """Program i updates block i. LOGS: log2 of both betas, in float64; left1, left2: 1 - beta, which float32 cannot subtract."""
    i = tl.program_id(0)
    s = tl.arange(0, SP)
    norm = tl.sqrt(tl.sum(tl.load(SUMS + s, mask=s < S, other=0.0), axis=0))
    check = norm + tl.load(LOSS)
    good = (check - check == 0.0) & (tl.load(BLOCKED) == 0.0)      # inf - inf is nan
    before = tl.load(BEFORE)
    if i == 0:
        tl.store(NORM, norm)
        tl.store(SKIP, tl.where(good, 0.0, 1.0))
        tl.store(COUNT, tl.where(good, before + 1.0, before))
    if good:
        count = before.to(tl.float64) + 1.0
        bias1 = (1.0 - tl.exp2(count * tl.load(LOGS))).to(tl.float32)
        bias2 = (1.0 - tl.exp2(count * tl.load(LOGS + 1))).to(tl.float32)
        at = i.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        ok = at < N
        g = tl.load(GRAD + at, mask=ok, other=0.0) * tl.minimum(max_norm / (norm + 1e-6), 1.0)
        mean = tl.load(MEAN + at, mask=ok, other=0.0)
        mean += left1 * (g - mean)
        square = beta2 * tl.load(SQUARE + at, mask=ok, other=0.0) + left2 * g * g
        change = (tl.load(RATE) / bias1) * mean / (tl.sqrt(square) / tl.sqrt(bias2) + eps)
        tl.store(PARAM + at, tl.load(PARAM + at, mask=ok, other=0.0) - change, mask=ok)
        tl.store(MEAN + at, mean, mask=ok)
        tl.store(SQUARE + at, square, mask=ok)


@functools.cache
def _logs(device: torch.device) -> Tensor:
    return torch.tensor([math.log2(beta) for beta in BETAS], dtype=torch.float64, device=device)


@torch.no_grad()
def adam_triton(state: AdamState, grad: Tensor, rate: Tensor, loss: Tensor, blocked: Tensor, max_norm: float, eps: float) -> None:
    """See `adam`. float32 alone."""
    N = grad.numel()
    blocks = triton.cdiv(N, BLOCK)
    rounds = triton.cdiv(blocks, MOST_SUMS)
    S = triton.cdiv(blocks, rounds)
    sums, before = grad.new_empty(S), grad.new_empty(1)
    with on_device(grad):
        squares_kernel[(S,)](grad, sums, state.steps, before, N, rounds, BLOCK=BLOCK)
        update_kernel[(blocks,)](*state, grad, sums, before, rate, loss, blocked, _logs(grad.device), N, S, max_norm, eps,
                                 BETAS[1], *(1 - beta for beta in BETAS), SP=max(16, triton.next_power_of_2(S)), BLOCK=BLOCK)
