"""`hadamem study`: run a study of your own from a YAML file, or say how far one is."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..files import clip_text
from ..names import close_names
from .options import add_trust
from .output import print_table
from .runs import bad_input


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hadamem study FILE.yaml [options]\n       hadamem study status FOLDER"
    parser.add_argument("what", metavar="FILE", help="a YAML file that describes the study; or the word status")
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="with status: a study's folder, or its name in studies/")
    add_launch_arguments(parser)
    add_trust(parser)


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that `study`, `paper` and `bench learning` share."""
    add = parser.add_argument
    add("--out", metavar="DIR", help="the study's folder (default: studies/NAME); the same command continues a study that was stopped")
    add("--only", nargs="+", default=[], metavar="PATTERN", help="only these runs, by name: --only '*-shm-*'")
    add("--records", metavar="DIR", help="folder with records of finished runs, which are not repeated; new ones are added")
    add("--no-report", action="store_true", help="do not make the report at the end")
    add_launcher_arguments(parser)


def add_launcher_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of everything that launches many runs."""
    from ..experiments.running import LAUNCHERS

    add = parser.add_argument
    add("--jobs", type=int, metavar="N", help="runs at the same time (default: three per GPU, or one per core)")
    add("--retries", type=int, default=1, metavar="N", help="how often a run that failed is started again (default: 1)")
    add("--launcher", choices=LAUNCHERS, default="local", help="local: processes on this machine (default); ray: a Ray cluster")
    add("--ray-address", metavar="ADDRESS", help="of a running cluster, host:port or auto (default: start one on this machine)")
    add("--gpus-per-run", type=float, default=0.0, metavar="X", help="GPUs that Ray reserves for a run; 0.33: three share one (default: 0)")
    add("--plain", action="store_true", help="print lines instead of the live view, also on a terminal")


def run(args: argparse.Namespace) -> int:
    with bad_input():
        from ..experiments.own import read_study

        if args.what == "status":
            return show_status(args.folder)
        if args.folder is not None:
            raise ValueError(f"unexpected argument {args.folder!r}; a study is one YAML file, and `hadamem study status FOLDER` shows it")
        study = read_study(Path(args.what))
    return run_and_report(study, args)


@contextmanager
def watched(name: str, plain: bool) -> Iterator[tuple[Any, Any]]:
    """A progress view of many runs, and what to call with their states. Until the first call, a ValueError means bad input."""
    from ..devices import sharing_hint
    from ..experiments.status import seconds_left
    from ..view.many import ManyProgress

    started = False
    view = ManyProgress(name, live=False if plain else None)

    def watch(tasks: Any, at_once: int) -> None:
        nonlocal started
        if not started and (hint := sharing_hint(at_once)):
            view.say(hint)
        started = True
        view(tasks, seconds_left(tasks, at_once))

    with bad_input(lambda: not started), view:
        yield view, watch


def run_and_report(study: Any, args: argparse.Namespace) -> int:
    """Launch, watch and report a study. Exit code 0: all of it is finished; 1: something failed; 130: interrupted."""
    from ..experiments.folder import STUDIES, StudyFolder
    from ..experiments.running import choose, run_study
    from ..experiments.status import status_of

    out = STUDIES / study.name if args.out is None else Path(args.out)
    with watched(study.name, args.plain) as (view, watch):
        done = run_study(study, out, launcher=args.launcher, jobs=args.jobs, retries=args.retries, only=args.only, records=args.records,
                         ray_address=args.ray_address, gpus_per_task=args.gpus_per_run, watch=watch,
                         stopping=lambda: view.say("stopping: waiting for the runs to write a checkpoint"))
    folder = StudyFolder(out)
    states = [status_of(folder, task) for task in choose(study.tasks, args.only)]
    lines = [("study", str(out)), ("finished", f"{sum(task.state == 'finished' for task in states)} of {len(states)}")]
    lines += [("failed", f"{task.name}: {task.error}") for task in states if task.state == "failed"]
    print_table(lines, indent=2)
    if not args.no_report and any(task.state == "finished" for task in states):
        print_table([("report", _report(out))], indent=2, width=8)
    return 0 if done else 1 if any(task.state == "failed" for task in states) else 130


def _report(out: Path) -> str:
    """Make the report. Returns its path, or why there is none: the results are complete without it."""
    from .report import make_report

    try:
        return str(make_report([out]))
    except (OSError, ValueError, ImportError) as error:
        return f"not made: {clip_text(error)}; `hadamem report {out}` makes it"


def show_status(text: str | None) -> int:
    from ..experiments.folder import STUDIES, STUDY, StudyFolder, find_folder
    from ..experiments.status import seconds_left, status_of
    from ..view.many import summary
    from ..view.progress import clock, number

    if text is None:
        raise ValueError("status needs a study: hadamem study status FOLDER")
    path = find_folder(text)
    if not (path / STUDY).exists():
        names = [p.name for p in STUDIES.iterdir() if (p / STUDY).exists()] if STUDIES.is_dir() else []
        near = close_names(path.name, names)
        hint = f" did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no study in {path};{hint} `hadamem study FILE.yaml` starts one")
    folder = StudyFolder(path)
    found = [status_of(folder, task) for task in folder.tasks()]
    running = sum(task.state == "running" for task in found)
    print_table([("task", "state", "steps", "return", "time", ""), *(
        (task.name, task.state, f"{task.steps:,} / {task.total:,}" if task.total else "", "" if task.value is None else number(task.value),
         clock(task.seconds) if task.seconds else "", task.error) for task in found)])
    print(f"\n{folder.read()['name']}: {summary(found, seconds_left(found, max(1, running)))}")
    return 0
