"""How many items a memory recalls, written by hand and learned."""

from __future__ import annotations

import pytest
import torch

from hadamem.experiments.recall import Recall
from hadamem.experiments.studies import recall_limit

from .studies import run


@pytest.fixture(scope="module")
def results():
    return run(recall_limit.make(quick=True))[0]


def test_additive_memories_recall_at_most_H_items_exactly(results):
    for row in results.measures["written"]["rows"]:
        H, T, exact = row["H"], row["T"], row["exact"]
        want = {"none": T if T <= H else max(0, 2 * H - T), "erase": min(T, H), "random keys": 0, "best": T if T <= H else 0}
        assert exact == want[row["kind"]], row


def test_symbols_survive_beyond_H(results):
    """Eight symbols are fewer bits than exact values."""
    row = next(row for row in results.measures["written"]["rows"] if (row["H"], row["T"], row["kind"]) == (16, 32, "best"))
    assert row["exact"] == 0
    assert row["accuracy"] > 0.8


def test_only_a_calibrated_memory_replaces_a_symbol(results):
    accuracy = {name: results.measures[f"overwriting-{name}"]["rows"][-1]["accuracy"] for name in ("none", "shm", "fwp")}
    assert accuracy["none"] < 0.75
    assert accuracy["shm"] > 0.9
    assert accuracy["fwp"] > 0.9


def test_learned_accuracy_falls_with_the_number_of_items(results):
    for name in ("none", "shm"):
        few, many = results.measures[f"learned-{name}"]["rows"]
        assert few["accuracy"][0] > many["accuracy"][0]
        assert name == "shm" or few["without"] == few["accuracy"]


def test_calibration_can_be_left_out_at_the_questions():
    task = Recall(items=2)
    learner = recall_limit._learner("SHM", 4, task, 0)
    torch.nn.init.normal_(learner.memory.calibration.theta)
    x, _ = task.draw(3, 8, torch.Generator().manual_seed(0))
    with torch.no_grad():
        before, first = learner.answer(x), learner.memory(x)[0][:, :-2]
        with recall_limit._no_calibration_at_questions(learner):
            changed, same = learner.answer(x), learner.memory(x)[0][:, :-2]
        after = learner.answer(x)
    assert not torch.allclose(changed, before)
    assert torch.equal(same, first)
    assert torch.equal(after, before)
