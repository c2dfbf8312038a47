"""Compare any runs without a study: runs that differ in the seed alone are one cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..reports.content import Report, Section
from ..runs.config import to_flat
from ..runs.folder import FREE
from ..training.run import Run
from .records import EVALUATION, make_record
from .results import Results
from .sections import own_sections
from .study import Study, TrainTask, check_score

# Settings that do not make a cell of its own. How long a run was, and how it was evaluated, does.
SAME_CELL = {"seed", "env", "network.memory", "threads", *FREE} - {"total_steps", *EVALUATION}


def compare_runs(runs: Sequence[Run], score: str | None = None) -> Report:
    """A report on some runs: scores, curves, comparisons. score: one of `study.SCORES`; None: what all runs have, evaluations first."""
    if not runs:
        raise ValueError("there is nothing to compare: name at least one run")
    started = [run for run in runs if any(row.get("episodes") for row in run.metrics)]
    for run in runs:
        if run not in started:
            raise ValueError(f"{run.folder} has no finished episode yet, so there is nothing to compare")
    keys = [(label["task"], label["memory"], run.config.seed) for run, label in zip(runs, label_runs(runs), strict=True)]
    double = next((run for run, key in zip(runs, keys, strict=True) if keys.count(key) > 1), None)
    if double is not None:
        raise ValueError(f"{double.folder} has the settings and seed of another of these runs, so they do not count as two; leave one out")
    records = [make_record(run, source=str(run.folder)) for run in runs]
    without = next((run for run, record in zip(runs, records, strict=True) if not record["final"]), None)
    if without is not None:
        raise ValueError(f"{without.folder} has no score, since one of its returns was not finite; leave it out")
    shared = [name for name in ("eval_success", "eval_return", "return") if all(name in record["final"] for record in records)]
    if score is None and not shared:
        raise ValueError("these runs have no score in common, since a return of one was not finite; name fewer of them")
    chosen = score or shared[0]
    check_score(chosen)
    for run, record in zip(runs, records, strict=True):
        if chosen not in record["final"]:
            raise ValueError(f"{run.folder} has no {chosen}; choose another score from {', '.join(record['final'])}")
    names = [f"run-{n}" for n in range(len(runs))]
    tasks = [TrainTask(name, labels, {}) for name, labels in zip(names, label_runs(runs), strict=True)]
    scale = 100.0 if chosen.endswith("success") else 1.0
    study = Study("compare", "Comparison of runs", tasks, score=chosen, scale=scale)
    results = Results(study, dict(zip(names, records, strict=True)), {})
    unfinished = [str(run.folder) for run in runs if run.status != "finished"]
    note = f" Not finished: {', '.join(unfinished)}." if unfinished else ""
    sections: list[Section] = own_sections(results)
    facts = {f"run {n + 1}": f"{run.folder}: {record['env']}, {record['agent']} with {record['memory']}, seed {record['seed']}, "
                             f"{record['steps']:,} steps" for n, (run, record) in enumerate(zip(runs, records, strict=True))}
    return Report("Comparison of runs", f"{len(runs)} runs.{note}", sections, facts)


def label_runs(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Task and memory of each run, with the settings in which runs of the same task and memory differ: "shm, ppo.gamma=0.9"."""
    flat = [to_flat(run.config) for run in runs]
    labels = []
    for run, values in zip(runs, flat, strict=True):
        others = [other for other in flat if (other["env"], other["network.memory"]) == (values["env"], values["network.memory"])]
        differ = [name for name in values if name not in SAME_CELL and any(other.get(name) != values[name] for other in others)]
        extra = [f"{name}={_text(values[name])}" for name in differ]
        labels.append({"task": run.config.env, "memory": ", ".join([run.config.network.memory, *extra])})
    return labels


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
