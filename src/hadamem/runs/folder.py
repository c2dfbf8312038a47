"""The folder of a run: its lock, `config.yaml`, and `run.json` with versions, times and status.

    config.yaml                     all settings; starts the run again
    run.json                        versions, seed, device, times, status
    metrics.jsonl                   one row per iteration
    checkpoints/                    the newest ones, see `checkpoint`
    best/                           the best one
    eval.json, evaluations.jsonl    see `evaluations`
    events.out...                   for TensorBoard
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from .._version import __version__
from ..agents import section_of
from ..files import check_path, clear_leftovers, write_text
from .checkpoint import FORMAT, Checkpoints, check_format, read_about
from .config import TrainConfig, from_dict, spell_out, to_dict, to_flat
from .files import CheckpointError, inside
from .yaml_file import dump_yaml, read_yaml

RUNS = Path("runs")      # where `hadamem train --name` puts runs
CONFIG, RUN, METRICS, CHECKPOINTS, BEST = "config.yaml", "run.json", "metrics.jsonl", "checkpoints", "best"
EVALUATION, EVALUATIONS = "eval.json", "evaluations.jsonl"
# Settings that may change on resume: they do not decide what is learned, or (total_steps) only for how long.
FREE = ("total_steps", "device", "preset", "workers", "env_restarts", "env_timeout", "eval_every", "eval_episodes", "eval_env_options",
        "eval_deterministic", "checkpoint_every", "keep_checkpoints", "save_replay", "max_skipped", "log", "compile", "tf32")


class RunFolder:
    """A run's folder, locked while a process trains in it. Use as a context; `begin` writes the first files."""

    def __init__(self, folder: Path | str, resume: bool = False):
        self.path = Path(folder)
        self.info: dict[str, Any] = {}
        self._lock: int | None = None
        self._made: list[Path] = []      # folders to be made, innermost first
        check_path(self.path)
        taken = [name for name in (CONFIG, RUN, METRICS, CHECKPOINTS) if (self.path / name).exists()]
        if taken and not resume:
            raise ValueError(f"{self.path} already holds a run; continue it with --resume (resume=True), or choose a new name")
        try:
            self._made = [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe-{os.getpid()}"
            probe.unlink(missing_ok=True)
            open(probe, "xb").close()      # "x": never through a link
            probe.unlink()
        except OSError as error:
            self._unmake()
            raise ValueError(f"cannot write to the folder {self.path}: {error.strerror or error}; choose another one") from error
        self._identity = _identity(self.path)
        self._take()
        clear_leftovers(self.path)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self._release()
        if not (self.path / CONFIG).exists():      # the run never began
            self._unmake()

    def is_there(self) -> bool:
        """Whether the folder still is where it was when it was opened."""
        try:
            return self._identity == _identity(self.path)
        except OSError:
            return False

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    def checkpoints(self, keep: int = 2) -> Checkpoints:
        return Checkpoints(self.path / CHECKPOINTS, keep)

    def begin(self, config: TrainConfig, changed: Mapping[str, Any], **facts: Any) -> None:
        """Write the settings and the status "running". changed: `changed_settings` of a resumed run. facts: more entries of run.json."""
        before = read_info(self.path)
        if not before:
            save_config(config, self.path / CONFIG)
        self.info = {"format": FORMAT, "status": "running", "env": config.env, "agent": config.agent, "memory": config.network.memory,
                     "seed": config.seed, **facts, "started": before.get("started", now()), "ended": None,
                     "resumed": before.get("resumed", []), "versions": versions()}
        if before:
            entry = {"time": now(), "iteration": facts.get("iterations", 0), **({"changed": dict(changed)} if changed else {})}
            self.info["resumed"] = [*self.info["resumed"], entry]
        self.note()
        save_config(config, self.path / CONFIG)      # after the record of what changed in it

    def note(self, **facts: Any) -> None:
        """Add entries to run.json."""
        self.info |= facts
        write_text(self.path / RUN, json.dumps(self.info, indent=1))

    def end(self, status: str, **facts: Any) -> None:
        """status: finished, interrupted or failed."""
        self.note(status=status, ended=now(), **facts)

    # --- internals -------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Lock the folder; the system drops the lock when this process ends, however it ends."""
        try:
            import fcntl
        except ImportError:      # Windows
            return
        self._lock = os.open(self.path, os.O_RDONLY)
        for left in reversed(range(5)):      # `is_locked` may hold it for a moment
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if not left:
                    self._release()
                    raise ValueError(f"another process is training in {self.path}; wait for it, or choose a new name") from error
                time.sleep(0.05)
            except OSError:      # a file system without locks
                return

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _unmake(self) -> None:
        """Remove the empty folders that were made for a run that did not begin."""
        for path in self._made:
            with contextlib.suppress(OSError):
                path.rmdir()


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def is_locked(folder: Path) -> bool:
    """Whether a process is training in a folder."""
    try:
        import fcntl

        number = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):      # Windows; no such folder
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:      # a file system without locks
        return False
    finally:
        os.close(number)
    return False


def is_run(folder: Path | str) -> bool:
    """Whether a folder holds a run."""
    return (Path(folder) / CONFIG).is_file()


