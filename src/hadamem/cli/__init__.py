"""The `hadamem` command.

Each subcommand is a line in COMMANDS and a module with `arguments(parser)` and `run(args) -> exit code`.

Exit codes: 0 success; 1 the command failed, or a check found failures; 2 bad input. Errors are one sentence on stderr;
`--debug` shows the traceback instead.
"""

from __future__ import annotations

import argparse
import contextvars
import errno
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from .._version import __version__
from ..lookup import import_from_here, trusting
from ..names import did_you_mean, shorten
from .errors import UsageError, WorkError
from .extras import install_hint


class Command(NamedTuple):
    """A help text, and the module of this package that does the work. It is imported when the command is used."""

    help: str
    module: str
    extra: str = "train"      # the extra that the command needs

    def load(self) -> Any:
        return importlib.import_module(f".{self.module}", __name__)


COMMANDS = {   # "name", or "group name"
    "bench memory": Command("time SHM on every backend against a plain loop, nn.GRU and nn.LSTM; with --all every memory", "bench_memory",
                            ""),
    "bench envs": Command("measure env steps per second of the batched tasks, next to the popgym package", "bench_envs", "envs"),
    "bench learning": Command("train on everyday tasks with the default settings, beside sb3-contrib's RecurrentPPO", "bench_learning"),
    "train": Command("train an agent with a memory on an env", "train"),
    "eval": Command("play episodes with a trained agent: return and success, with confidence intervals", "evaluate"),
    "watch": Command("show a trained agent playing, as GIF or MP4 or in the terminal", "watch"),
    "export": Command("write a trained agent to a file that runs without hadamem: ONNX, or torch.export", "export"),
    "inspect": Command("show a trained agent's memory over one episode, as a web page", "inspect"),
    "study": Command("run a study of your own (envs x memories x seeds) from a YAML file, or show how far it is", "study"),
    "sweep": Command("search for good settings of a run with Optuna, from a YAML file, or show how far a search is", "sweep",
                     "train,sweep"),
    "paper": Command("make any table or figure of the paper, by its name", "paper"),
    "report": Command("make a page, tables and figures from the results of studies", "report"),
    "verify": Command("check every file of a run for damage", "verify"),
    "compare": Command("compare any runs: scores, curves and statistics on one page", "compare"),
    "check-memory": Command("check that a memory of your own keeps the contract of hm.Memory", "check_memory", ""),
    "list": Command("list memories, agents, envs or backends", "listing", ""),
    "play": Command("play an env by hand in the terminal", "play", "envs"),
}
LONGEST_MESSAGE = 2000      # an error repeats what the user wrote, which may be a file's content by mistake
GROUPS = {"bench": "measure speed, memory use and learning on this machine"}


class _Parser(argparse.ArgumentParser):
    words: Sequence[str] = ()

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Build the parser. Only commands named in `words` get their options: some import a lot to find them."""
    parser = _Parser(prog="hadamem", description="Memory for reinforcement-learning agents.")
    parser.add_argument("--version", action="version", version=f"hadamem {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    top = parser.add_subparsers(title="commands", metavar="COMMAND")
    groups: dict[str, Any] = {}
    for path, command in COMMANDS.items():
        group, _, name = path.rpartition(" ")
        if group and group not in groups:
            inner = top.add_parser(group, help=GROUPS[group], description=_sentence(GROUPS[group]))
            groups[group] = inner.add_subparsers(title="commands", metavar="COMMAND", required=True)
        sub = (groups[group] if group else top).add_parser(name, help=command.help, description=_sentence(command.help))
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        if name in words:
            sub.words = list(words)      # `train` has the options of the agent that is named among them
            with _says_what_to_install(sub.prog, command):
                command.load().arguments(sub)
        sub.set_defaults(command=command, parser=sub)
    return parser


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in argv
    warnings.formatwarning = lambda message, *_, **__: f"{message}\n"      # without our file names and source lines
    try:
        return contextvars.copy_context().run(_run, argv)      # what it trusts ends with it
    except SystemExit as stop:   # --help and --version; or sys.exit("text") in a module of the user
        if stop.code is None or isinstance(stop.code, int):
            return int(stop.code or 0)
        return _fail(str(stop.code), 1)
    except KeyboardInterrupt as stop:
        return _fail("interrupted", getattr(stop, "exit_code", 130))      # `training.signals.Stopped` has one
    except BrokenPipeError:      # `hadamem ... | head`
        _forget_output()
        return 141
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EIO and not error.filename:      # the terminal was closed
            _forget_output()
            return 129
        if debug:
            raise
        if isinstance(error, UsageError):
            return _fail(str(error), 2)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return _fail(f"{shorten(error.filename)} is too long for a path or for a name in one; choose a shorter one", 2)
        text = " ".join(str(error).split())
        if isinstance(error, WorkError):
            return _fail(text, 1)
        return _fail(f"{type(error).__name__}: {text} (--debug shows the traceback)", 1)


def _forget_output() -> None:
    """Nobody reads it any more: without this, Python would complain about it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    import_from_here()
    parser = build_parser(argv)
    args, rest = parser.parse_known_args(argv)
    if rest:
        meant = getattr(args, "parser", parser)
        word = rest[0].partition("=")[0]
        hint = args.explain(word) if hasattr(args, "explain") else ""
        hint = hint or did_you_mean(word, meant._option_string_actions)
        raise UsageError(f"unknown argument {rest[0]!r};{hint} see `{meant.prog} --help`")
    if not hasattr(args, "command"):
        parser.print_help()
        return 0
    with trusting(getattr(args, "trust", False)), _says_what_to_install(args.parser.prog, args.command):
        return args.command.load().run(args)


@contextmanager
def _says_what_to_install(prog: str, command: Command) -> Iterator[None]:
    """Name the extra to install where a package of one is missing."""
    try:
        yield
    except ImportError as error:
        hint = install_hint(error, prog, command.extra)
        if hint is None:
            raise
        raise UsageError(hint) from error


def _fail(message: str, code: int) -> int:
    print(f"hadamem: {message if len(message) <= LONGEST_MESSAGE else message[:LONGEST_MESSAGE] + ' ...'}", file=sys.stderr)
    return code


__all__ = ["COMMANDS", "Command", "UsageError", "WorkError", "build_parser", "main"]
