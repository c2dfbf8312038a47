"""The `hadamem` command: parse, call, print. Each subcommand is a line in COMMANDS; the work is done elsewhere.

Exit codes: 0 fine, 1 the work was done and found failures (or an unexpected error), 2 bad input. Errors are one
sentence on stderr; `--debug` shows the traceback instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ._version import __version__
from .lookup import import_from_here


class UsageError(Exception):
    """Bad input, to be told to the user in one sentence."""


class WorkError(Exception):
    """The work itself failed, and one sentence says how."""


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


# --- bench memory --------------------------------------------------------------------------------------------------


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    add: Callable[..., Any] = parser.add_argument   # all defaults live in bench.memory.Settings
    add("--all", action="store_true", help="one table of all memories instead, at the paper's sizes and at equal state; takes of the "
        "options below --device, --batch, --time (one of each), --input-size, --peer-size, --repeats, --limit-seconds, --seed, --out")
    add("--only", nargs="+", metavar="NAME", help="with --all: these memories")
    add("--state", type=int, metavar="N", help="with --all: real numbers of state in the second table (default: 1024)")
    add("--config", metavar="FILE", help="settings from a .json or .yaml file, named as the options; options override")
    add("--device", help="auto, cpu, cuda, cuda:1, ... (default: auto, the GPU if there is one)")
    add("--batch", type=int, nargs="+", metavar="B", help="batch sizes")
    add("--time", type=int, nargs="+", metavar="T", help="sequence lengths")
    add("--memory-size", type=int, nargs="+", metavar="H", help="SHM memory sizes: M is H x H")
    add("--input-size", type=int, metavar="D", help="features per step (default: 64)")
    add("--peer-size", type=int, metavar="N", help="hidden size of nn.GRU and nn.LSTM (default: 256)")
    add("--dtype", help="float32 (default), float64, bfloat16 or float16")
    add("--what", nargs="+", metavar="PART", help="op (hm.kernels.shm), module (hm.SHM), step (acting), all (default)")
    add("--backends", nargs="+", metavar="NAME", help="backends of SHM to time (default: all usable on the device)")
    add("--repeats", type=int, metavar="N", help="timed calls per case, at most")
    add("--limit-seconds", type=float, metavar="S", help="time per contender; longer calls are skipped (with --all: made once)")
    add("--seed", type=int, help="seed of weights and inputs (default: 0)")
    add("--quick", action="store_true", default=None, help="a small grid without the scan backend, about a minute on two CPU cores")
    add("--out", metavar="DIR", help="folder for results.json and the plots (default: bench/memory, with --all bench/memories)")
    add("--no-plots", action="store_false", dest="plots", default=None, help="write no plots")


def _bench(args: argparse.Namespace) -> int:
    from .bench import memory, zoo

    given = {key: value for key, value in vars(args).items() if key not in (*_OWN, "all") and value is not None}
    fields = [f.name for f in dataclasses.fields(zoo.Settings if args.all else memory.Settings)]
    values = {**({} if args.config is None else _read_config(args.config, fields)), **given}
    try:
        foreign = [key for key in given if key not in fields]
        if foreign:
            raise ValueError(f"--{foreign[0].replace('_', '-')} is of use {'without' if args.all else 'with'} --all only")
        if args.all:
            zoo.run(zoo.Settings(**{key: _one(key, value) for key, value in values.items()}))
        else:
            memory.run(memory.Settings.make(**values))
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    return 0


def _one(key: str, value: Any) -> Any:
    """A single value of an option that elsewhere takes several."""
    if not isinstance(value, list):
        return value
    if key == "only":
        return tuple(value)
    if len(value) != 1:
        raise ValueError(f"--{key} takes one value with --all, got {len(value)}")
    return value[0]


def _read_config(path: str, known: Sequence[str]) -> dict[str, Any]:
    """Settings from a JSON or YAML file; keys may be written with dashes."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        if Path(path).suffix.lower() in (".yaml", ".yml"):
            try:
                yaml = importlib.import_module("yaml")
            except ImportError as error:
                raise UsageError(f"--config {path} is YAML and needs pyyaml; install it or use a .json file") from error
            values = yaml.safe_load(text)
        else:
            values = json.loads(text)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"--config {path} cannot be parsed: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--config {path} must hold a mapping of option names to values, got {type(values).__name__}")
    values = {str(key).replace("-", "_"): value for key, value in values.items()}
    for key in values:
        if key not in known:
            choices = f"{_near(key, known)} choose from {', '.join(known)}"
            raise UsageError(f"--config {path} has the unknown key {key!r};{choices}")
    return values


