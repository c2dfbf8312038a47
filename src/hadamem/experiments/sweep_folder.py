"""The folder of a sweep.

    sweep.json            its definition, complete
    optuna.db             its trials: Optuna's database
    trials/NAME/          the folder of a run, an ordinary one, with NAME.yaml (its settings) and NAME.log
    best.yaml             settings of the best trial, for `hadamem train --config`
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .._version import __version__
from ..files import write_text
from ..lookup import from_file
from ..runs.folder import now
from .sweep import Sweep, from_plain

SWEEPS = Path("sweeps")              # where sweeps go that are given a name only
SWEEP, DATABASE, TRIALS, BEST = "sweep.json", "optuna.db", "trials", "best.yaml"
FORMAT = 1


class SweepFolder:
    def __init__(self, path: Path | str):
        self.path = Path(path)

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    @property
    def best(self) -> Path:
        return self.path / BEST

    def run_folder(self, trial: int, seed: int) -> Path:
        return self.path / TRIALS / f"{trial:04d}-seed-{seed}"

    def exists(self) -> bool:
        return (self.path / SWEEP).exists()

    def check(self, sweep: Sweep) -> None:
        """Refuse a folder that holds something else. The number of trials may change."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is not a folder; choose another one with --out")
        if self.path.exists() and not self.exists() and any(self.path.iterdir()):
            raise ValueError(f"{self.path} exists and holds no sweep; choose another folder with --out")
        if not self.exists():
            return
        before, after = self.read().to_plain(), sweep.to_plain()
        changed = next((key for key in after if key != "trials" and before.get(key) != after[key]), None)
        if changed is not None:
            raise ValueError(f"{self.path} holds a sweep with another {changed} ({_difference(before.get(changed), after[changed])}); "
                             "choose another folder with --out, or another name")

    def begin(self, sweep: Sweep) -> None:
        """Write sweep.json."""
        self.check(sweep)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            content = {"format": FORMAT, "hadamem": __version__, "changed": now(), "sweep": sweep.to_plain()}
            write_text(self.path / SWEEP, json.dumps(content, indent=1) + "\n")
            (self.path / TRIALS).mkdir(exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot write to {self.path}: {error.strerror or error}; choose another folder with --out") from error

    def read(self) -> Sweep:
        """The sweep of sweep.json."""
        file = self.path / SWEEP
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                raise ValueError(f"it is not a sweep of format {FORMAT}")
            return from_plain(from_file(content["sweep"], file))
        except FileNotFoundError as error:
            raise ValueError(f"there is no sweep in {self.path}: it has no {SWEEP}") from error
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is damaged: {error}") from error


def find_folder(text: str) -> Path:
    """A sweep's folder: a path, or a name in sweeps/."""
    path = Path(text)
    return SWEEPS / text if not (path / SWEEP).exists() and (SWEEPS / text / SWEEP).exists() else path


def _difference(before: Any, after: Any) -> str:
    """The first entry that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        name = next(name for name in {**before, **after} if before.get(name) != after.get(name))
        return f"{name}: {before.get(name)!r} there, {after.get(name)!r} here"
    return f"{before!r} there, {after!r} here"
