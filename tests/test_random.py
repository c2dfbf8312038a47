"""The counter-based generator: known answers, evenness, independence, replay."""

from __future__ import annotations

import math

import pytest
import torch

from hadamem import random

MASK = (1 << 64) - 1


def splitmix64(counter: int) -> int:
    """The published finaliser in plain Python integers."""
    x = (counter * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_known_answers():
    """The first outputs of SplitMix64 seeded with 0, as in its authors' test vectors."""
    want = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    got = [int(x) & MASK for x in random.mix(torch.arange(1, 6))]
    assert got == want


def test_matches_plain_integers_over_the_whole_range():
    counters = [0, 1, -1, 2**31, -(2**31), 2**62 + 12345, -(2**63), 2**63 - 1]
    got = [int(x) & MASK for x in random.mix(torch.tensor(counters))]
    assert got == [splitmix64(c & MASK) for c in counters]


def chi_square(counts: torch.Tensor) -> float:
    """In standard deviations from its mean, for even expectations."""
    expected = counts.sum().double() / counts.numel()
    value = float(((counts - expected) ** 2 / expected).sum())
    dof = counts.numel() - 1
    return (value - dof) / math.sqrt(2 * dof)


@pytest.mark.parametrize("high", [2, 7, 128, 1000])
def test_integers_are_even(high):
    for start in (0, 2**40, -(10**15)):
        counts = torch.bincount(random.integers(torch.arange(200_000) + start, high), minlength=high)
        assert len(counts) == high
        assert abs(chi_square(counts.double())) < 5


def test_neighbouring_counters_are_independent():
    draws = random.integers(torch.arange(200_000), 16)
    pairs = torch.bincount(draws[:-1] * 16 + draws[1:], minlength=256)
    assert abs(chi_square(pairs.double())) < 5


def test_streams_are_independent():
    """Streams of neighbouring keys share no draws and do not correlate, whichever key differs."""
    steps = torch.arange(50_000)
    base = random.uniform(random.stream(3, 5, 7) + steps, torch.float64)
    for keys in ((4, 5, 7), (3, 6, 7), (3, 5, 8), (5, 3, 7), (3, 7, 5)):
        other = random.uniform(random.stream(*keys) + steps, torch.float64)
        correlation = float(torch.corrcoef(torch.stack((base, other)))[0, 1])
        assert abs(correlation) < 5 / math.sqrt(len(steps))
        assert len(set(base.tolist()) & set(other.tolist())) == 0
    starts = random.stream(0, torch.arange(1000)[:, None], torch.arange(100))
    assert starts.shape == (1000, 100)
    assert len(starts.unique()) == 100_000


def test_spread_gives_separate_counters():
    counters = random.spread(torch.arange(1000), 64)
    assert counters.shape == (1000, 64)
    assert len(counters.unique()) == 64_000
    draws = random.integers(counters, 32)
    assert abs(chi_square(torch.bincount(draws.flatten(), minlength=32).double())) < 5
    across = torch.bincount(draws[:-1, 0] * 32 + draws[1:, 0], minlength=1024)
    assert abs(chi_square(across.double())) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform(dtype):
    u = random.uniform(torch.arange(200_000), dtype)
    assert u.dtype == dtype
    assert 0 <= u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    assert abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / 200_000)
    assert abs(chi_square(torch.histc(u.double(), 100, 0, 1))) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal(dtype):
    n = 400_000
    z = random.normal(torch.arange(n), dtype)
    assert z.dtype == dtype
    assert z.isfinite().all()
    for power, want, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):   # moments of N(0, 1), their variances
        assert abs(float((z.double() ** power).mean()) - want) < 5 * math.sqrt(variance / n)
    tail = float((z.abs() > 3).double().mean())
    assert abs(tail - 0.0027) < 0.0005


def test_draws_do_not_depend_on_batch_or_place():
    counters = torch.arange(100).reshape(4, 25)
    whole = random.integers(counters, 128)
    assert torch.equal(whole[2], random.integers(counters[2], 128))
    assert int(whole[3, 7]) == int(random.integers(torch.tensor(82), 128))


def test_high_must_fit():
    for high in (0, -1, 2**31 + 1):
        with pytest.raises(ValueError, match=r"high must be in 1\.\.2\*\*31"):
            random.integers(torch.tensor(0), high)
    assert 0 <= int(random.integers(torch.tensor(3), 2**31)) < 2**31


def test_compiles():
    counters = torch.arange(64)
    run = torch.compile(lambda c: random.integers(c, 128), backend="aot_eager", fullgraph=True)
    assert torch.equal(run(counters), random.integers(counters, 128))
