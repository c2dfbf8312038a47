"""`hadamem inspect`: one episode of a trained agent as a web page that shows what its memory does."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import Any

from .output import print_table
from .runs import add_run_arguments, bad_input, open_named_run

NAME = "inspect.html"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    add = parser.add_argument
    add("--out", metavar="FILE", help=f"the .html file to write (default: {NAME} in the run's folder)")
    add("--episode-steps", type=int, default=1000, metavar="N", help="stop the episode after N steps (default: 1000)")
    add("--open", action="store_true", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    from ..reports.inspect import write_page
    from ..view.record import record

    with bad_input():
        if args.episode_steps < 1:
            raise ValueError(f"--episode-steps must be at least 1, got {args.episode_steps}")
        if args.out is not None:
            check_out(Path(args.out))
        run, env, options = open_named_run(args)
        policy, name = run.policy, Path(run.folder).name
        recording = record(policy, env, seed=args.seed, deterministic=args.deterministic, max_steps=args.episode_steps,
                           env_options=options, title=f"{name}: one episode, step by step", facts=facts(run, env, args.seed),
                           report=lambda text: print(f"{text} ...", file=sys.stderr, flush=True))
        path = write_page(recording, args.out or Path(run.folder) / NAME)
    print(recording.result)
    print_table([("written to", f"{path} ({path.stat().st_size / 1e6:.1f} MB)")], indent=2)
    if args.open:
        webbrowser.open(path.resolve().as_uri())
    return 0


def check_out(path: Path) -> None:
    """Raise a ValueError if the page cannot be written there; checked before the episode is played."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"the file must end in .html, got {str(path)!r}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for {path.name}; make it first")


def facts(run: Any, env: str, seed: int) -> list[tuple[str, str]]:
    """What the top of the page says about the run."""
    config, policy = run.config, run.policy
    steps = "" if policy.steps is None else f"{policy.steps:,} steps"
    found = [("env", env), ("agent", config.agent), ("memory", config.network.memory), ("trained for", steps),
             ("seed of the episode", str(seed))]
    return [(name, value) for name, value in found if value]
