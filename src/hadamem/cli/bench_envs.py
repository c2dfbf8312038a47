"""`hadamem bench envs`: measure env steps per second on this machine."""

from __future__ import annotations

import argparse

from ..devices import find_device
from .errors import UsageError
from .options import given_options


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument      # defaults are in bench.envs.Settings
    add("names", nargs="*", metavar="ENV", help="tasks to time (default: a few of each kind)")
    add("--num-envs", type=int, metavar="N", help="envs in a batch (default: 8192)")
    add("--device", help="auto, cpu, cuda, ... (default: auto, the GPU if there is one)")
    add("--seconds", type=float, metavar="S", help="time for each task (default: 1)")
    add("--no-peer", action="store_false", dest="peer", default=None, help="do not time the popgym package")
    add("--out", metavar="DIR", help="folder for results.json (default: bench/envs)")


def run(args: argparse.Namespace) -> int:
    from ..bench import envs

    given = given_options(args)
    if "names" in given:
        given["names"] = tuple(given["names"])
    try:
        settings = envs.Settings(**given)
        find_device(settings.device)
    except ValueError as error:
        raise UsageError(str(error)) from error
    envs.run(settings)
    return 0
