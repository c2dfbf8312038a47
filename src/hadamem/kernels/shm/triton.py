"""The `triton` backend: SHM's recurrence fused on the GPU, the memory in registers, vectors in, checkpoints out.

Saves everything the plain loop moves through memory, and runs parallel over time where the batch alone does not fill the GPU: each
segment of a sequence is summed up as x -> P x + Q, the summaries are chained, then all segments run at once. A clip is not linear, so
with one the forward runs from end to end; the backward is linear all the same. It has a second form of its kernels for calls in which a
write passed the limit, and the first for all others, so that there a limit costs two launches that find nothing to do. Loses on tiny
problems, where a launch costs more than the work. Gradients are sums in a fixed order: no atomics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._backends import interpreting
from .._ops import as_bytes, on_device
from . import triton_gradients as gradients
from . import triton_kernels as kernels
from . import triton_segments
from .forms import find_form
from .op import make_op

INTERVAL = 8      # steps between checkpoints of M
SHORTEST = 32     # steps of a segment: fewer are not worth their summary
LONGEST = 64      # more, and a product of C <= 2 comes near overflow
FILL = 1024       # programs, of one warp each, that keep a large GPU busy
ENOUGH = 600      # and that keep it busy enough not to pay for more of them


@dataclass(frozen=True)
class Plan:
    """How a problem of one shape is cut into programs: tiles of R rows times G runs of W columns."""

    G: int
    R: int
    W: int
    N: int              # steps unrolled together, at most T
    length: int         # steps of a segment, a multiple of INTERVAL
    segments: int = 1
    bands: int = 1      # row bands that one program of the backward walks through
    groups: int = 1     # groups of row bands, each a program
    strips: int = 1     # column bands
    warps: int = 1      # of a program
    registers: int | None = None      # per thread, at most; None: the assembler decides

    @property
    def tile(self) -> dict[str, Any]:
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"N": self.N, "G": self.G, "R": self.R, "W": self.W, "num_warps": self.warps, **limit}


class Limit(NamedTuple):
    """What it takes to find out where writes were limited to ±clip."""

    clip: float
    v: Tensor
    k: Tensor
    checkpoints: Tensor
    largest: Tensor     # a single number: the largest |entry| ever written, before its limit


def find_limit(clip: float | None, v: Tensor, k: Tensor, checkpoints: Tensor) -> Limit | None:
    """`largest` is made of the forward's notes, one for each row of M, which lie behind the last checkpoint."""
    if clip is None:
        return None
    return Limit(clip, v, k, checkpoints, checkpoints[:, -1].flatten(1)[:, : v.shape[-1]].amax())


