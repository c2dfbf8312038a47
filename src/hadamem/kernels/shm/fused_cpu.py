"""SHM's recurrence fused for CPUs (numba): C_t and U_t exist for two rows and one chunk of steps, in the cache, only.

Saves: the [B, T, V, K] tensors of `scan` and `reference`, and most of their time: a cell is multiplied, added to and
summed up in one vectorised pass. The backward starts from the memory kept at every `interval`-th step and recomputes
the rest. Loses: compiling takes some seconds, once per machine where a cache can be written; tiny problems are
dominated by the call; steps run one after another, so a single narrow memory (B = 1, V <= 32) keeps one core busy; no
second derivative.

Results do not depend on the number of threads, nor on what else is in the batch: V and K alone fix the order of sums.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._numba import array, arrays, parallel, split
from .cpu_kernels import BAND, RECORD, ROWS, STEP, run_backward, run_forward
from .curves_cpu import make_curve
from .forms import find_form
from .op import make_op

WHOLE_ROWS = 8   # from this batch size on, the backward gives each thread whole batch rows and needs no partial sums


def interval(T: int) -> int:
    """Steps between two checkpoints of the memory."""
    return 32


@functools.cache
def _numbers(dtype: torch.dtype, clip: float | None, calibration: str) -> tuple[Any, ...]:
    """rate, gain, curve, clip, room as the kernels take them: C = squash(rate z, curve)."""
    gain = find_form(calibration).gain
    number = np.float64 if dtype == torch.float64 else np.float32
    limit = None if clip is None else number(clip)
    room = None if clip is None else number(0.999 * clip)   # rounding may take a memory a little further than its bound
    return number(-gain * math.log2(math.e)), number(gain), make_curve(calibration, number), limit, room


def _flags(reset: Tensor | None) -> Tensor:
    return torch.empty(0, 0, dtype=torch.bool, device="cpu") if reset is None else reset


def forward(
    theta: Tensor | None, vc: Tensor | None, v: Tensor, k: Tensor, q: Tensor, M0: Tensor | None, reset: Tensor | None,
    clip: float | None, calibration: str, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `make_op`."""
    B, T, V = v.shape
    K, S = k.shape[-1], interval(T)
    h, M = v.new_empty(B, T, V), v.new_empty(B, V, K)
    checkpoints = v.new_empty(B, -(-T // S), V, K) if save else v.new_empty(0)
    rate, _, curve, limit, room = _numbers(v.dtype, clip, calibration)
    inputs = arrays(theta, vc, v, k, q, M0, _flags(reset), like=v)
    outputs = arrays(h, M, checkpoints.flatten(0, 1) if save else None, like=v)
    args = (*inputs, rate, curve, limit, room, S, *outputs)

    units, cells = B * -(-V // BAND), B * T * V * K
    scratch = array(v.new_empty(split(units, cells)[1], _round_up(ROWS + STEP * min(S, T))))

    def work(piece: int, first: int, last: int) -> None:
        run_forward(*args, scratch[piece], first, last)

    parallel(work, units, cells)
    return h, M, checkpoints


def backward(
    theta: Tensor | None, vc: Tensor | None, v: Tensor, k: Tensor, q: Tensor, M0: Tensor | None, reset: Tensor | None,
    clip: float | None, calibration: str, checkpoints: Tensor, dh: Tensor, dM: Tensor,
) -> tuple[Tensor, ...]:
    """See `make_op`."""
    B, T, V = v.shape
    K, S = k.shape[-1], interval(T)
    parts = 1 if B >= WHOLE_ROWS else -(-V // BAND)
    dM0 = dM.detach().clone(memory_format=torch.contiguous_format)
    dtheta = None if theta is None else v.new_empty(theta.shape)
    dvc = None if vc is None else v.new_empty(B * parts, T, K)
    dv, dk, dq = v.new_empty(B, T, V), v.new_empty(B * parts, T, K), v.new_empty(B * parts, T, K)
    rate, gain, curve, limit, room = _numbers(v.dtype, clip, calibration)
    inputs = arrays(theta, vc, v, k, q, _flags(reset), checkpoints.flatten(0, 1), dh, like=v)
    outputs = arrays(dM0, dtheta, dvc, dv, dk, dq, like=v)
    args = (*inputs, rate, gain, curve, limit, room, S, *outputs)

    units, cells = B * parts, 2 * B * T * V * K
    scratch = array(v.new_empty(split(units, cells)[1], _round_up(RECORD * (min(S, T) + 1))))

    def work(piece: int, first: int, last: int) -> None:
        run_backward(*args, scratch[piece], first, last)

    parallel(work, units, cells)
    grads = (dtheta, _sum_parts(dvc, B), dv, _sum_parts(dk, B), _sum_parts(dq, B), None if M0 is None else dM0)
    return tuple(v.new_empty(0) if x is None else x for x in grads)


def _round_up(n: int) -> int:
    """Room for n numbers, to whole cache lines: threads must not share one."""
    return -(-n // 16) * 16


def _sum_parts(x: Tensor | None, B: int) -> Tensor | None:
    """[B * parts, T, K] -> [B, T, K], first part first: the order in which a whole row adds up its bands."""
    if x is None or x.shape[0] == B:
        return x
    x = x.unflatten(0, (B, -1))
    total = x[:, 0] + x[:, 1]
    for part in range(2, x.shape[1]):
        total += x[:, part]
    return total


shm_cpu = make_op("cpu", forward, backward, interval)
