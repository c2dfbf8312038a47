"""Training: what joins an env and an agent, runs on disk, and policies. Names are imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..runs.config import TrainConfig, make_config
    from .evaluate import Evaluation
    from .loop import TrainingFailed
    from .policy import Policy, PolicyState, load_policy
    from .run import Run, open_run
    from .trainer import Trainer

_HOMES = {
    "Evaluation": "evaluate", "Policy": "policy", "PolicyState": "policy", "Run": "run", "TrainConfig": "config", "Trainer": "trainer",
    "TrainingFailed": "loop", "load_policy": "policy", "make_config": "config", "open_run": "run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = ["Evaluation", "Policy", "PolicyState", "Run", "TrainConfig", "Trainer", "TrainingFailed", "load_policy", "make_config",
           "open_run"]
