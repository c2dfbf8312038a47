"""Rotary keys: pairs of entries of k and q are turned by angles that grow with every step.

The product of a query and a key then depends on how many steps lie between them, and on nothing else of the time: turning W_q by five
steps' angles asks for what was written five steps ago, at any time. (RoFormer's rotary position embedding, with other frequencies.)

The frequencies lie between 0 and half a turn per step, spread evenly by the golden ratio, with no common period. The fast ones tell
neighbouring steps apart; without them (RoFormer's fastest is 1 radian) recall of single steps is learned several times later. All are
whole numbers of turns per PERIOD steps: angles are exact however long the clock has run.

What multiplies the memory must treat both entries of a pair alike (`pair`), or the time itself would matter again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .calibration import Factors

PERIOD = 1 << 16                       # steps after which every angle returns
GOLDEN = (math.sqrt(5) - 1) / 2


def turns(size: int) -> Tensor:
    """The frequencies for keys of `size` entries: turns per PERIOD steps, int64 [size // 2]."""
    share = (torch.arange(1, size // 2 + 1, dtype=torch.float64) * GOLDEN) % 1
    return (share * (PERIOD // 2)).round().clamp(min=1).long()


def angles(clock: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [..., size // 2] of the angles at clock [...]."""
    place = clock[..., None] % PERIOD * frequencies % PERIOD
    angle = place.to(torch.promote_types(dtype, torch.float32)) * (2 * math.pi / PERIOD)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def pair(x: Tensor) -> Tensor:
    """x [..., size] with the second entry of every pair replaced by its first."""
    n = x.shape[-1] // 2
    return torch.cat([x[..., :n], x[..., :n], x[..., 2 * n:]], dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., size], entry i turned together with entry size // 2 + i; the last entry of an odd size stays."""
    n = cos.shape[-1]
    a, b = x[..., :n], x[..., n:2 * n]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., 2 * n:]], dim=-1)


def check_rotary(V: int, K: int, ticks: str | None) -> None:
    """An error if a memory of V rows and K columns, whose clock ticks at that, cannot have rotary rows."""
    if ticks == "episode":
        raise ValueError("rotary needs a clock that counts steps, and with row_mode='episode' it counts episodes; use rotary=False, or "
                         "another row_mode")
    if V < 4 or K < 2:      # each half has a norm, which leaves nothing of a single number
        raise ValueError(f"rotary needs a memory_size of at least 4 and a key_size of at least 2, got {V} and {K}; use rotary=False")


C_t = Factors | Tensor | None                   # what a calibration gives


def remember_halves(write: Callable[..., tuple[Tensor, Tensor]], C: C_t, v: Tensor, plain: Tensor, turned: Tensor, M: Tensor | None,
                    reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """h [B, T, V] and M after the last step, of a memory whose last V // 2 rows have keys and queries of their own: plain and turned are k
    and q [2, B, T, K] of either half.

    write(C, v, k, q, M, reset) does it for rows that share theirs.
    """
    V = v.shape[-1]
    rows = V // 2
    if V % 2 == 0 and not isinstance(C, Tensor):      # the halves as rows of the batch: a single call, as parallel as one without them
        if C is not None:
            C = Factors(_halved(C.theta, rows).flatten(0, 1), torch.stack([C.vc, pair(C.vc)], 1).flatten(0, 1), C.form)
        k, q = torch.stack((plain, turned), 2).flatten(1, 2)
        h, after = write(C, _halved(v, rows).flatten(0, 1), k, q, None if M is None else M.unflatten(1, (2, rows)).flatten(0, 1),
                         None if reset is None else reset[:, None].expand(-1, 2, -1).flatten(0, 1))
        return h.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2), after.unflatten(0, (-1, 2)).flatten(1, 2)
    parts = [write(_rows_of(C, part, V, keys is turned), v[..., part], *keys, None if M is None else M[:, part], reset)
             for part, keys in ((slice(V - rows), plain), (slice(V - rows, V), turned))]
    return torch.cat([h for h, _ in parts], -1), torch.cat([after for _, after in parts], 1)


def norm_halves(h: Tensor, eps: float | None, gain: Tensor | None) -> Tensor:
    """What was read [..., V], each half with a layer norm of its own (eps None: none), and the rotary one times `gain`."""
    if eps is None and gain is None:
        return h
    rows = h.shape[-1] // 2
    plain, turned = h.split([h.shape[-1] - rows, rows], -1)
    if eps is not None:
        plain, turned = (F.layer_norm(half, half.shape[-1:], None, None, eps) for half in (plain, turned))
    return torch.cat([plain, turned if gain is None else turned * gain.to(h.dtype)], -1)


def _halved(x: Tensor, rows: int) -> Tensor:
    """[B, T, n * 2 * rows] -> [B, 2, T, n * rows]: first and second half of the rows; n = 2 for theta with its drift."""
    return x.unflatten(-1, (-1, 2, rows)).movedim(-2, 1).flatten(3)


def _rows_of(C: C_t, part: slice, V: int, paired: bool) -> C_t:
    """The calibration of some rows of M."""
    if isinstance(C, Factors):
        return Factors(C.theta.unflatten(-1, (-1, V))[..., part].flatten(2), pair(C.vc) if paired else C.vc, C.form)
    return None if C is None else pair(C[:, :, part]) if paired else C[:, :, part]
