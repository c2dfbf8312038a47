"""`hadamem bench learning`: what the default settings learn on everyday tasks, beside sb3-contrib's RecurrentPPO."""

from __future__ import annotations

import argparse

from .runs import bad_input
from .study import add_launch_arguments, run_and_report


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tasks", nargs="+", metavar="NAME", help="only these tasks (default: all whose packages are installed)")
    add("--memories", nargs="+", metavar="NAME", help="only these memories; also recurrent-ppo and recurrent-ppo-tuned (default: shm, gru, "
        "lstm, ffm, none and, if sb3-contrib is installed, those two)")
    add("--seeds", type=int, metavar="N", help="runs per cell (default: 3)")
    add("--budget", type=float, default=1.0, metavar="X", help="X times 100,000 and 500,000 env steps (default: 1)")
    add("--quick", action="store_true", help="two tasks and 2,000 env steps: shows that it works")
    add_launch_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from ..experiments.catalog import make_study

    with bad_input():
        if args.seeds is not None and args.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {args.seeds}")
        study = make_study("learning", quick=args.quick, budget=args.budget, seeds=args.seeds, memories=args.memories, tasks=args.tasks)
    return run_and_report(study, args)