# --- bench envs ----------------------------------------------------------------------------------------------------


def _bench_envs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="ENV", help="tasks to time (default: a few of each kind)")
    parser.add_argument("--num-envs", type=int, metavar="N", help="copies in a batch (default: 8192)")
    parser.add_argument("--device", help="auto, cpu, cuda, ... (default: auto, the GPU if there is one)")
    parser.add_argument("--seconds", type=float, metavar="S", help="time for each task (default: 1)")
    parser.add_argument("--no-peer", action="store_false", dest="peer", default=None, help="leave the popgym package out")
    parser.add_argument("--out", metavar="DIR", help="folder for results.json (default: bench/envs)")


def _bench_envs(args: argparse.Namespace) -> int:
    from .bench import envs

    given = {key: value for key, value in vars(args).items() if key not in _OWN and value not in (None, [])}
    if "names" in given:
        given["names"] = tuple(given["names"])
    try:
        settings = envs.Settings(**given)
    except ValueError as error:
        raise UsageError(str(error)) from error
    envs.run(settings)
    return 0


# --- check-memory --------------------------------------------------------------------------------------------------


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", metavar="package.module:Class", help="the memory; the current folder is importable")
    parser.add_argument("--input-size", type=int, default=8, metavar="D", help="Class is built with input_size=D (default: 8)")
    parser.add_argument("--output-size", type=int, default=6, metavar="O", help="and output_size=O (default: 6)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE",
                        help="a keyword argument of Class, as JSON or else text: --option memory_size=16; repeatable")


