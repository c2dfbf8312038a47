"""`hadamem sweep`: search for good settings with Optuna, or say how far a search is."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..names import did_you_mean
from .errors import WorkError
from .options import add_trust
from .output import print_table
from .runs import bad_input, trust_flags
from .study import add_launcher_arguments, watched

SHOWN = 10            # trials in the table at the end
ENOUGH = 10           # finished trials, for the importance of settings


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hadamem sweep FILE.yaml [options]\n       hadamem sweep status FOLDER"
    add = parser.add_argument
    add("what", metavar="FILE", help="a YAML file that describes the sweep; or the word status")
    add("folder", nargs="?", metavar="FOLDER", help="with status: a sweep's folder, or its name in sweeps/")
    add("--out", metavar="DIR", help="the sweep's folder (default: sweeps/NAME); the same command continues a sweep that was stopped")
    add("--trials", type=int, metavar="N", help="how many settings are tried, instead of the file's number; a larger one continues a sweep")
    add_launcher_arguments(parser)
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    with bad_input():
        if importlib.util.find_spec("optuna") is None:
            raise ValueError("`hadamem sweep` needs Optuna: pip install 'hadamem[sweep]'")
        from ..experiments.sweep import read_sweep
        from ..experiments.sweep_folder import SWEEPS

        if args.what == "status":
            return show_status(args.folder)
        if args.folder is not None:
            raise ValueError(f"unexpected argument {args.folder!r}; a sweep is one YAML file, and `hadamem sweep status FOLDER` shows it")
        sweep = read_sweep(Path(args.what))
        if args.trials is not None:
            if args.trials < 1:
                raise ValueError(f"--trials must be at least 1, got {args.trials}")
            sweep = dataclasses.replace(sweep, trials=args.trials)
    return run_and_print(sweep, SWEEPS / sweep.name if args.out is None else Path(args.out), args)


def run_and_print(sweep: Any, out: Path, args: argparse.Namespace) -> int:
    """Exit code 0: all trials are done; 1: too many of them failed; 130: interrupted."""
    from ..experiments.sweep_folder import BEST
    from ..experiments.sweeping import run_sweep

    with watched(sweep.name, args.plain) as (view, watch):
        study = run_sweep(sweep, out, launcher=args.launcher, jobs=args.jobs, retries=args.retries, ray_address=args.ray_address,
                          gpus_per_run=args.gpus_per_run, watch=watch, say=view.say)
    trials = study.get_trials(deepcopy=False)
    finished = in_order(sweep, trials)
    interrupted = any(trial.state.name == "RUNNING" for trial in trials)
    if not finished and not interrupted:
        errors = [trial.user_attrs["error"] for trial in trials if "error" in trial.user_attrs]
        raise WorkError(f"the trials of {out} failed; the last error: {errors[-1]}")
    if finished:
        print()
        print_trials(sweep, finished[:SHOWN])
        print()
        print_importance(study, len(finished))
    counts = {name: sum(trial.state.name == state for trial in trials)
              for name, state in (("finished", "COMPLETE"), ("pruned", "PRUNED"), ("failed", "FAIL"), ("interrupted", "RUNNING"))}
    lines = [("sweep", str(out)), ("trials", ", ".join(f"{count} {name}" for name, count in counts.items() if count))]
    if finished:
        steps = 10 * sweep.config({}).total_steps
        trust = trust_flags(sweep.settings)
        lines += [("best settings", str(out / BEST)),
                  ("train longer", f"hadamem train --config {out / BEST} --steps {steps} --name {sweep.name}-best{trust}")]
    if interrupted:
        lines.append(("continue", "the same command"))
    missing = sweep.trials - counts["finished"] - counts["pruned"]
    if missing > 0 and not interrupted:
        lines.append(("stopped", "too many trials failed in a row; the same command tries more"))
    print_table(lines, indent=2)
    return 130 if interrupted else 1 if missing > 0 else 0


def show_status(text: str | None) -> int:
    from ..experiments.sweep_folder import SWEEP, SWEEPS, SweepFolder, find_folder
    from ..experiments.sweeping import open_study, states
    from ..view.many import summary

    if text is None:
        raise ValueError("status needs a sweep: hadamem sweep status FOLDER")
    path = find_folder(text)
    folder = SweepFolder(path)
    if not folder.exists():
        names = [p.name for p in SWEEPS.iterdir() if (p / SWEEP).exists()] if SWEEPS.is_dir() else []
        raise ValueError(f"there is no sweep in {path};{did_you_mean(path.name, names)} `hadamem sweep FILE.yaml` starts one")
    sweep = folder.read()
    trials = open_study(sweep, folder).get_trials(deepcopy=False) if folder.database.exists() else []
    found = states(sweep, folder, trials)
    print_trials(sweep, trials, found)
    print(f"\n{sweep.name}: {summary(found, None)}")
    return 0


def in_order(sweep: Any, trials: Sequence[Any]) -> list[Any]:
    """The finished trials, best first."""
    finished = [trial for trial in trials if trial.state.name == "COMPLETE"]
    return sorted(finished, key=lambda trial: trial.value, reverse=sweep.direction == "maximize")


def print_trials(sweep: Any, trials: Sequence[Any], found: Sequence[Any] = ()) -> None:
    """A table of trials with their settings; found: their states, for columns with state, steps and error."""
    from ..experiments.sweeping import short, show
    from ..view.progress import number

    def cells(n: int, trial: Any) -> tuple[str, ...]:
        chosen = (show(trial.params[name]) if name in trial.params else "" for name in sweep.search)
        if not found:
            return (str(trial.number), number(trial.value), *chosen)
        state = found[n]
        value = "" if state.value is None else number(state.value)
        return (str(trial.number), value, state.state, f"{state.steps:,} / {state.total:,}", *chosen, trial.user_attrs.get("error", ""))

    names = tuple(short(name) for name in sweep.search)
    head = ("trial", sweep.score, "state", "steps", *names, "") if found else ("trial", sweep.score, *names)
    print_table([head, *(cells(n, trial) for n, trial in enumerate(trials))])


def print_importance(study: Any, finished: int) -> None:
    """How much of the differences between good and other trials each setting explains."""
    import optuna

    from ..experiments.sweeping import short

    if finished < ENOUGH:
        print(f"importance of settings: not estimated from {finished} finished trials, it takes {ENOUGH}\n")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")      # of trials that are all equally good; the importances say so
        found = optuna.importance.get_param_importances(study, evaluator=optuna.importance.PedAnovaImportanceEvaluator())
    print("importance of settings (PED-ANOVA, sums to 1):")
    print_table([(short(name), f"{value:.2f}", "#" * round(20 * value)) for name, value in found.items()], indent=2)
    print()
