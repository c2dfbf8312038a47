"""Command lines with random options and values, and a few runs for real: an exit code of 0, 1 or 2, and an error in one sentence.

Options come from the parsers, so that a new one is tried at once. What would train, measure or start processes is replaced (`Workshop`):
it ends there, with the settings checked and nothing done.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import hadamem.cli as cli
from hadamem.envs import list_envs
from hadamem.runs.config import from_dict, to_dict

from . import settings, values
from .judge import Failure, problem

TINY = ["--num-envs", "4", "--num-steps", "8", "--steps", "32", "--memory-size", "4", "--encoder-size", "8", "--layer-size", "8",
        "--head-size", "8", "--num-epochs", "1", "--num-minibatches", "1", "--log", "none", "--plain", "--device", "cpu"]
ENDS_HERE = {      # module: functions that would take long or start processes
    "hadamem.training.launch": ("run_jobs",), "hadamem.experiments.local": ("launch",), "hadamem.training.export": ("export",),
    "hadamem.experiments.cluster": ("connect", "launch"), "hadamem.experiments.sweeping": ("open_study", "ray_jobs"),
    "hadamem.bench.memory": ("run",), "hadamem.bench.zoo": ("run",), "hadamem.bench.envs": ("run",), "hadamem.testing": ("check_spec",),
}
SHORT = ("--episodes", "--max-steps", "--episode-steps", "--fps", "--seconds")      # large numbers are fine, and take their time
NEVER = ("--open", "--help", "--debug", "--version", "--ray-address")
RAW = re.compile(r"hadamem: \w+: .*\(--debug shows the traceback\)")


class Workshop:
    """A folder with files of all kinds to name, in which commands run; and nothing in them takes long."""

    def __enter__(self) -> Workshop:
        self.stack = contextlib.ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="hadamem-fuzz-"))) / "a" / "b" / "c"
        self.folder.mkdir(parents=True)      # so deep that ../.. is still inside
        before = os.getcwd()
        os.chdir(self.folder)
        self.stack.callback(os.chdir, before)
        (self.folder / "study.yaml").write_text("name: small\nenvs: [TMaze]\nmemories: [gru]\nseeds: 1\nsettings: {total_steps: 64}\n")
        (self.folder / "sweep.yaml").write_text("name: s\nsettings: {env: TMaze}\nsearch: {learning_rate: {from: 1e-4, to: 0.1}}\n")
        (self.folder / "settings.yaml").write_text("env: TMaze\nmemory: gru\n")
        (self.folder / "binary").write_bytes(bytes(range(256)))
        (self.folder / "empty.yaml").touch()
        (self.folder / "folder").mkdir()
        (self.folder / "loop").symlink_to("loop")
        (self.folder / "locked").mkdir(mode=0)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = cli.main(["train", "--env", "TMaze", "--memory", "gru", "--name", "done", *TINY])
        assert code == 0, "the run for the other commands cannot be made"
        self.paths = ["study.yaml", "sweep.yaml", "settings.yaml", "binary", "empty.yaml", "folder", "loop", "locked", "locked/x", "done",
                      "runs/done", "runs/done/config.yaml", "runs/done/metrics.jsonl", "runs", "nowhere", "nowhere/at/all", "binary/x",
                      "/dev/null", "/dev/null/x", "/proc/self/mem", "x" * 256, "y/" * 3000, "out.html", "out.gif", "out.onnx", "new"]
        for module, names in ENDS_HERE.items():
            for name in names:
                self.stack.enter_context(mock.patch.object(importlib.import_module(module), name, _end))
        self.failed: list[BaseException | None] = []
        self.stack.enter_context(mock.patch.object(cli, "_fail", self._note(cli._fail)))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def _note(self, fail: Callable[[str, int], int]) -> Callable[[str, int], int]:
        def noted(message: str, code: int) -> int:
            self.failed.append(sys.exc_info()[1])
            return fail(message, code)
        return noted

    def case(self, rng: Random) -> tuple[str, Callable[[], None]]:
        """A command line: in words, and as a function that runs it."""
        real = rng.random() < 0.03
        words = self._real(rng) if real else self._command(rng)
        return " ".join(["hadamem", *map(values.brief, words)]), lambda: self.run(words, real)

    def run(self, words: list[str], real: bool) -> None:
        out, err = io.StringIO(), io.StringIO()
        self.failed.clear()
        ready = contextlib.nullcontext() if real else mock.patch("hadamem.training.loop.train", _check_config)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "stdin", io.StringIO()), ready:
            code = cli.main(words)
        said = err.getvalue()
        if code not in (0, 1, 2):
            raise Failure(f"exit code {code!r}; {said[-300:]}")
        if "Traceback (most recent call last)" in said + out.getvalue():
            raise Failure(f"a traceback: {said[-500:]}")
        if RAW.search(said):
            raise Failure(f"exit code {code} with {said[-500:]}")
        if code == 2 and (not said.rstrip().split("\n")[-1].startswith("hadamem: ") or len(said) > 8000):
            raise Failure(f"exit code 2 without a sentence: {said[-500:]}")
        cause = self.failed[-1].__cause__ if self.failed and self.failed[-1] is not None else None
        if type(cause) in (ValueError, TypeError):      # and not argparse's, or the system's
            wrong = problem(cause)
            if wrong is not None and "argparse" not in wrong:
                raise Failure(f"{said.strip()[:200]} comes from {wrong}")

    def _command(self, rng: Random) -> list[str]:
        name = rng.choice([*cli.COMMANDS, "train", "train", "train", "eval"])
        words = name.split()
        parser = _parser(words)
        options = [action for action in parser._actions if action.option_strings and not set(action.option_strings) & set(NEVER)]
        for action in (action for action in parser._actions if not action.option_strings):
            words += [self._value(rng, action) for _ in range(rng.choice([1, 1, 1, 0, 2]))]
        if name == "train" and rng.random() < 0.8:
            words += ["--env", rng.choice(["TMaze", "popgym/RepeatPreviousEasy", rng.choice(list_envs()), rng.choice(values.TEXTS)])]
        for _ in range(rng.choice([0, 1, 1, 2, 3]) if options else 0):
            action = rng.choice(options)
            words.append(rng.choice(action.option_strings))
            count = {None: 1, "?": rng.randint(0, 1), "+": rng.randint(1, 2), "*": rng.randint(0, 2), 0: 0}.get(action.nargs, 1)
            words += [self._value(rng, action) for _ in range(count)]
        if rng.random() < 0.05:
            words.insert(rng.randrange(len(words) + 1), rng.choice(values.TEXTS))
        return [word.lstrip("/") or "." for word in words if word not in NEVER]      # nothing outside may be written to

    def _value(self, rng: Random, action: argparse.Action) -> str:
        if action.choices and rng.random() < 0.8:
            return str(rng.choice(list(action.choices)))
        if set(action.option_strings) & set(SHORT):
            return rng.choice(["1", "2", "0", "-1", "nan", "x", "", "1e39" if action.type is int else "2"])
        kind = rng.randrange(10)
        if kind < 3:
            return rng.choice(self.paths)
        if kind < 6:
            return rng.choice([str(x) for x in values.NUMBERS if not isinstance(x, int) or x < 10**300])
        if kind < 8:
            return f"{rng.choice(['k', 'gamma', 'env_options.k', 'nonsense', 'ppo.lr', '', 'memory_size'])}={rng.choice(values.TEXTS)}"
        if action.dest in ("env", "network.memory", "spec") and rng.random() < 0.5:
            return rng.choice(["TMaze", "CartPole-v1", "gru", "none", "hadamem.memory:GRU"])
        return rng.choice(values.TEXTS)

    def _real(self, rng: Random) -> list[str]:
        """A run of one tiny iteration with a strange setting or two."""
        words = ["train", "--env", rng.choice(["TMaze", "popgym/RepeatPreviousEasy"]), "--memory", rng.choice(["gru", "none", "shm"]),
                 "--out", f"real/{rng.getrandbits(32)}", *TINY]
        table = settings.settings_table()
        fixed = ("env", "device", "total_steps", "agent", "preset", "workers")
        for name in rng.sample([name for name in table.settings if name not in fixed], 2):
            setting = table.settings[name]
            given = settings.value(rng, setting)
            if setting.kind in (int, float) and not isinstance(given, int | float):
                given = 1
            if isinstance(given, int) and not isinstance(given, bool) and 1024 < given < 10**12:
                given = 3      # it would be tried, and take its time
            if setting.kind in (int, float, bool, str) and given is not None:
                with contextlib.suppress(ValueError):      # an int of thousands of digits
                    words += ["--set", f"{name}={given}"]
        return words


def _end(*_: Any, **__: Any) -> Any:
    raise SystemExit(0)


def _check_config(config: Any, *_: Any, **__: Any) -> Any:
    if from_dict(to_dict(config)) != config:
        raise Failure("the config is not the one from a dict of it")
    raise SystemExit(0)


_parsers: dict[str, argparse.ArgumentParser] = {}


def _parser(words: list[str]) -> argparse.ArgumentParser:
    """The parser of a command."""
    key = " ".join(words)
    if key not in _parsers:
        parser: Any = cli.build_parser(words)
        for word in words:
            parser = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices[word]
        _parsers[key] = parser
    return _parsers[key]


@contextlib.contextmanager
def limited_memory(gigabytes: float) -> Iterator[None]:
    """Less memory for this process, so that a huge size fails rather than fill the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
