"""`hadamem check-memory`: check a memory of your own against the contract of `hm.Memory`."""

from __future__ import annotations

import argparse

from .errors import UsageError
from .options import NameValue


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("spec", metavar="package.module:Class", help="the memory; modules in the current folder can be imported")
    add("--input-size", type=int, default=8, metavar="D", help="input_size to build it with (default: 8)")
    add("--output-size", type=int, default=6, metavar="O", help="output_size to build it with (default: 6)")
    add("--option", action=NameValue, default={}, metavar="NAME=VALUE", dest="options",
        help="a keyword argument of Class, as JSON or text: --option memory_size=16; repeatable")


def run(args: argparse.Namespace) -> int:
    from ..testing import check_spec
    from ..testing.report import explain

    for name in ("input_size", "output_size"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be positive, got {getattr(args, name)}")
    try:
        report = check_spec(args.spec, args.input_size, args.output_size, args.options, raise_on_failure=args.debug)
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        where = explain(error)      # the line of the user's code, if building the memory failed there
        raise UsageError(" ".join(f"{error} ({where})".split() if where else str(error).split())) from error
    print(report)
    if any(check.raised for check in report.failures):
        print("--debug shows the traceback of the first error.")
    return 0 if report.ok else 1
