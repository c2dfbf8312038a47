"""Training: what joins an env and an agent, runs on disk, and policies. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from ..runs.config import TrainConfig, make_config
    from .evaluate import Evaluation
    from .loop import TrainingFailed
    from .policy import Policy, PolicyState, load_policy
    from .run import Run, open_run
    from .trainer import Trainer

__getattr__, __dir__ = _lazy.attach(__name__, {
    "Evaluation": "evaluate", "Policy": "policy", "PolicyState": "policy", "Run": "run", "TrainConfig": "config", "Trainer": "trainer",
    "TrainingFailed": "loop", "load_policy": "policy", "make_config": "config", "open_run": "run",
})

__all__ = ["Evaluation", "Policy", "PolicyState", "Run", "TrainConfig", "Trainer", "TrainingFailed", "load_policy", "make_config",
           "open_run"]
