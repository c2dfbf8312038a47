"""What studies of measurements share: sizes by budget, and results that may be missing from a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def missing(results: Any, *names: str) -> str:
    """A sentence for the report if measurements are missing, else ""."""
    absent = [name for name in names if name not in results.measures]
    return f"Missing: {', '.join(absent)} ({'was' if len(absent) == 1 else 'were'} not measured, or failed)." if absent else ""


def present(results: Any, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The results of these measurements by name, without those that are missing."""
    return {name: results.measures[name] for name in names if name in results.measures}


def sized(full: int, small: int, quick: bool, budget: float = 1.0) -> int:
    """A number of repeats, samples or steps: `small` if quick, else `full` times the budget; at least 1."""
    return small if quick else max(1, round(full * budget))


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread, as in training: more wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
