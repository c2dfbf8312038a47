"""The best checkpoint of a run, in its folder `best/`, apart from the newest ones: what to go back to if training goes wrong.

With evaluations (`eval_every`) it is the one with the best mean return in them. Without, each checkpoint is judged by the episodes that end
after it, since these were played with its weights; so is the state at the start. Episodes of random actions before learning begins (SAC) do
not count. The best one stays when later ones are worse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..files import free_name
from ..runs import checkpoint
from ..runs.files import CheckpointError

EPISODES = 20      # enough to judge a checkpoint by; with fewer, at the latest when the next one is written


class Candidate(NamedTuple):
    """A checkpoint that may be the best."""

    tensors: Mapping[str, Tensor]
    about: Mapping[str, Any]


class Best:
    """Keeps the best checkpoint of a run in `folder`. Call `see` with every row of metrics and `wait` with every checkpoint."""

    def __init__(self, folder: Path, evaluated: Mapping[str, Any] | None = None):
        """evaluated: judge by evaluations with these settings; None: there are none."""
        self.folder, self.evaluated = folder, evaluated is not None
        self.measure = {"by": "eval_return", **evaluated} if evaluated is not None else {"by": "return"}
        self.score = read_score(folder, self.measure)
        self._outlier = math.inf                    # magnitude of the smallest reward that was called one
        self._latest: float | None = None           # mean return of the latest iteration in which episodes ended
        self._waiting: Candidate | None = None      # to be judged
        self._newest: Candidate | None = None
        self._episodes = self._total = 0.0          # since `_waiting`

    def see(self, row: Mapping[str, Any], make: Callable[[], Candidate], limit: Callable[[], float] = lambda: 0.0) -> None:
        """A row of metrics. make: makes a checkpoint of the state after it. Returns with outliers in them are not counted.

        limit: the magnitude up to which rewards are none now; asked once there was one.
        """
        if "outlier_reward" in row:
            self._outlier = min(self._outlier, row["outlier_reward"])
        elif self._outlier < math.inf and self._outlier <= limit():      # rewards have grown that large
            self._outlier = math.inf
        if not self._plausible(row, "eval_" if self.evaluated else ""):
            return
        if self.evaluated:
            if row["eval_return"] > self.score:
                self._keep(make(), row["eval_return"], row.get("eval_episodes", 0))
            return
        if not row.get("updates", 1):      # nothing is learned yet: SAC plays at random
            return
        self._latest = row["return"]
        if self._waiting is not None:
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

    def end(self) -> None:
        """The run has finished: the last checkpoint has the latest mean return, for want of a better measure."""
        if self._episodes:
            self._judge()
        if self._newest is not None and (not self._exists() or (self._latest is not None and self._latest > self.score)):
            self._keep(self._newest, self._latest, 0)

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

    def _plausible(self, row: Mapping[str, Any], prefix: str) -> bool:
        """Whether the row has a mean return, and no episode can hold an outlier: none is that far from the mean, or from 0 if it is one."""
        if f"{prefix}return" not in row:
            return False
        if self._outlier == math.inf:
            return True
        count = row.get(f"{prefix}episodes", 0)
        far = abs(row[f"{prefix}return"]) if count <= 1 else row.get(f"{prefix}return_std", math.inf) * count ** 0.5
        return far < 0.5 * self._outlier

    def _exists(self) -> bool:
        return (self.folder / checkpoint.ABOUT).is_file()

    def _keep(self, candidate: Candidate, score: float | None, episodes: float) -> None:
        about = {name: x for name, x in candidate.about.items() if name != "chunks"}      # the replay stays with the newest checkpoints
        checkpoint.write(self.folder, candidate.tensors, {**about, "best": {**self.measure, "score": score, "episodes": round(episodes)}})
        self.score = -math.inf if score is None else score


def read_score(folder: Path, measure: Mapping[str, Any]) -> float:
    """The score of the best checkpoint; -inf if there is none, or if it was measured in another way."""
    try:
        found = checkpoint.read_about(folder)["best"]
        same = {name: found[name] for name in measure} == json.loads(json.dumps(measure))
        return float(found["score"]) if same else -math.inf
    except (CheckpointError, KeyError, TypeError, ValueError):
        return -math.inf


def set_aside(folder: Path, iteration: int) -> None:
    """Rename the best checkpoint if a run goes back to before it, since it is of another course of the run then."""
    try:
        later = int(checkpoint.read_about(folder)["iteration"]) > iteration
    except (CheckpointError, KeyError, TypeError, ValueError):
        return
    if later:
        folder.rename(free_name(folder.with_name(f"{folder.name}.abandoned")))
