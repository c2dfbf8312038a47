"""Seeds for Gymnasium envs and for torch's own generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

SEEDS = 1 << 30      # how many there are


def env_seed(*keys: int) -> int:
    """A seed in 0 .. SEEDS - 1 that depends on all keys: other keys give one far away, but for one chance in millions.

    Copy i of a Gymnasium env gets seed + i, so the seeds of two runs must be further apart than their copies.
    """
    return int(np.random.SeedSequence(keys).generate_state(1)[0]) % SEEDS


@contextlib.contextmanager
def own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Within a `with` block torch's default generators start at `seed`; afterwards they are as before. An agent or env may use them."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
