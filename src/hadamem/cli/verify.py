"""`hadamem verify`: check every file of a run for damage."""

from __future__ import annotations

import argparse
from pathlib import Path

from .runs import bad_input, suggest_runs


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its name in runs/; or the folder of a checkpoint or saved policy")


def run(args: argparse.Namespace) -> int:
    """Exit code 0: everything is as it was written; 1: it is not."""
    from ..runs.checkpoint import ABOUT
    from ..runs.folder import CHECKPOINTS, find_run, is_run
    from ..runs.verify import verify

    with bad_input():
        path = find_run(args.run)
        if not (is_run(path) or (path / CHECKPOINTS).is_dir() or (path / ABOUT).exists()):
            raise ValueError(f"there is no run, checkpoint or saved policy in {path};{suggest_runs(Path(path))} name its folder")
        problems = list(verify(path))
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{path}: no damage found")
    return 1 if problems else 0
