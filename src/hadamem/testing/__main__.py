"""`python -m hadamem.testing golden DIR` and `traces DIR`: compare hadamem with recorded vectors and episodes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from .golden import FileResult, check_golden


def _add_golden(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    parser.add_argument("directory", metavar="DIR", help="folder of golden .npz files")
    parser.add_argument("--models", metavar="A,B", help="only files of these models (default: all)")
    parser.add_argument("--backends", metavar="A,B", help="only these kernel backends (default: all usable here)")
    return _golden


def _golden(args: argparse.Namespace) -> int:
    started = time.perf_counter()

    def show(result: FileResult) -> None:
        print(result, flush=True)

    results = check_golden(args.directory, _split(args.models), backends=_split(args.backends), report=show)
    failed = [r for r in results if not r.ok]
    evidence = sum(r.evidence for r in results)
    passed = len(results) - len(failed) - evidence
    print(f"{len(results)} golden files: {passed} ok, {len(failed)} failed, {evidence} evidence only "
          f"({time.perf_counter() - started:.1f} s)")
    return 1 if failed else 0


def _add_traces(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    parser.add_argument("directory", metavar="DIR", help="folder of recorded episodes, .npz files")
    parser.add_argument("--device", default="cpu", help="where to replay them (default: cpu)")
    return _traces


def _traces(args: argparse.Namespace) -> int:
    from .traces import check_traces  # imports all environments

    started = time.perf_counter()
    results = check_traces(args.directory, device=args.device, report=lambda result: print(result, flush=True))
    failed = sum(not r.ok for r in results)
    print(f"{len(results)} traces: {len(results) - failed} ok, {failed} failed ({time.perf_counter() - started:.1f} s)")
    return 1 if failed else 0


def _split(names: str | None) -> list[str] | None:
    return None if names is None else [n.strip() for n in names.split(",") if n.strip()]


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], Callable[[argparse.Namespace], int]]]] = {
    "golden": ("compare memories and kernels with recorded vectors", _add_golden),
    "traces": ("replay recorded episodes in the environments", _add_traces),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit status: 0 everything agrees, 1 a difference, 2 bad usage (one sentence on stderr)."""
    text = "Check hadamem against recorded numbers."
    parser = argparse.ArgumentParser(prog="python -m hadamem.testing", description=text)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, add) in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=add(sub))
    args = parser.parse_args(argv)
    try:
        return args.run(args)
    except ValueError as error:
        print(f"{parser.prog} {args.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
