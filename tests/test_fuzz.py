"""A few inputs of `make fuzz`, of each kind; and that it finds what it should."""

from __future__ import annotations

import pytest
import torch

from hadamem import kernels

from .fuzz import judge
from .fuzz.child import KINDS, cases, run_input


@pytest.fixture(scope="module")
def made():
    with cases() as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_inputs(made, kind):
    results = [run_input(made, 0, n, kind) for n in range(30)]
    assert [result for result in results if result["failure"]] == []
    assert len({result["text"] for result in results}) > 20
    assert run_input(made, 0, 7, kind)["text"] == results[7]["text"]      # the seed fixes it


def test_what_is_a_failure(monkeypatch):
    v = torch.ones(1, 2, 3)
    assert judge.run(lambda: kernels.delta(v, v, v, torch.ones(1, 2))) is None
    assert judge.run(lambda: kernels.delta(v, v, None, torch.ones(1, 2))) is None                  # our own sentence
    assert judge.run(lambda: torch.ones(2) @ torch.ones(3)).startswith("RuntimeError: ")           # PyTorch's
    assert judge.run(lambda: int("x")).startswith("ValueError: ")                                  # Python's
    assert judge.run(lambda: exit(3)).startswith("SystemExit: ")
    monkeypatch.setitem(kernels._backends.OPS["delta"], "scan", lambda *args: (args[0] * 2, args[4]))
    assert "the reference" in judge.run(lambda: _compare_delta(v)) or "off by" in judge.run(lambda: _compare_delta(v))


def _compare_delta(v):
    from .fuzz import ops

    ops.check("delta", {"v": v, "k": v, "q": v, "beta": torch.ones(1, 2), "backend": "scan"}, set(), False)
