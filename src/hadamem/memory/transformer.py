"""A transformer block for sequences with a past, as used by GPT-2."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels._chunks import not_finite
from ..kernels._ops import undisturbed


class Sight(NamedTuple):
    """Which keys each query sees: those from `first` to itself, of `past` keys from earlier calls and one of each step of this one."""

    first: Tensor          # [B or 1, T]
    mask: Tensor | None    # [B or 1, 1, T, keys]; None: plain causal attention without a past
    past: int
    opens: Tensor | None   # [B, 1] of a single step: whether it opens an episode, so that its past belongs to another episode


def join(past: Tensor, new: Tensor, opens: Tensor | None) -> Tensor:
    """past [B, P, n] (zeros where opens [B, 1]) and after it new [B, T, n]: [B, P + T, n]. Acting copies the past once, not twice."""
    past = past.to(new.dtype)
    if opens is None:
        return torch.cat((past, new), dim=1)
    if torch.is_grad_enabled() or not undisturbed():
        return torch.cat((torch.where(opens[..., None], 0.0, past), new), dim=1)
    P = past.shape[1]
    joined = new.new_empty(new.shape[0], P + new.shape[1], new.shape[2])
    torch.where(opens[..., None], new.new_zeros(()), past, out=joined[:, :P])
    joined[:, P:] = new
    return joined


class Block(nn.Module):
    """Attention and a perceptron, each with a layer norm before it and a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.width, self.heads, self.dropout = width, heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, z: Tensor, past: Tensor | None, sight: Sight) -> tuple[Tensor, Tensor]:
        """z [B, T, width], past [B, P, 2 width] keys and values -> z after the block, and keys and values [B, P + T, 2 width]."""
        q, kv = self.attention(self.norm1(z)).split((self.width, 2 * self.width), dim=-1)
        kv = kv if past is None else join(past, kv, sight.opens)
        if q.shape[1] == 1:                  # what a single query does not see is zero already
            return self._finish(z, self._attend(q, kv, sight.mask)), kv
        # A weight of zero times nan is nan: keys that are not finite are taken out, and the queries that see them set to nan.
        bad = not_finite(kv)                                                                     # [B, P + T]
        a = self._attend(q, torch.where(bad[..., None], 0.0, kv), sight.mask, causal=sight.mask is None)
        newest = torch.where(bad, torch.arange(bad.shape[1], device=z.device), -1).cummax(dim=1).values[:, sight.past:]
        return self._finish(z, torch.where((newest >= sight.first)[..., None], torch.nan, a)), kv

    def last(self, z: Tensor, at: Tensor) -> Tensor:
        """z [N, W, width] -> [N, width], the block at step `at` [N] alone, which sees steps 0 to `at`."""
        weight, bias = self.attention.weight, self.attention.bias
        normed, place = self.norm1(z), at[:, None, None].expand(-1, 1, self.width)
        q = F.linear(normed.gather(1, place), weight[:self.width], bias[:self.width])
        kv = F.linear(normed, weight[self.width:], bias[self.width:])
        seen = torch.arange(z.shape[1], device=z.device) <= at[:, None]                          # [N, W]
        return self._finish(z.gather(1, place), self._attend(q, kv, seen[:, None, None]))[:, 0]

    def weights(self, z: Tensor, past: Tensor | None, sight: Sight) -> Tensor:
        """How much every query attends to every key, [B, heads, T, P + T]; for people to look at."""
        q, kv = self.attention(self.norm1(z)).split((self.width, 2 * self.width), dim=-1)
        k = (kv if past is None else join(past, kv, sight.opens)).chunk(2, dim=-1)[0]
        q, k = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k))
        T = z.shape[1]
        mask = torch.ones(T, T, dtype=torch.bool, device=z.device).tril() if sight.mask is None else sight.mask
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf).softmax(-1)

    def _attend(self, q: Tensor, kv: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, *kv.chunk(2, dim=-1)))
        a = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0, is_causal=causal)
        return a.transpose(1, 2).flatten(-2)

    def _finish(self, z: Tensor, a: Tensor) -> Tensor:
        z = z + F.dropout(self.project(a), self.dropout, self.training)
        z2 = self.contract(F.gelu(self.expand(self.norm2(z)), approximate="tanh"))
        return z + F.dropout(z2, self.dropout, self.training)
