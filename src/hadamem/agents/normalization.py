"""Features on a common scale, by running statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

LIMIT = 10.0         # normalised features lie between -LIMIT and LIMIT
LEAST = 1e-8         # variance of a feature that never changed
OUTLIER = 100.0      # a feature further from the mean than this many standard deviations counts as if it were there


class Normalizer(nn.Module):
    """Shifts and scales some features to mean 0 and standard deviation 1 over everything that `update` has seen; others pass unchanged.

    The statistics are buffers, so they are saved with the network. Until the first update all features pass unchanged.
    """

    count: Tensor
    mean: Tensor
    square: Tensor
    scale: Tensor
    chosen: Tensor
    limit: Tensor

    def __init__(self, size: int, ranges: Sequence[tuple[int, int]]):
        """size: of a feature vector. ranges: (start, stop) of the features to normalise."""
        super().__init__()
        chosen = torch.zeros(size, dtype=torch.bool)
        for start, stop in ranges:
            chosen[start:stop] = True
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("square", torch.zeros(size))      # sum of squared deviations from the mean
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("chosen", chosen, persistent=False)
        self.register_buffer("limit", torch.where(chosen, LIMIT, float("inf")), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size]."""
        return torch.clamp((x - self.mean) * self.scale, -self.limit, self.limit)

    @torch.no_grad()
    def update(self, x: Tensor, first: bool = False) -> None:
        """Add features [..., size] to the statistics. Vectors with numbers that are not finite are left out; outliers count less.

        first: these are the first ones, so that outliers among them are judged by their own median.
        """
        x = x.reshape(-1, x.shape[-1])
        good = torch.isfinite(x).all(-1, keepdim=True)
        n = good.sum()
        centre, spread = self.mean, torch.where(self.square > 0, 1 / self.scale, 0.0)
        if first:
            centre = _median(x, good)
            spread = 1.5 * _median((x - centre).abs(), good)
        reach = torch.where(spread > 0, OUTLIER * spread, torch.inf)
        x = torch.where(good, torch.clamp(x, centre - reach, centre + reach), 0.0)
        mean = x.sum(0) / n.clamp(min=1)
        square = torch.where(good, x - mean, 0.0).square().sum(0)
        total = self.count + n
        gap = mean - self.mean
        share = n / total.clamp(min=1)
        self.square.add_(torch.where(self.chosen, square + gap.square() * self.count * share, 0.0))
        self.mean.add_(torch.where(self.chosen, gap * share, 0.0))
        self.count.copy_(total)
        deviation = (self.square / total.clamp(min=1) + LEAST).sqrt()
        self.scale.copy_(torch.where(self.chosen & (total > 0), 1 / deviation, 1.0))


def _median(x: Tensor, good: Tensor) -> Tensor:
    """The median of the rows of x [N, size] that are good [N, 1]. By sorting, which is deterministic on a GPU as well."""
    order = torch.where(good, x, torch.inf).sort(0).values
    return order.index_select(0, ((good.sum() - 1).clamp(min=0) // 2)[None])[0]
