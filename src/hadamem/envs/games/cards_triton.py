"""`cards.swap` as one CUDA kernel: one swap of a Fisher-Yates shuffle."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...random.kernels import integer_below
from ...random.triton import on


@triton.jit
def _swap_kernel(DECK, PLACE, COUNTER, FIXED, CARD, n, cards, HAS_FIXED: tl.constexpr, BLOCK: tl.constexpr):
    env = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = env < n
    place = tl.load(PLACE + env, mask=ok, other=0)
    other = place + integer_below(tl.load(COUNTER + env, mask=ok, other=0), cards - place)
    if HAS_FIXED:
        other = tl.where(tl.load(FIXED + env, mask=ok, other=1) != 0, place, other)
    deck = DECK + env.to(tl.int64) * cards
    card = tl.load(deck + other, mask=ok, other=0)
    tl.store(deck + other, tl.load(deck + place, mask=ok, other=0), mask=ok)
    tl.store(deck + place, card, mask=ok)
    tl.store(CARD + env, card, mask=ok)


def swap(deck: Tensor, place: Tensor, counter: Tensor, fixed: Tensor | None) -> Tensor:
    n, cards = deck.shape
    card = torch.empty(n, 1, dtype=deck.dtype, device=deck.device)
    flags = place if fixed is None else fixed.contiguous().view(torch.uint8)
    block = 128
    with on(deck):
        _swap_kernel[(-(-n // block),)](deck, place.contiguous(), counter.contiguous(), flags, card, n, cards,
                                        HAS_FIXED=fixed is not None, BLOCK=block, num_warps=4)
    return card
