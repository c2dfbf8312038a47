"""`hadamem eval`: return and success over episodes that training has not seen."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..envs import EnvError
from .errors import WorkError
from .output import print_table
from .runs import add_run_arguments, bad_input, one_line, open_named_run


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="episodes to play (default: 100)")
    parser.add_argument("--max-steps", type=int, metavar="N",
                        help="truncate episodes after N steps and count them as they are (default: play all to their end)")


def run(args: argparse.Namespace) -> int:
    from ..runs.evaluations import keep
    from ..runs.files import inside
    from ..runs.folder import EVALUATIONS
    from ..training.evaluate import evaluate

    finished: list[int] = []
    try:
        with bad_input(lambda: not finished):      # once an episode has ended, the input was fine
            run, env, options = open_named_run(args)
            inside(run.folder / EVALUATIONS, run.folder)      # before playing, which may take long
            with _counter(args.episodes, finished) as report:
                found = evaluate(run.policy, env, args.episodes, args.seed, args.deterministic, env_options=options,
                                 max_steps=args.max_steps, report=report)
    except EnvError as error:
        raise WorkError(one_line(error)) from error
    variant = f" ({', '.join(f'{name}={json.dumps(value)}' for name, value in options.items())})" if options else ""
    print(f"{env}{variant}, {run.config.network.memory}: {found.episodes} episodes, "
          f"{'most likely' if args.deterministic else 'sampled'} actions, seed {args.seed}")
    width = len("written to")
    print_table(evaluation_rows(found), indent=2, width=width)
    sys.stdout.flush()                # print before writing, which may fail: playing took long
    try:
        paths = keep(run.folder, run.config, found, env=env, env_options=options, seed=args.seed, deterministic=args.deterministic,
                     steps=run.policy.steps)
    except OSError as error:
        print(f"hadamem: this evaluation is not saved: cannot write to {error.filename or run.folder} ({error.strerror or error})",
              file=sys.stderr)
    else:
        print_table([("written to", " and ".join(map(str, paths)))], indent=2, width=width)
    return 0


def evaluation_rows(found: Any) -> list[tuple[str, str]]:
    """An `Evaluation` as rows of a table."""
    rows = [("return", f"{found.mean:.4g}" + ("" if found.ci is None else f"   95 % interval {found.ci[0]:.4g} to {found.ci[1]:.4g}"))]
    summary = found.summary()
    if found.std is not None:
        rows.append(("", f"std {found.std:.3g}, min {summary['min']:.4g}, median {summary['median']:.4g}, max {summary['max']:.4g}"))
    if found.success is not None:
        low, high = found.success_ci
        rows.append(("success", f"{100 * found.success:.1f} %   95 % interval {100 * low:.1f} % to {100 * high:.1f} %"))
    rows.append(("length", f"{summary['length']:.4g} steps"))
    if found.max_steps is not None:
        rows.append(("truncated", f"{found.truncated} of {found.episodes} episodes, after {found.max_steps:,} steps (--max-steps)"))
    return rows


@contextmanager
def _counter(total: int, seen: list[int]) -> Iterator[Callable[[int], None]]:
    """Counts finished episodes, and shows the count on a terminal."""
    if not sys.stderr.isatty():
        yield seen.append
        return

    def show(done: int) -> None:
        seen.append(done)
        print(f"\r{done} of {total} episodes", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
