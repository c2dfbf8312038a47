"""The record of a run: one small JSON file with settings, machine, times, scores and curves. It outlives the run's folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import write_text
from ..runs.config import TrainConfig, from_dict, spell_out, to_dict
from ..runs.folder import FREE, read_info
from ..statistics import best_score, final_score
from ..training.run import Run

FORMAT = 2
POINTS = 300                                # of a curve; more iterations are averaged in groups
LAST = 10                                   # iterations, or evaluations, at the end that a score is the mean of; a fifth of a short run
NEEDED = ("steps", "finished", "seconds", "final", "best", "curve", "eval", "config", "machine")
EVALUATION = ("eval_env_options", "eval_deterministic", "eval_episodes")      # settings that a score of evaluations depends on
TIMES = ("seconds", "rollout_seconds", "update_seconds", "eval_seconds", "updates", "skipped")


def make_record(run: Run, machine: Mapping[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
    """The record of a finished or stopped run. machine: where it was trained; None: what the run's folder says. facts are added to it.

    A run with a return that was not finite has no score of its training episodes, whatever came before.
    """
    rows, config = run.metrics, run.config
    diverged = any(row.get("episodes") and "return" not in row for row in rows)
    ended = [] if diverged else [row for row in rows if row.get("episodes")]
    evaluated = [row for row in rows if "eval_return" in row]
    values = {name: [row[name] for row in chosen if name in row]
              for chosen, names in ((ended, ("return", "success")), (evaluated, ("eval_return", "eval_success"))) for name in names}
    values = {name: found for name, found in values.items() if found}
    return {
        "format": FORMAT, "env": config.env, "agent": config.agent, "memory": config.network.memory, "preset": config.preset,
        "seed": config.seed, "steps": rows[-1]["steps"] if rows else 0, "finished": run.status == "finished", **facts,
        **{name: round(sum(row.get(name, 0.0) for row in rows), 2) for name in TIMES},
        "final": {name: _short(final_score(found, last=min(LAST, -(-len(found) // 5)))) for name, found in values.items()},
        "best": {name: _short(best_score(found)) for name, found in values.items()},
        "curve": curve_of(ended, ("return", "success")), "eval": curve_of(evaluated, ("eval_return", "eval_success")),
        "config": to_dict(config), "machine": machine_of(run) if machine is None else dict(machine),
        **({"diverged": True} if diverged else {}),
    }


def machine_of(run: Run) -> dict[str, Any]:
    """Where a run was trained, as its folder says."""
    info = {} if run.folder is None else read_info(run.folder)
    versions = info.get("versions", {})
    kind = "gpu" if str(info.get("device", "")).startswith("cuda") else "cpu"
    known = {name: versions.get(name) for name in ("python", "torch", "numpy")}
    return {kind: info.get("device_name"), "commit": versions.get("git"), **known}


def misfit(record: Mapping[str, Any], config: TrainConfig) -> str:
    """The first setting in which a record differs from a run's: "ppo.gamma: 0.99 there, 0.5 here"; "" if it fits.

    A setting that is newer than the record has its default there, which means what was done before; but of the oldest records, where most
    settings had other names, only those are compared that both have. Options of envs and memories are compared as a whole, those of
    memories with their defaults. How it was evaluated counts if it was.
    """
    free = set(FREE) - {"total_steps"} - (set(EVALUATION) if record.get("eval") else set())
    there, here = _comparable(record["config"], config), _comparable(to_dict(config), config)
    if "total_steps" in there:
        there = flatten(to_dict(from_dict({"agent": config.agent}))) | there
    for name in here:
        if name in there and name not in free and there[name] != here[name]:
            if name == "total_steps" and there[name] < here[name]:
                continue      # a shorter run, to be trained again
            if name == "network.memory_output_size" and there[name] is None:
                continue      # the memory's own default, which older records do not spell out
            return _difference(name, there[name], here[name])
    return ""


def _difference(name: str, there: Any, here: Any) -> str:
    if isinstance(there, dict) and isinstance(here, dict):      # the options of an env or a memory
        option = next(option for option in {**here, **there} if there.get(option, ...) != here.get(option, ...))
        name, there, here = f"{name}.{option}", there.get(option, ...), here.get(option, ...)
    return f"{name}: {'not given' if there is ... else repr(there)} there, {'not given' if here is ... else repr(here)} here"


def _comparable(values: Mapping[str, Any], config: TrainConfig) -> dict[str, Any]:
    """The settings of a record by dotted name, with dicts of options left whole. config: of a run with the same kinds of settings."""
    known = {field.name for field in dataclasses.fields(config.network)} & set(values["network"])
    given = dataclasses.replace(config.network, **{name: values["network"][name] for name in known})
    spelled = {name: x for name, x in dataclasses.asdict(spell_out(given)).items() if name in known}
    values = json.loads(json.dumps({**values, "network": {**values["network"], **spelled}}))      # lists for tuples
    whole = {prefix + name: x for prefix, part in (("", values), ("network.", values["network"])) for name, x in part.items()
             if name.endswith("_options")}
    return {name: x for name, x in flatten(values).items() if "_options." not in name} | whole


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted names; lists and tuples are the same."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = list(value) if isinstance(value, tuple) else value
    return found


def curve_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str], points: int = POINTS) -> dict[str, list[float]]:
    """The values of some metrics over steps, at most `points` of each: means of neighbouring rows."""
    names = [name for name in names if rows and all(name in row for row in rows)]
    if not names:
        return {}
    group = -(-len(rows) // points)
    groups = [rows[i:i + group] for i in range(0, len(rows), group)]
    return {"steps": [part[-1]["steps"] for part in groups],
            **{name: [_short(sum(row[name] for row in part) / len(part)) for part in groups] for name in names}}


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(record) + "\n")


def read_record(path: Path) -> dict[str, Any] | None:
    """The record in a file; None if there is none. A file that holds something else is an error."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not the record of a run: {error}; delete it to make it again") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT or any(key not in record for key in NEEDED):
        raise ValueError(f"{path} is not a record of format {FORMAT}, or is damaged; delete it to make it again")
    return record


def _short(x: float) -> float:
    return float(f"{x:.5g}")