def plan_forward(B: int, T: int, V: int, K: int, clip: float | None) -> Plan:
    if T == 1 or (B * V >= 4096 and T > 256):
        tile, N = _tile(V, K, 4), 1             # the batch fills the GPU: large tiles, little fetched ahead
    elif B * V >= 4096:
        tile, N = _tile(V, K, 2), min(2, _unroll(T))
    else:
        tile, N = _tile(V, K, 2), min(4, _unroll(T))
    groups = -(-V // tile["R"])
    whole = clip is not None or B * V >= 1024                     # a segmented forward computes C twice
    length, segments = _segment(T, 1 if whole else 4 * FILL // (B * groups))
    return Plan(**tile, N=N, length=length, segments=segments, groups=groups)


def plan_summary(V: int, K: int, plan: Plan) -> Plan:
    tile = _tile(V, K, 4)
    return Plan(**tile, N=min(2, plan.N), length=plan.length, segments=plan.segments, groups=-(-V // tile["R"]))


def plan_backward(B: int, T: int, V: int, K: int, aligned: bool = True) -> Plan:
    columns = _strip(K)
    if columns == 128 and aligned:
        G, R, W = 1, 4, 128                     # four rows of four columns for each lane
    else:
        G, R, W = 2, 256 // columns, columns // 2     # one row for each lane, with two runs of four columns
    row_bands, strips = -(-V // R), -(-K // columns)
    whole = next((n for n in (4, 8) if B * strips * n >= ENOUGH and n <= row_bands), 0)
    if whole:                                   # rows alone make enough programs: no segments, no summaries of them
        (length, segments), groups = _segment(T, 1), whole
    else:
        length, segments = _segment(T, -(-FILL // (B * strips)))
        groups = min(4, row_bands, -(-FILL // (B * strips * segments)))
    bands = -(-row_bands // groups)
    return Plan(G, R, W, _unroll(T), length, segments, bands, -(-row_bands // bands), strips)


def _tile(V: int, K: int, rows: int) -> dict[str, int]:
    """A tile that spans all columns: wide ones with several rows in each lane, narrow ones with one row and two runs of four columns."""
    columns = max(_power_of_two(K), 8)
    if columns >= 128:
        return {"G": 1, "R": max(1, min(_power_of_two(V), rows * 128 // columns)), "W": columns}
    return {"G": 2, "R": 256 // columns, "W": columns // 2}


def forward(theta, vc, v, k, q, M0, reset, clip, calibration, save):
    B, T, V = v.shape
    K = k.shape[-1]
    plan = plan_forward(B, T, V, K, clip)
    theta, vc, v, k, q = (_rows(x) for x in (v if theta is None else theta, k if vc is None else vc, v, k, q))
    start = None if M0 is None else M0.contiguous()
    flags = None if reset is None else as_bytes(reset)
    h, M = v.new_empty(B, T, V), v.new_empty(B, V, K)
    checkpoints = v.new_empty(B, -(-T // INTERVAL) + (clip is not None), V, K) if save else v.new_empty(0)
    form = _form(calibration, v.dtype, V)
    with on_device(v):
        if plan.segments > 1:
            start = _enter(plan, theta, vc, v, k, flags, start, form, reverse=False)
        kernels.forward_kernel[(B * plan.segments, plan.groups)](
            theta, vc, v, k, q, h if start is None else start, h if flags is None else flags, h, M, checkpoints,
            theta.stride(0), vc.stride(0), v.stride(0), k.stride(0), q.stride(0),
            T, plan.length, plan.segments,
            V=V, K=K, TH_S=theta.stride(1), VC_S=vc.stride(1), V_S=v.stride(1), K_S=k.stride(1), Q_S=q.stride(1),
            HAS_START=start is not None, HAS_RESET=flags is not None, CLIP=clip, SAVE=save,
            S=INTERVAL, WHOLE=_whole(plan, V, K), PACK=1, LOOP=2 * plan.N <= T, **plan.tile, **form,
        )
    return h, M, checkpoints


def backward(theta, vc, v, k, q, M0, reset, clip, calibration, checkpoints, dh, dM):
    B, T, V = v.shape
    K = k.shape[-1]
    calibrated = theta is not None
    theta, vc, v, k, q = (_rows(x) for x in (v if theta is None else theta, k if vc is None else vc, v, k, q))
    dh, dM, checkpoints = dh.contiguous(), dM.contiguous(), checkpoints.contiguous()
    aligned = _aligned(theta, vc, v, k, q, dh)
    plan = plan_backward(B, T, V, K, aligned)
    flags = None if reset is None else as_bytes(reset)
    form = _form(calibration, v.dtype, V)
    with on_device(v):
        limit = find_limit(clip, v, k, checkpoints)
        largest = checkpoints if limit is None else limit.largest      # without a limit it is not looked at
        if plan.segments > 1:
            A = _enter(plan, theta, vc, dh, q, flags, dM, form, reverse=True, limit=limit)
        else:
            A = dM.clone()
        rows = 1 + calibrated + find_form(calibration).drift
        by_row = _parts(v, rows, plan.strips, (B, T, V))                       # dv, dtheta, ddrift; after _enter, to use what it freed
        by_col = _parts(v, 3 if calibrated else 2, plan.groups, (B, T, K))     # dk, dq, dvc
        for knows_limit in (False,) if limit is None else (False, True):
            gradients.gradients_kernel[(B * plan.segments, plan.groups, plan.strips)](
                theta, vc, v, k, q, dh if flags is None else flags, checkpoints, dh, A,
                by_row[min(1, rows - 1)], by_row[-1], by_row[0], by_col[-1], by_col[0], by_col[1], largest,
                theta.stride(0), vc.stride(0), v.stride(0), k.stride(0), q.stride(0),
                B, T, plan.length, plan.segments, plan.bands,
                V=V, K=K, TH_S=theta.stride(1), VC_S=vc.stride(1), V_S=v.stride(1), K_S=k.stride(1), Q_S=q.stride(1),
                HAS_RESET=flags is not None, CLIP=clip, LIMITED=knows_limit, GAIN=find_form(calibration).gain,
                S=INTERVAL, WHOLE=_whole(plan, V, K), PACK=_pack(plan, V, aligned, form), **plan.tile, **form,
            )
        dv, *dtheta = _total(by_row)
        dk, dq, *dvc = _total(by_col)
    dM0 = v.new_empty(0) if M0 is None else A.view(B, plan.segments, V, K)[:, 0].clone()
    if not calibrated:
        return v.new_empty(0), v.new_empty(0), dv, dk, dq, dM0
    return dtheta[0] if len(dtheta) == 1 else torch.cat(dtheta, dim=-1), dvc[0], dv, dk, dq, dM0


def _parts(like: Tensor, count: int, groups: int, shape: tuple[int, ...]) -> list[Tensor]:
    """Room for `count` sums: of one group the sums themselves, of several their parts, side by side."""
    if groups == 1:
        return [like.new_empty(shape) for _ in range(count)]
    return list(like.new_empty(count, groups, *shape).unbind(0))


def _total(parts: list[Tensor]) -> list[Tensor]:
    """Add up the groups of every sum, in their order."""
    if parts[0].ndim == 3:
        return parts
    totals = [torch.empty_like(x[0]) for x in parts]
    n, block = totals[0].numel(), 1024
    gradients.total_kernel[(-(-n // block),)](parts[0], totals[0], totals[1 % len(totals)], totals[-1], n, parts[0].shape[0],
                                            COUNT=len(totals), BLOCK=block)
    return totals


def _enter(plan: Plan, theta: Tensor, vc: Tensor, x: Tensor, y: Tensor, flags: Tensor | None, entry: Tensor | None,
           form: dict[str, Any], reverse: bool, limit: Limit | None = None) -> Tensor:
    """What enters each segment: M from the left, or in reverse dL/dM from the right. [B, segments, V, K]"""
    B, T, V = x.shape
    K = y.shape[-1]
    plan = plan_summary(V, K, plan)
    P, Q = x.new_empty(B, plan.segments, V, K), x.new_empty(B, plan.segments, V, K)
    cut = torch.empty(B, plan.segments, dtype=torch.uint8, device=x.device)
    reset, grid, largest = cut if flags is None else flags, (B * plan.segments, plan.groups), P if limit is None else limit.largest
    options = {"HAS_RESET": flags is not None, "WHOLE": _whole(plan, V, K), **plan.tile, **form}
    triton_segments.summary_kernel[grid](
        theta, vc, x, y, reset, P, Q, cut, largest,
        theta.stride(0), vc.stride(0), x.stride(0), y.stride(0), T, plan.length, plan.segments,
        V=V, K=K, TH_S=theta.stride(1), VC_S=vc.stride(1), X_S=x.stride(1), Y_S=y.stride(1),
        REVERSE=reverse, CLIP=None if limit is None else limit.clip, PACK=_pack(plan, V, _aligned(theta, x), form), **options,
    )
    if limit is not None:
        v, k = limit.v, limit.k
        options.pop("N")
        triton_segments.limited_summary_kernel[grid](
            theta, vc, v, k, y, reset, limit.checkpoints, x, P, Q, cut, largest,
            theta.stride(0), vc.stride(0), v.stride(0), k.stride(0), y.stride(0), T, plan.length, plan.segments,
            V=V, K=K, TH_S=theta.stride(1), VC_S=vc.stride(1), V_S=v.stride(1), K_S=k.stride(1), Q_S=y.stride(1),
            CLIP=limit.clip, S=INTERVAL, PACK=_pack(plan, V, _aligned(theta, v, x), form), **options,
        )
    block = 128
    triton_segments.combine_kernel[(B, -(-V * K // block))](
        P, Q, cut, P if entry is None else entry, largest, plan.segments, V * K,
        REVERSE=reverse, HAS_ENTRY=entry is not None, CLIP=None if limit is None else limit.clip, BLOCK=block, num_warps=1,
    )
    return P


def _form(calibration: str, dtype: torch.dtype, V: int) -> dict[str, Any]:
    """The calibration as the kernels know it."""
    form = find_form(calibration)
    fast = dtype == torch.float32 and torch.version.hip is None and not interpreting()
    return {"CALIBRATED": calibration != "none", "RATE": -form.gain / math.log(2), "PART": 1 / form.scale, "FLOOR": form.floor,
            "DRIFT": V if form.drift else 0, "FAST": fast}


def _segment(T: int, wanted: int) -> tuple[int, int]:
    """(length, segments) for about `wanted` segments."""
    if wanted <= 1:
        return _round_up(T, INTERVAL), 1
    length = min(max(_round_up(-(-T // wanted), INTERVAL), SHORTEST), LONGEST)
    return length, -(-T // length)


def _unroll(T: int) -> int:
    """A power of two that divides INTERVAL, up to 4, at most T."""
    return 4 if T >= 4 else 2 if T >= 2 else 1


def _whole(plan: Plan, V: int, K: int) -> bool:
    """Whether tiles fit the memory exactly, so that no load needs a mask."""
    return plan.R * plan.bands * plan.groups == V and plan.G * plan.W * plan.strips == K


def _aligned(*vectors: Tensor) -> bool:
    """Whether every vector of four cells can be loaded at once, and Triton knows it: it sees multiples of 16 in pointers and strides."""
    return all(x.data_ptr() % 16 == 0 and x.stride(0) % 16 == 0 and x.stride(1) % 4 == 0 and x.shape[2] % 4 == 0 for x in vectors)


def _pack(plan: Plan, V: int, aligned: bool, form: dict[str, Any]) -> int:
    """How many rows' scalars one load may bring: those of a tile of four, if no tile reaches past the last row."""
    return 4 if aligned and form["FAST"] and plan.G == 1 and plan.R == 4 and plan.R * plan.bands * plan.groups == V else 1


def _rows(x: Tensor) -> Tensor:
    """The tensor with unit stride along its last axis; batch and time may have any, also 0 (a row that is expanded).

    Places within a batch row are 32-bit numbers in the kernels.
    """
    return x if x.stride(-1) == 1 and x.stride(1) * x.shape[1] < 1 << 31 else x.contiguous()


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def _strip(K: int) -> int:
    """The width of a strip of columns: a power of two up to 128 that pads K least, the wider one at a tie."""
    if K <= 128:
        return max(_power_of_two(K), 8)
    return min((128, 64, 32), key=lambda width: (_round_up(K, width), -width))


shm_triton = make_op("triton", forward, backward, lambda T: INTERVAL, notes=True)
