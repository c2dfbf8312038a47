"""Saved evaluations of a run: all in `evaluations.jsonl`, the latest on the run's own env in `eval.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..files import write_text
from .config import TrainConfig
from .folder import EVALUATION, EVALUATIONS, now
from .metrics import append_row


def keep(folder: Path, config: TrainConfig, evaluation: Any, *, env: str, env_options: dict[str, Any], seed: int, deterministic: bool,
         steps: int | None) -> list[Path]:
    """Save an `Evaluation`. Returns the paths of the files. config: of the run; steps: env steps that the policy was trained for.

    `eval.json` is only written if env and options are those of the run.
    """
    row = {"date": now(), "env": env, "env_options": env_options, "seed": seed, "deterministic": deterministic, "steps": steps,
           **evaluation.summary()}
    all_evaluations, latest = folder / EVALUATIONS, folder / EVALUATION
    append_row(all_evaluations, row)
    if (env, env_options) != (config.env, config.env_options):
        return [all_evaluations]
    write_text(latest, json.dumps(row, indent=1) + "\n")
    return [latest, all_evaluations]
