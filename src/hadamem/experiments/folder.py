"""The folder of a study.

    study.json        its tasks, complete: a worker needs nothing else
    runs/NAME/        the folder of a training run, and NAME.log
    records/NAME.json the record of a finished run: scores and curves
    results/NAME.json what a measurement returned
    failures/NAME.json  why a task failed, until it succeeds
    report/           see `hadamem report`
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._version import __version__
from ..files import write_text
from ..lookup import from_file
from ..runs.folder import is_locked, is_run, now
from .records import misfit, read_record, write_record
from .study import MeasureTask, Study, Task, TrainTask, from_plain, to_plain

STUDY = "study.json"
STUDIES = Path("studies")            # where studies go that are given a name only
FORMAT = 1
NEEDED = ("name", "title", "about", "score", "scale", "source", "tasks")


class StudyFolder:
    """A study on disk. records: another folder with records of finished runs; new ones are written there as well."""

    def __init__(self, path: Path | str, records: Path | str | None = None):
        self.path = Path(path)
        self.extra_records = None if records is None else Path(records)

    def exists(self) -> bool:
        return (self.path / STUDY).exists()

    def begin(self, study: Study) -> None:
        """Write study.json, or check that the folder holds the same study. Tasks may be added, not changed."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; choose a folder with --out")
        if self.path.exists() and not self.exists() and any(not path.name.startswith(f".{STUDY}") for path in self.path.iterdir()):
            raise ValueError(f"{self.path} exists and holds no study; choose another folder with --out")
        source = dict(study.source)
        tasks = {task.name: to_plain(task) for task in study.tasks}
        if self.exists():
            saved = self.read()
            if saved["name"] != study.name:
                raise ValueError(f"{self.path} holds the study {saved['name']!r}, not {study.name!r}; choose another folder with --out")
            before = {task["name"]: task for task in saved["tasks"]}
            changed = next((name for name in tasks if name in before and tasks[name] != before[name]), None)
            if changed is not None:
                raise ValueError(f"{self.path} holds {changed!r} with other settings ({_difference(before[changed], tasks[changed])}); "
                                 "choose another folder with --out")
            if set(tasks) <= set(before):      # a part of what is there
                source = saved["source"]
            tasks = {**before, **tasks}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            content = {"format": FORMAT, "name": study.name, "title": study.title, "about": study.about, "score": study.score,
                       "scale": study.scale, "source": source, "hadamem": __version__, "changed": now(),
                       "tasks": list(tasks.values())}
            write_text(self.path / STUDY, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise ValueError(f"cannot write to {self.path}: {error.strerror or error}; choose another folder with --out") from error

    def read(self) -> dict[str, Any]:
        """The content of study.json."""
        file = self.path / STUDY
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ValueError(f"there is no study in {self.path}: it has no {STUDY}") from error
        except (ValueError, OSError) as error:
            raise ValueError(f"{file} is damaged: {error}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT or any(key not in content for key in NEEDED):
            raise ValueError(f"{file} is not a study of format {FORMAT}, or is damaged")
        return from_file(content, file)

    def tasks(self) -> list[Task]:
        return [from_plain(task) for task in self.read()["tasks"]]

    def task(self, name: str) -> Task:
        found = next((task for task in self.tasks() if task.name == name), None)
        if found is None:
            raise ValueError(f"the study in {self.path} has no task {name!r}")
        return found

    def run_folder(self, task: Task) -> Path:
        return self.path / "runs" / task.name

    def log(self, task: Task) -> Path:
        return self.path / "runs" / f"{task.name}.log"

    def result_file(self, task: Task) -> Path:
        """Where the task's result is once it has finished."""
        return self.path / ("results" if isinstance(task, MeasureTask) else "records") / f"{task.name}.json"

    def result(self, task: Task) -> dict[str, Any] | None:
        """The result of a finished task: what a measurement returned, or the record of a run."""
        if not isinstance(task, MeasureTask):
            return read_record(self.result_file(task))
        found = _read_json(self.result_file(task))
        if found is not None and not {"found", "seconds", "machine"} <= set(found):
            raise ValueError(f"{self.result_file(task)} is damaged; delete it to make it again")
        return found

    def kept_record(self, task: TrainTask) -> dict[str, Any] | None:
        """The record of a task in the other folder of records; an error if it is of a run with other settings."""
        if self.extra_records is None:
            return None
        file = self.extra_records / f"{task.name}.json"
        record = read_record(file)
        why = "" if record is None else misfit(record, task.config())
        if why:
            raise ValueError(f"{file} is of a run with other settings ({why}); choose another folder with --records")
        return record

    def adopt_records(self, tasks: Sequence[Task]) -> None:
        """Copy finished records of these tasks from the other folder."""
        for task in tasks:
            if isinstance(task, TrainTask) and not self.finished(task):
                record = self.kept_record(task)
                if record is not None and record["finished"] and record["steps"] >= task.config().total_steps:
                    write_record(self.result_file(task), record)

    def finished(self, task: Task) -> bool:
        return self.result(task) is not None

    def state(self, task: Task) -> str:
        """finished, failed, running, interrupted or waiting."""
        if self.finished(task):
            return "finished"
        if self.failure(task) is not None:
            return "failed"
        if isinstance(task, TrainTask) and is_run(self.run_folder(task)):
            return "running" if is_locked(self.run_folder(task)) else "interrupted"
        return "waiting"

    def failure(self, task: Task) -> dict[str, Any] | None:
        return _read_json(self.path / "failures" / f"{task.name}.json")

    def note_failure(self, name: str, facts: Mapping[str, Any] | None) -> None:
        """Write why a task failed; None: it did not."""
        file = self.path / "failures" / f"{name}.json"
        if facts is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({"time": now(), **facts}) + "\n")

    def lock(self) -> contextlib.AbstractContextManager[None]:
        return lock(self.path, "study")


@contextlib.contextmanager
def lock(path: Path, what: str) -> Iterator[None]:
    """Refuse a second launcher of a study or sweep. The system drops the lock when this process ends, however it ends."""
    try:
        import fcntl
    except ImportError:      # Windows
        yield
        return
    number = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"another process runs the {what} in {path}; wait for it, or look with "
                                 f"`hadamem {what} status {path}`") from error
        yield
    finally:
        os.close(number)


def find_folder(text: str) -> Path:
    """A study's folder: a path, or a name in studies/."""
    path = Path(text)
    return STUDIES / text if not (path / STUDY).exists() and (STUDIES / text / STUDY).exists() else path


def _read_json(file: Path) -> dict[str, Any] | None:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}; delete it to make it again") from error


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The first setting that differs between two tasks."""
    a, b = before.get("settings", {}), after.get("settings", {})
    name = next((name for name in {**a, **b} if a.get(name) != b.get(name)), None)
    return "labels" if name is None else f"{name}: {a.get(name)!r} there, {b.get(name)!r} here"
