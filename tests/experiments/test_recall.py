"""Every memory learns to recall a symbol over noise; a network without memory does not."""

from __future__ import annotations

import pytest
import torch

import hadamem as hm
from hadamem.experiments.recall import Learner, Overwrite, Recall, curriculum

WITHIN = Recall(items=1, blank=False)      # an input norm scales its noise up to the symbol's size


def make_learner(name: str, task: Recall, seed: int = 0) -> Learner:
    torch.manual_seed(seed)
    return Learner(hm.make_memory(name, task.input_size, 32, memory_size=32), task, seed=seed)


@pytest.mark.parametrize("name", [name for name in hm.list_memories() if name != "none"])
def test_every_memory_recalls(name):
    """8, 16, then 24 steps with the same weights. Chance is 0.125."""
    *_, last = curriculum(make_learner(name, Recall(items=1)), (8, 16, 24), updates=600)
    assert last.accuracy >= 0.9
    assert last.skipped == 0


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)])
def test_shm_recalls_over_64_steps_at_once(seed):
    learner = make_learner("shm", WITHIN, seed)
    for _ in range(250):
        learner.update(64)
    assert learner.accuracy(64) >= 0.95


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_hebbian_memory_tells_two_items_apart(seed):
    """Where the products of query and keys start with random signs, these seeds stay at 80 to 97 %."""
    assert make_learner("hebbian", Recall(), seed).solve(8, goal=0.99, updates=300).solved


def test_without_memory_it_is_chance():
    learner = make_learner("none", Recall(items=1))
    outcome = learner.solve(8, updates=400)
    assert not outcome.solved
    assert outcome.accuracy <= learner.task.chance + 0.06      # four standard errors of 512 guesses


def test_the_task():
    task = Recall(symbols=5, items=2, noise=0.0)
    x, symbol = task.draw(3, 7, torch.Generator().manual_seed(0))
    assert x.shape == (3, 7, task.input_size)
    assert torch.equal(x[:, :2, :5].argmax(-1), symbol)
    assert x[:, 2:, :5].abs().max() == 0                        # shown once only
    assert x[0, :2, 5:7].tolist() == x[0, -2:, 7:9].tolist() == [[1, 0], [0, 1]]
    assert x[0, :, 9].tolist() == [0, 0, 1, 1, 1, 0, 0]
    with pytest.raises(ValueError, match="steps must be at least 4"):
        task.draw(3, 3, torch.Generator())


def test_the_latest_symbol_of_each_key_is_asked_for():
    task = Overwrite(symbols=5, items=3)
    x, symbol = task.draw(4, 20, torch.Generator().manual_seed(0))
    for row, want in zip(x, symbol, strict=True):
        held = {}
        for step in row[:-3]:
            held[int(step[5:8].argmax())] = int(step[:5].argmax())
        assert [held[key] for key in range(3)] == want.tolist()
    assert torch.equal(x[0, -3:, 8:11], torch.eye(3))
