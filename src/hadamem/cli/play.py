"""`hadamem play`: play an env by hand in the terminal."""

from __future__ import annotations

import argparse

from .errors import UsageError
from .options import NameValue


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("env", help="a name from `hadamem list envs`, or a Gymnasium id")
    add("--seed", type=int, help="seed of the episodes (default: new episodes every time)")
    add("--option", action=NameValue, default={}, metavar="NAME=VALUE", dest="options",
        help="an option of the env, as JSON or text: --option k=3; repeatable")
    add("--show-hidden", action="store_true", help="show the whole state, not only what the agent sees")


def run(args: argparse.Namespace) -> int:
    from ..envs.play import play

    try:
        play(args.env, seed=args.seed, options=args.options, hidden=args.show_hidden)
    except (ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from error
    return 0
