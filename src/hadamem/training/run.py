"""A finished or opened run: its settings, metrics and policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import lookup
from ..runs.config import TrainConfig
from ..runs.folder import BEST, EVALUATIONS, METRICS, find_run, is_run, load_config, read_info
from ..runs.metrics import MetricsLog, read_rows
from .policy import Policy, load_policy

LAST = 10      # iterations that a summary's return is the mean of


class Run:
    """What `train` and `open_run` return. `folder` is None if nothing was written.

    status: running, finished, interrupted or failed. A run that was killed stays "running"; `hadamem train --resume` continues it.
    signal: the number of the signal that asked `train` to stop; None: there was none.
    """

    def __init__(self, config: TrainConfig, folder: Path | None = None, status: str = "unknown", policy: Policy | None = None,
                 log: MetricsLog | None = None, trust: bool = False, best: bool = False):
        self.config, self.folder, self.status, self.trust = config, folder, status, trust
        self.signal: int | None = None
        self._place = folder / BEST if best and folder is not None else folder
        self._policy, self._log = policy, log
        if policy is not None:
            policy.source = self

    @property
    def policy(self) -> Policy:
        """The policy after the last iteration. For an opened run: of its newest complete checkpoint, or the best, loaded on first use."""
        if self._policy is None:
            if self._place is None:
                raise ValueError("this run has neither a policy nor a folder to load one from")
            self._policy = load_policy(self._place, trust=self.trust)
        return self._policy

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per iteration, read from metrics.jsonl each time."""
        if self._log is not None:
            return self._log.rows()
        return [] if self.folder is None else read_rows(self.folder / METRICS)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """One row per `hadamem eval`, oldest first, read from evaluations.jsonl each time."""
        return [] if self.folder is None else read_rows(self.folder / EVALUATIONS)

    def summary(self) -> dict[str, Any]:
        """Plain values: what ran, how far, how fast, and mean return and success of the last 10 iterations in which episodes ended.

        If the run was evaluated while training: return and success of the latest evaluation, after `eval_steps` steps, and the best return.
        """
        rows = self.metrics
        last = rows[-1] if rows else {}
        found: dict[str, Any] = {
            "env": self.config.env, "agent": self.config.agent, "memory": self.config.network.memory, "preset": self.config.preset,
            "seed": self.config.seed, "status": self.status, "iterations": last.get("iteration", 0), "steps": last.get("steps", 0),
            "elapsed": last.get("elapsed", 0.0), "skipped": sum(row.get("skipped", 0) for row in rows),
        }
        if found["elapsed"]:
            found["steps_per_second"] = found["steps"] / found["elapsed"]
        ended = [row for row in rows if row.get("episodes") and "return" in row]
        for name in ("return", "success", "length"):
            counted = [row for row in ended[-LAST:] if name in row]
            if counted:
                found[name] = sum(row[name] * row["episodes"] for row in counted) / sum(row["episodes"] for row in counted)
        if ended:
            found["best_return"] = max(row["return"] for row in ended)      # of an iteration
        evaluated = [row for row in rows if "eval_return" in row]
        if evaluated:
            latest = evaluated[-1]
            found |= {name: latest[name] for name in ("eval_return", "eval_success") if name in latest}
            found |= {"best_eval_return": max(row["eval_return"] for row in evaluated), "eval_steps": latest["steps"]}
        return found

    def __repr__(self) -> str:
        found = self.summary()
        score = f", return {found['return']:.3g}" if "return" in found else ""
        where = "" if self.folder is None else f" in {self.folder}"
        return f"<Run{where}: {found['env']} with {found['memory']}, {found['status']} at {found['steps']:,} steps{score}>"


def open_run(folder: Path | str, *, trust: bool = False, best: bool = False) -> Run:
    """The run in a folder, or of that name in runs/, finished or not.

    trust: as in `load_policy`, also for the policy of the run. best: `policy` is that of its best checkpoint, see `training.best`.
    """
    folder = find_run(folder)
    if not is_run(folder):
        raise ValueError(f"there is no run in {folder}: it has no config.yaml")
    with lookup.trusting(trust):
        config = load_config(folder)
    return Run(config, folder, read_info(folder).get("status", "unknown"), trust=trust, best=best)
