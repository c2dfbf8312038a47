"""Evaluations in a run's folder: all of them in `evaluations.jsonl`, the newest on the run's own env in `eval.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .config import TrainConfig
from .files import write_text
from .folder import EVALUATION, EVALUATIONS, now
from .metrics import append_row


def keep(folder: Path, config: TrainConfig, found: Any, *, env: str, env_options: dict[str, Any], seed: int, deterministic: bool,
         steps: int | None) -> list[Path]:
    """Save an `Evaluation`; returns the files. config: of the run; steps: env steps that the policy was trained for.

    `eval.json` is written only if env and options are those of the run.
    """
    row = {"date": now(), "env": env, "env_options": env_options, "seed": seed, "deterministic": deterministic, "steps": steps,
           **found.summary()}
    every, newest = folder / EVALUATIONS, folder / EVALUATION
    append_row(every, row)
    if (env, env_options) != (config.env, config.env_options):
        return [every]
    write_text(newest, json.dumps(row, indent=1) + "\n")
    return [newest, every]
