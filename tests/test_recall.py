"""Memory shows in what is learned: recall of a symbol over 64 steps, with memory and without."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hadamem as hm

SYMBOLS, STEPS = 8, 64


def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A one-hot symbol at t=0, then noise (which input_norm lifts to the symbol's size), a flag to ask at the end."""
    symbol = torch.randint(SYMBOLS, (size,), generator=generator)
    x = 0.1 * torch.randn(size, STEPS, SYMBOLS + 2, generator=generator)
    x[:, 0, :SYMBOLS] = F.one_hot(symbol, SYMBOLS).float()
    x[:, 0, SYMBOLS], x[:, -1, SYMBOLS + 1] = 1.0, 1.0
    return x, symbol


def recall_after_training(name: str, seed: int, updates: int) -> float:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    memory = hm.make_memory(name, SYMBOLS + 2, 32, memory_size=32)
    head = nn.Linear(32, SYMBOLS)
    optimiser = torch.optim.Adam([*memory.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(updates):
        x, symbol = batch(32, generator)
        loss = F.cross_entropy(head(memory(x)[0][:, -1]), symbol)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(memory.parameters(), 1.0)
        optimiser.step()
    with torch.no_grad():
        x, symbol = batch(512, generator)
        return float((head(memory(x)[0][:, -1]).argmax(-1) == symbol).float().mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shm_recalls(seed):
    assert recall_after_training("shm", seed, 400) >= 0.95


def test_without_memory_it_is_chance():
    assert recall_after_training("none", 0, 400) <= 1 / SYMBOLS + 0.06   # four standard errors of 512 guesses
