"""Train several runs in parallel, each in its own process and folder. Finished runs are skipped, unfinished ones are resumed."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..devices import gpu_slots
from ..lookup import trusted_names
from ..runs.config import TrainConfig, to_dict
from ..runs.folder import FREE, METRICS, check_same, is_run, load_config, read_info, rebuild_config, save_config
from ..runs.metrics import read_rows
from .processes import INTERRUPTED, Job, python_module, run_jobs


def train_many(configs: Mapping[str, TrainConfig], out: Path, jobs: int, say: Callable[[str], None] = print) -> dict[str, int]:
    """Train every configuration in the folder out/<name>, at most `jobs` at a time. Returns the exit code of each; 0: finished.

    Ctrl-C, SIGTERM and a closed terminal (SIGHUP, unless it is ignored as under nohup) stop the runs after a checkpoint. Call this again to
    resume them.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    for name, config in configs.items():
        if rebuild_config(out / name, say):
            check_same(load_config(out / name), config, out / name)
    out.mkdir(parents=True, exist_ok=True)
    done = [name for name, config in configs.items() if is_finished(out / name, config.total_steps)]
    for name in done:
        say(f"{name}: already finished")
    with tempfile.TemporaryDirectory() as config_folder:
        todo = [Job(name, partial(_command, out / name, configs[name], Path(config_folder)), log_of(out / name))
                for name in configs if name not in done]
        slots = gpu_slots(config.device for config in configs.values())
        run_jobs(todo, jobs, slots=slots, tick=lambda running: say("  ".join(_line(out / job.name) for job in running) or "..."),
                 stopping=lambda: say("stopping: waiting for the runs to write a checkpoint"))
    for job in todo:
        if job.code and job.starts:
            error = job.last_error()
            say(f"{job.name}: ended with exit code {job.code}{f' ({error})' if error else ''}; see {job.log}")
    return {**dict.fromkeys(done, 0), **{job.name: INTERRUPTED if job.code is None else job.code for job in todo}}


def log_of(folder: Path) -> Path:
    """The output of the process that trains in a folder. It is next to the folder, which the process creates."""
    return folder.with_name(folder.name + ".log")


def is_finished(folder: Path, steps: int) -> bool:
    """Whether a run has done `steps` steps. total_steps may have been raised since it finished."""
    return is_run(folder) and read_info(folder).get("status") == "finished" and load_config(folder).total_steps >= steps


def last_row(folder: Path) -> dict[str, Any]:
    """The newest row of a run's metrics; {} if there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return read_rows(folder / METRICS)[-1]
    return {}


def _command(folder: Path, config: TrainConfig, config_folder: Path) -> list[str]:
    command = [*python_module("hadamem"), "train", "--plain", "--out", str(folder)]
    names = trusted_names(to_dict(config))
    trust = ["--trust-names", *names] if names else []
    if is_run(folder):
        return [*command, "--resume", "--set", *_assignments(config), *trust]
    file = config_folder / f"{folder.name}.yaml"
    save_config(config, file)
    return [*command, "--config", str(file), *trust]


def _assignments(config: TrainConfig) -> list[str]:
    """The settings that may change on resume, as arguments of `--set`. The preset only names where the others come from."""
    values = {name: getattr(config, name) for name in FREE if name != "preset"}
    return [f"{name}={','.join(x) if isinstance(x, tuple) else json.dumps(x) if isinstance(x, dict) else x}" for name, x in values.items()]


def _line(folder: Path) -> str:
    """Status of a run: "seed-1: 120,000 steps, return 0.310"."""
    row = last_row(folder)
    if not row:
        return f"{folder.name}: starting"
    shown = f", return {row['return']:.3f}" if "return" in row else ""
    return f"{folder.name}: {row['steps']:,} steps{shown}"
