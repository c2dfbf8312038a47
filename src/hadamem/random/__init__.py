"""Counter-based random numbers in plain tensor ops: the same counter gives the same number, on any device, in any batch.

Nothing here holds state, so a draw can be replayed by keeping its counter, and everything works inside CUDA graphs and torch.compile.
On a GPU one Triton kernel (`random/triton.py`) replaces a dozen small operations, with the same result.
Counters are int64 tensors. `mix` is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64-bit integers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import triton


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def fused(x: Tensor) -> bool:
    """Whether a fused kernel draws for counters like this one."""
    return triton.usable(x)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: int64 shifts are arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(counter: Tensor) -> Tensor:
    """Hash int64 counters to int64 words whose 64 bits all depend on all bits of the counter."""
    if fused(counter):
        return triton.mix(counter)
    x = counter * _GOLDEN
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def stream(*keys: Tensor | int) -> Tensor:
    """One counter per key tuple, e.g. stream(seed, env, episode): distant starts for independent streams."""
    word = mix(torch.as_tensor(keys[0], dtype=torch.int64) + _SECOND)      # away from 0, which mix() maps to itself
    for key in keys[1:]:
        word = mix(word + key)
    return word


def spread(counter: Tensor, n: int) -> Tensor:
    """[...] counters -> [..., n] counters, n separate ones for each."""
    return mix(counter)[..., None] + torch.arange(n, device=counter.device)


def integers(counter: Tensor, high: int | Tensor) -> Tensor:
    """Uniform int64 in [0, high), high <= 2**31 (an int64 tensor is not checked); no value is favoured by more than high / 2**32."""
    if not isinstance(high, Tensor) and not 0 < high <= 1 << 31:
        raise ValueError(f"high must be in 1..2**31, got {high}")
    if fused(counter):
        return triton.integers(counter, high)
    return (_shift(mix(counter), 32) * high) >> 32


def uniform(counter: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers in [0, 1): 24 random bits in float32, 53 in float64."""
    bits = 53 if dtype == torch.float64 else 24
    return _shift(mix(counter), 64 - bits).to(dtype) * 2.0**-bits


def normal(counter: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers, by Box and Muller from two words per counter."""
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform(counter, dtype)))
    angle = (2.0 * math.pi) * uniform(mix(counter) ^ _SECOND, dtype)
    return radius * torch.cos(angle)
