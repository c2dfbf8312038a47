"""The Triton kernels of the envs and their random numbers equal the plain tensor ops: in the interpreter and on a GPU."""

import os
import subprocess
import sys

import pytest
import torch

from hadamem import random

CODE = """
import torch
from hadamem import random
from hadamem.envs.games import cards, cards_triton

g = torch.Generator().manual_seed(0)
counter = torch.randint(-(1 << 62), 1 << 62, (3, 301), generator=g)
assert torch.equal(random.triton.mix(counter), random.mix(counter))
for high in (1, 4, 52, 1000, 1 << 31):
    assert torch.equal(random.triton.integers(counter, high), random.integers(counter, high))
highs = torch.randint(1, 100, (301,), generator=g)
assert torch.equal(random.triton.integers(counter, highs), random.integers(counter, highs))
a = torch.arange(52, dtype=torch.uint8).repeat(301, 1)
b = a.clone()
for t in range(3):
    place, fixed = torch.randint(52, (301,), generator=g), torch.rand(301, generator=g) < 0.3
    for stay in (None, fixed):
        assert torch.equal(cards.swap(a, place, counter[t], stay), cards_triton.swap(b, place, counter[t], stay))
        assert torch.equal(a, b)
"""


def test_kernels_in_the_interpreter():
    pytest.importorskip("triton")
    subprocess.run([sys.executable, "-c", CODE], check=True, env={**os.environ, "TRITON_INTERPRET": "1"}, timeout=120)


@pytest.mark.gpu
def test_draws_are_the_same_on_the_gpu():
    counter = torch.randint(-(1 << 62), 1 << 62, (3, 1001), generator=torch.Generator().manual_seed(0))
    highs = torch.randint(1, 100, (1001,), generator=torch.Generator().manual_seed(1))
    cuda = counter.cuda()
    assert torch.equal(random.mix(cuda).cpu(), random.mix(counter))
    assert torch.equal(random.integers(cuda, 52).cpu(), random.integers(counter, 52))
    assert torch.equal(random.integers(cuda, highs.cuda()).cpu(), random.integers(counter, highs))
    torch.testing.assert_close(random.uniform(cuda).cpu(), random.uniform(counter), rtol=0, atol=0)
