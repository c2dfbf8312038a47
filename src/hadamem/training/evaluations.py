"""What a run's folder keeps of its evaluations: all of them in `evaluations.jsonl`, the newest of the run's own task in `eval.json`."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from .checkpoint import write_text
from .config import TrainConfig
from .evaluate import Evaluation
from .folder import EVALUATION, EVALUATIONS, now
from .metrics import append_row


def keep(folder: Path, config: TrainConfig, found: Evaluation, *, env: str, env_options: dict[str, Any], seed: int, deterministic: bool,
         steps: int | None) -> list[Path]:
    """Write an evaluation down, and say where. config: of the run; steps: of training that the policy had behind it.

    `eval.json` is left as it is where the env or its options are not those of the run: it says how good the run is at its own task.
    """
    row = {"date": now(), "env": env, "env_options": env_options, "seed": seed, "deterministic": deterministic, "steps": steps,
           **found.summary()}
    every, newest = folder / EVALUATIONS, folder / EVALUATION
    if not every.exists() and newest.exists():
        _take_over(newest, every)
    append_row(every, row)
    if (env, env_options) != (config.env, config.env_options):
        return [every]
    write_text(newest, json.dumps(row, indent=1) + "\n")
    return [newest, every]


def _take_over(newest: Path, every: Path) -> None:
    """An eval.json from before there was a file of all: it becomes the first row of that file, as eval.json may be replaced now."""
    try:
        row = json.loads(newest.read_bytes())
    except ValueError:
        return
    if isinstance(row, dict):
        written = datetime.datetime.fromtimestamp(newest.stat().st_mtime, datetime.timezone.utc)
        append_row(every, {"date": written.isoformat(timespec="seconds"), **row})
