"""What `eval` and `watch` share: which run, which env; and how errors of a run become one sentence."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..envs import EnvError
from ..lookup import trusted_names
from ..names import close_names
from ..runs import folder as folders
from ..runs.config import settings_table
from ..runs.folder import RUNS
from .errors import UsageError
from .extras import missing_package
from .options import add_setting, add_trust


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its name in runs/")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", help="take the most likely actions")
    how.add_argument("--sampled", action="store_false", dest="deterministic", help="draw actions as in training (default)")
    parser.add_argument("--best", action="store_true", help="the run's best checkpoint instead of the newest")
    parser.add_argument("--env", metavar="NAME", help="another env with the same spaces, instead of the run's own")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which episodes (default: 0); training saw none of them")
    table = settings_table()
    add_setting(parser.add_argument, table.settings["env_options"], table,
                "an option of the env, in addition to the run's: --env-option k=5; repeatable")
    add_trust(parser)


def open_named_run(args: argparse.Namespace) -> tuple[Any, str, dict[str, Any]]:
    """The run, the env to play it on, and that env's options."""
    from ..training.run import open_run

    path = folders.find_run(args.run)
    if not folders.is_run(path):
        lost = (path / folders.CHECKPOINTS).is_dir()
        hint = f"`hadamem train --resume --out {path}` writes its {folders.CONFIG} again" if lost else "`hadamem train` makes one"
        raise ValueError(f"there is no run in {path};{suggest_runs(path)} {hint}")
    if args.best and not (path / folders.BEST).is_dir():
        raise ValueError(f"{path} has no best checkpoint yet; leave out --best")
    run = open_run(path, trust=args.trust, best=args.best)
    given = getattr(args, "env_options", {})
    if args.env is None:
        return run, run.config.env, {**run.config.env_options, **given}
    if args.env == run.config.env:      # named again, so that it may be imported
        given = {**run.config.env_options, **given}
    return run, args.env, given


def trust_flags(values: Mapping[str, Any]) -> str:
    """What a command needs that will read these settings from a file: the env again if it is a class of the user, else --trust."""
    names = trusted_names(values)
    env = str(values.get("env", ""))
    return (f" --env {shlex.quote(env)}" if env in names else "") + (" --trust" if set(names) - {env} else "")


def runs_inside(path: Path) -> list[Path]:
    """The runs in a folder, or in the folder of that name in runs/: several seeds, for example."""
    for folder in (path, RUNS / path):
        found = sorted(child for child in folder.iterdir() if folders.is_run(child)) if folder.is_dir() else []
        if found:
            return found
    return []


def suggest_runs(path: Path) -> str:
    """Runs inside it, or with similar names, as a hint."""
    inside = runs_inside(path)
    if inside:
        listed = ", ".join(child.name for child in inside[:3]) + (", ..." if inside[3:] else "")
        return f" it holds several runs ({listed}): name one of them, such as {inside[0]}, or repeat `hadamem train` with --seeds;"
    names = [p.name for p in RUNS.iterdir() if folders.is_run(p)] if RUNS.is_dir() else []
    near = close_names(path.name, names, n=2)
    return f" did you mean {' or '.join(str(RUNS / name) for name in near)}?" if near else ""


@contextmanager
def bad_input(applies: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Turn errors about the input into a UsageError, as long as it `applies`: once the work has begun, the input was fine."""
    try:
        yield
    except (ValueError, TypeError, ImportError, EnvError, OSError) as error:
        if not applies() or isinstance(error, BrokenPipeError) or (isinstance(error, ImportError) and missing_package(error)):
            raise
        if isinstance(error, OSError):
            where = f": {error.filename}; choose another path" if error.filename else ""
            raise UsageError(f"{error.strerror or one_line(error)}{where}") from error
        raise UsageError(one_line(error)) from error


def one_line(error: Exception) -> str:
    """The message, without the traceback of a worker process that may follow it."""
    return " ".join(str(error).partition("\nIn the worker")[0].split()).rstrip(".:")