def _check_memory(args: argparse.Namespace) -> int:
    for name in ("input_size", "output_size"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be positive, got {getattr(args, name)}")
    options = dict(_parse_option(text) for text in args.option)
    import_from_here()
    from .testing.conformance import check_spec
    from .testing.report import explain

    try:
        report = check_spec(args.spec, input_size=args.input_size, output_size=args.output_size,
                            options=options or None, raise_on_failure=args.debug)
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        where = explain(error)      # in the user's own code, if that raised it while it was built
        raise UsageError(" ".join(f"{error} ({where})".split() if where else str(error).split())) from error
    print(report)
    if any(check.raised for check in report.failures):
        print("--debug shows the traceback of the first error that was raised.")
    return 0 if report.ok else 1


def _parse_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--option must look like NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


# --- list ----------------------------------------------------------------------------------------------------------


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = ("memories", "backends", "envs")
    parser.add_argument("kind", choices=kinds, metavar="|".join(kinds), help="what to list")


def _list(args: argparse.Namespace) -> int:
    if args.kind == "memories":
        from .memory import MEMORIES

        rows = [(name, _first_line(make)) for name, make in MEMORIES.items()]
    elif args.kind == "envs":
        listing = _envs_module("listing")
        return _print_table([listing.HEAD, *listing.rows()])
    else:
        from .kernels import _backends

        rows = [(name, _backend_status(name, _backends)) for name in _backends.NAMES]
    return _print_table(rows)


def _print_table(rows: Sequence[Sequence[str]]) -> int:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _envs_module(name: str) -> Any:
    try:
        return importlib.import_module(f".envs.{name}", __package__)
    except ImportError as error:
        raise UsageError(str(error)) from error


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _backend_status(name: str, backends: Any) -> str:
    reason = backends.missing(name)
    if reason is not None:
        return f"not usable here: {reason}"
    if name == "triton" and backends.interpreting():
        return "usable, in Triton's interpreter (TRITON_INTERPRET is set): for tests, very slow"
    import torch

    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    preferred = [f"chosen by auto on {device}" for device in devices if backends.candidates("shm", device)[0] == name]
    return ", ".join(["usable", *preferred])


# --- play ----------------------------------------------------------------------------------------------------------


def _play_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("env", help="a name from `hadamem list envs`, or a Gymnasium id")
    parser.add_argument("--seed", type=int, help="play the episodes of this seed (default: new ones every time)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE",
                        help="an option of the env, as JSON or else text: --option k=3; repeatable")
    parser.add_argument("--show-hidden", action="store_true", help="show the whole state, not only what the agent sees")


def _play(args: argparse.Namespace) -> int:
    play = _envs_module("play")
    options = dict(_parse_option(text) for text in args.option)
    try:
        play.play(args.env, seed=args.seed, options=options, hidden=args.show_hidden)
    except (ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from error
    return 0


# --- train, eval, watch --------------------------------------------------------------------------------------------


def _training(name: str) -> Callable[..., Any]:
    """A function of cli_train, which needs what only training does: it is imported when one of its commands is meant."""
    def call(*args: Any) -> Any:
        try:
            module = importlib.import_module(".cli_train", __package__)
        except ImportError as error:
            raise UsageError(f"this command needs more packages ({error}): pip install 'hadamem[train]'") from error
        return getattr(module, name)(*args)

    return call


# --- the table -----------------------------------------------------------------------------------------------------


class Command(NamedTuple):
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = {   # "group name" or "name"; a new command is a new line
    "bench memory": Command("time SHM on every backend against a plain loop, nn.GRU and nn.LSTM; or all memories with --all",
                            _bench_arguments, _bench),
    "bench envs": Command("count env steps per second of the batched tasks, beside the popgym package",
                          _bench_envs_arguments, _bench_envs),
    "train": Command("train an agent with a memory on an env", _training("train_arguments"), _training("train")),
    "eval": Command("play episodes with a trained agent: return and success, with confidence intervals",
                    _training("eval_arguments"), _training("evaluate")),
    "watch": Command("see a trained agent play, as GIF or MP4 or in the terminal", _training("watch_arguments"), _training("watch")),
    "check-memory": Command("check that a memory of your own keeps the contract of hm.Memory",
                            _check_arguments, _check_memory),
    "list": Command("list memories, backends or envs", _list_arguments, _list),
    "play": Command("play an env by hand in the terminal", _play_arguments, _play),
}
GROUPS = {"bench": "measure speed and memory use on this machine"}
_OWN = ("command", "parser", "debug", "config")   # arguments of the command line itself


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser; only commands that are among the words get their options, since some must import a lot to know them."""
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
            command.arguments(sub)
        sub.set_defaults(command=command, parser=sub)
    return parser


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f" did you mean {near[0]!r}?" if near else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in argv
    warnings.formatwarning = lambda message, *_, **__: f"{message}\n"      # the reader has no use for our lines of code
    try:
        parser = build_parser(argv)
        args, rest = parser.parse_known_args(argv)
        meant = getattr(args, "parser", parser)
        if rest:
            word = rest[0].partition("=")[0]
            same = args.elsewhere(word) if hasattr(args, "elsewhere") else None
            near = f" did you mean {same!r}?" if same else _near(word, [*meant._option_string_actions])
            raise UsageError(f"unknown argument {rest[0]!r};{near} see `{meant.prog} --help`")
        if not hasattr(args, "command"):
            parser.print_help()
            return 0
        return args.command.run(args)
    except SystemExit as stop:   # --help and --version; a module of the user's own may say any text
        if stop.code is None or isinstance(stop.code, int):
            return int(stop.code or 0)
        print(f"hadamem: {stop.code}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hadamem: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:      # `hadamem ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if debug:
            raise
        if isinstance(error, UsageError):
            print(f"hadamem: {error}", file=sys.stderr)
            return 2
        text = " ".join(str(error).split())
        if isinstance(error, WorkError):
            print(f"hadamem: {text}", file=sys.stderr)
            return 1
        print(f"hadamem: {type(error).__name__}: {text} (--debug shows the traceback)", file=sys.stderr)
        return 1
