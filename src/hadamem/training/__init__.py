"""Training: joins an env and an agent. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _lazy

if TYPE_CHECKING:
    from .evaluate import Evaluation
    from .loop import TrainingFailed
    from .policy import Policy, PolicyState, load_policy
    from .run import Run, open_run
    from .trainer import Trainer

__getattr__, __dir__ = _lazy.attach(__name__, {
    "Evaluation": "evaluate", "Policy": "policy", "PolicyState": "policy", "Run": "run", "Trainer": "trainer",
    "TrainingFailed": "loop", "load_policy": "policy", "open_run": "run",
})

__all__ = ["Evaluation", "Policy", "PolicyState", "Run", "Trainer", "TrainingFailed", "load_policy", "open_run"]
