"""Seeds for Gymnasium envs. Copy i of an env gets seed + i, so the seeds of two runs must be further apart than their copies."""

from __future__ import annotations

import numpy as np

SEEDS = 1 << 30      # how many there are


def env_seed(*keys: int) -> int:
    """A seed in 0 .. SEEDS - 1 that depends on all keys: other keys give one far away, but for one chance in millions."""
    return int(np.random.SeedSequence(keys).generate_state(1)[0]) % SEEDS