def find_run(folder: Path | str) -> Path:
    """The folder; or runs/<folder> if only that one holds a run."""
    folder = Path(folder)
    return RUNS / folder if not is_run(folder) and is_run(RUNS / folder) else folder


def read_info(folder: Path) -> dict[str, Any]:
    """run.json; empty if it is missing or damaged, since nothing depends on it."""
    file = inside(folder / RUN, folder)
    try:
        info = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


# --- config.yaml ---------------------------------------------------------------------------------------------------


def save_config(config: TrainConfig, path: Path) -> None:
    """Write all settings as YAML, with the version of hadamem."""
    import yaml

    values = {"format": FORMAT, "hadamem": __version__, **to_dict(config)}
    try:
        text = dump_yaml(values)
    except (yaml.YAMLError, ValueError) as error:      # the latter: an int of thousands of digits
        raise ValueError(f"config cannot be written to {path}: settings must be numbers, strings, lists and dicts of them "
                         f"({' '.join(str(error).split())})") from error
    write_text(path, text)


def rebuild_config(folder: Path, say: Callable[[str], None]) -> bool:
    """Write a config.yaml that was lost again, from the newest checkpoint that holds it. Returns whether there is one now."""
    if is_run(folder):
        return True
    for path in Checkpoints(folder / CHECKPOINTS).paths():
        try:
            values = read_about(path).get("config")
        except CheckpointError:
            continue
        if not isinstance(values, dict):
            continue
        write_text(folder / CONFIG, dump_yaml({"format": FORMAT, "hadamem": __version__, **values}))
        say(f"{folder / CONFIG} was missing; it was written again from the checkpoint {path.name}")
        return True
    return False


def load_config(path: Path | str) -> TrainConfig:
    """Settings from a YAML file, or from the config.yaml of a run's folder."""
    path = Path(path)
    return from_dict(read_config(path / CONFIG if path.is_dir() else path))


def read_config(path: Path, written: bool = False) -> dict[str, Any]:
    """The nested values of a YAML file, without those that say who wrote it. A file of a newer version is refused.

    written: by the user, as a study is, so that names of classes in it may be imported.
    """
    values = read_yaml(inside(path, path.parent) if path.name == CONFIG else path, written)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must be a mapping from names to values, got {type(values).__name__}")
    check_format(values, path)
    return {name: value for name, value in values.items() if name not in ("format", "hadamem")}


def is_of_a_run(path: Path) -> bool:
    """Whether a settings file was written by a run, which spells out all settings that its version of hadamem had."""
    return "hadamem" in read_yaml(inside(path, path.parent) if path.name == CONFIG else path)


def changed_settings(old: TrainConfig, new: TrainConfig) -> dict[str, list[Any]]:
    """The settings that differ between two configurations, before and now, but for those of `FREE`."""
    before, after = (to_flat(dataclasses.replace(config, network=spell_out(config.network))) for config in (old, new))
    if same_env(old.env, new.env):
        after["env"] = old.env
    return {name: [before.get(name), after.get(name)] for name in {**before, **after}
            if name not in FREE and _lists(before.get(name)) != _lists(after.get(name))}


def check_same(old: TrainConfig, new: TrainConfig, path: Path, changeable: bool = False) -> None:
    """Refuse to resume a run with settings that would make it a different one. changeable: allow what `Agent.changeable` names."""
    kind = new.agent_class
    may = [f"{section_of(new.agent)}.{name}" for name in kind.changeable] if changeable else []
    changed = [f"{name} ({was!r}, now {now!r})" for name, (was, now) in changed_settings(old, new).items() if name not in may]
    if changed:
        raise ValueError(f"{path} was made with other settings: {', '.join(changed)}; keep them to resume it, or start a new run "
                         f"(only these may change: {', '.join((*FREE, *may))})")


def _lists(value: Any) -> Any:
    """A value as a YAML file gives it back: with lists for tuples."""
    if isinstance(value, dict):
        return {name: _lists(x) for name, x in value.items()}
    return [_lists(x) for x in value] if isinstance(value, (list, tuple)) else value


def same_env(one: str, other: str) -> bool:
    """Whether two names may mean one env: a class defined in a script has its bare name, in a module it is module:Class."""
    return one == other or ((":" in one) != (":" in other) and one.rpartition(":")[2] == other.rpartition(":")[2])


# --- versions ------------------------------------------------------------------------------------------------------


def versions() -> dict[str, Any]:
    """What the numbers of a run may depend on."""
    return {"hadamem": __version__, "git": _commit(), "python": platform.python_version(), "torch": torch.__version__,
            "numpy": np.__version__, "gymnasium": gymnasium.__version__, "cuda": torch.version.cuda, "platform": platform.platform(),
            "threads": torch.get_num_threads()}


def _commit() -> str | None:
    """The commit of the source tree that this package lies in, with a + if files were changed; None if it was installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        said = [subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
                for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))]
    except (OSError, subprocess.SubprocessError):
        return None
    return said[0] + ("+" if said[1] else "")


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def describe_device(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"device": str(device), "device_name": name}
