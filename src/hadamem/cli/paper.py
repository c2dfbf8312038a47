"""`hadamem paper`: any table or figure of the paper by its name."""

from __future__ import annotations

import argparse
from typing import Any

from .output import print_table
from .runs import bad_input
from .study import add_launch_arguments, run_and_report


def arguments(parser: argparse.ArgumentParser) -> None:
    from ..experiments.catalog import PAPER, PROTOCOLS

    parser.add_argument("name", nargs="?", metavar="NAME", help=f"one of {', '.join(PAPER)}; without it, they are listed")
    add = parser.add_argument
    add("--quick", action="store_true", help="a small version of everything, on a CPU in minutes: shows that it works, not what is learned")
    add("--protocol", choices=PROTOCOLS, help="fair: equal terms for all memories (default, if the study has it); release: as published; "
        "best, gae: the presets popgym-best and popgym-gae (POPGym studies alone); "
        "best-small, gae-small: the same in minutes on a CPU (popgym-ablation)")
    add("--budget", type=float, default=1.0, metavar="X", help="X times the env steps, or lengths and repeats (default: 1)")
    add("--seeds", type=int, metavar="N", help="runs per cell (default: as many as the paper has)")
    add("--memories", nargs="+", metavar="NAME", help="only these memories")
    add("--tasks", nargs="+", metavar="NAME", help="only these tasks (popgym-table, popgym-ablation)")
    add("--variants", nargs="+", metavar="NAME", help="only these changes of the preset (popgym-ablation)")
    add_launch_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from ..experiments.catalog import PAPER, make_study

    if args.name is None:
        print_table([("name", "what it makes"), *((name, entry.text) for name, entry in PAPER.items())])
        return 0
    with bad_input():
        if args.quick and args.records is not None:
            raise ValueError("--records holds runs of full length; leave it out with --quick")
        if args.seeds is not None and args.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {args.seeds}")
        options: dict[str, Any] = {"seeds": args.seeds, "memories": args.memories, "tasks": args.tasks, "variants": args.variants}
        study = make_study(args.name, protocol=args.protocol, quick=args.quick, budget=args.budget, **options)
    return run_and_report(study, args)
