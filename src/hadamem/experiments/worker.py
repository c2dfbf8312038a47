"""Do tasks of a study in this process: `python -m hadamem.experiments.worker FOLDER TASK ...`. Every launcher comes down to this."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..bench.timing import machine
from ..devices import find_device
from ..files import clip_text, write_text
from ..lookup import import_from_here, trust_names
from ..runs.folder import is_locked, rebuild_config
from ..training.loop import train
from ..training.processes import end_with_parent
from ..training.run import Run
from ..training.session import Diverged
from .folder import StudyFolder
from .records import make_record, read_record, write_record
from .study import MeasureTask, TrainTask

FAILED, BAD_INPUT, DIVERGED, INTERRUPTED = 1, 2, 3, 130      # exit codes
FINAL = (BAD_INPUT, DIVERGED, INTERRUPTED)                   # the same will happen again, or the user wanted it
PATIENCE = 60.0                                 # seconds to wait for another worker to leave the run's folder


def do_task(folder: StudyFolder, name: str) -> int:
    """Train or measure, unless it is done already. Returns an exit code; 0: the result is there."""
    task = folder.task(name)
    if folder.finished(task):
        return 0
    if isinstance(task, MeasureTask):
        return _measure(folder, task)
    run = _train(folder, task)
    record = make_record(run, machine(find_device(run.config.device)), name=task.name, labels=dict(task.labels))
    if folder.extra_records is not None:
        _keep(folder.extra_records / f"{task.name}.json", record)
    if run.status != "finished":
        return INTERRUPTED
    write_record(folder.result_file(task), record)
    return 0


def _keep(path: Path, record: dict[str, Any]) -> None:
    """Write a record, also of a run that is not finished, unless there is one of a longer run."""
    before = read_record(path)
    if before is None or before["steps"] <= record["steps"]:
        write_record(path, record)


def _train(folder: StudyFolder, task: TrainTask) -> Run:
    place = folder.run_folder(task)
    place.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + PATIENCE
    while is_locked(place) and time.monotonic() < end:      # an earlier worker is writing its last checkpoint
        time.sleep(0.2)
    return train(task.config(), place, resume=resumption(place), notify=lambda text: print(text, flush=True))


def resumption(place: Path) -> str | bool:
    """What `train` is told about a run's folder: continue if there is one, but never from the best checkpoint, which would hide that a run
    has diverged."""
    return "newest" if rebuild_config(place, print) else False


def _measure(folder: StudyFolder, task: MeasureTask) -> int:
    function = find_measure(task.function)
    start = time.monotonic()
    found = function(**task.settings)
    content = {"task": task.name, "settings": dict(task.settings), "seconds": round(time.monotonic() - start, 2),
               "machine": machine(find_device("auto")), "found": found}
    file = folder.result_file(task)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(content) + "\n")
    return 0


def find_measure(text: str) -> Any:
    """The function "module:name" of `experiments.studies`. Others are refused: study.json may come from somebody else."""
    module, _, name = text.partition(":")
    if not module.isidentifier() or not name.isidentifier() or name.startswith("_"):
        raise ValueError(f"function must be written module:name, got {text!r}")
    try:
        found = getattr(importlib.import_module(f".studies.{module}", __package__), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no measurement {text!r} in hadamem.experiments.studies: {error}") from error
    if getattr(found, "__module__", "") != f"{__package__}.studies.{module}":
        raise ValueError(f"{text!r} is not a measurement of hadamem.experiments.studies")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--records", type=Path)
    parser.add_argument("--trust-names", nargs="+", default=[], help="classes of the user that may be imported")
    args = parser.parse_args(argv)
    prepare(args.trust_names)
    folder = StudyFolder(args.folder, args.records)
    worst = 0
    for name in args.tasks:      # one after the other; a failure does not stop the others
        code = guard(partial(do_task, folder, name), partial(_note, folder, name))
        if code == INTERRUPTED:
            return code
        worst = max(worst, code)
    return worst


def _note(folder: StudyFolder, name: str, error: str) -> None:
    folder.note_failure(name, {"error": error})


def prepare(names: Sequence[str]) -> None:
    """What a worker process does first: it may import the user's classes, and ends with the process that started it."""
    import_from_here()
    trust_names(names)
    end_with_parent()


def guard(work: Callable[[], int], failed: Callable[[str], None] = lambda error: None) -> int:
    """The exit code of a worker process: what `work` returns, or what its error means. The error is the last line on stderr.

    failed: called with the error.
    """
    try:
        return work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, TypeError) as error:      # settings that do not fit: the same will happen again
        print(f"hadamem: {clip_text(error)}", file=sys.stderr, flush=True)
        failed(clip_text(error))
        return BAD_INPUT
    except Diverged as error:                     # and so will this
        print(f"hadamem: {clip_text(error)}", file=sys.stderr, flush=True)
        failed(clip_text(error))
        return DIVERGED
    except Exception as error:
        import traceback

        traceback.print_exc()
        print(f"hadamem: {type(error).__name__}: {clip_text(error)}", file=sys.stderr, flush=True)
        failed(f"{type(error).__name__}: {clip_text(error)}")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
