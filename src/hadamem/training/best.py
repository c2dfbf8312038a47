"""The best checkpoint of a run, in its folder `best/`, apart from the newest ones: what to go back to if training goes wrong.

With evaluations (`eval_every`) it is the one with the best mean return in them. Without, each checkpoint is judged by the episodes that end
after it, since these were played with its weights; so is the state at the start. The best one stays when later ones are worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..runs import checkpoint
from ..runs.files import CheckpointError

EPISODES = 20      # enough to judge a checkpoint by; with fewer, at the latest when the next one is written


class Candidate(NamedTuple):
    """A checkpoint that may be the best."""

    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]


class Best:
    """Keeps the best checkpoint of a run in `folder`. Call `see` with every row of metrics and `wait` with every checkpoint."""

    def __init__(self, folder: Path, evaluated: bool):
        """evaluated: judge by evaluations."""
        self.folder, self.evaluated = folder, evaluated
        self.score = read_score(folder)
        self._waiting: Candidate | None = None      # to be judged
        self._newest: Candidate | None = None
        self._episodes = self._total = 0.0          # since `_waiting`

    def see(self, row: Mapping[str, Any], make: Callable[[], Candidate]) -> None:
        """A row of metrics. make: makes a checkpoint of the state after it."""
        if self.evaluated:
            if row.get("eval_return", -math.inf) > self.score:
                self._keep(make(), row["eval_return"], row.get("eval_episodes", 0))
        elif self._waiting is not None and row.get("episodes") and "return" in row:
            self._episodes += row["episodes"]
            self._total += row["episodes"] * row["return"]
            if self._episodes >= EPISODES:
                self._judge()

    def wait(self, candidate: Candidate) -> None:
        """Judge this checkpoint by the episodes to come, unless an earlier one still waits for its first."""
        self._newest = candidate
        if self._episodes:
            self._judge()
        if self._waiting is None:
            self._waiting = candidate

    def end(self, latest: float | None) -> None:
        """The run has finished: the last checkpoint has the latest mean return, for want of a better measure."""
        if self._episodes:
            self._judge()
        if self._newest is not None and (not self._exists() or (not self.evaluated and latest is not None and latest > self.score)):
            self._keep(self._newest, latest, 0)

    def rescue(self) -> None:
        """The run has failed: if there is no best checkpoint yet, keep the oldest that was not judged."""
        if self._waiting is not None and not self._exists():
            self._keep(self._waiting, None, 0)

    def _judge(self) -> None:
        """Compare the waiting checkpoint with the best one."""
        score = self._total / self._episodes
        if self._waiting is not None and score > self.score:
            self._keep(self._waiting, score, self._episodes)
        self._waiting, self._episodes, self._total = None, 0.0, 0.0

    def _exists(self) -> bool:
        return (self.folder / checkpoint.ABOUT).is_file()

    def _keep(self, candidate: Candidate, score: float | None, episodes: float) -> None:
        by = "eval_return" if self.evaluated else "return"
        about = {name: x for name, x in candidate.about.items() if name != "chunks"}      # the replay stays with the newest checkpoints
        checkpoint.write(self.folder, candidate.tensors, {**about, "best": {"by": by, "score": score, "episodes": round(episodes)}})
        self.score = -math.inf if score is None else score


def read_score(folder: Path) -> float:
    """The score of the best checkpoint; -inf if there is none."""
    try:
        return float(checkpoint.read_about(folder)["best"]["score"])
    except (CheckpointError, KeyError, TypeError, ValueError):
        return -math.inf
