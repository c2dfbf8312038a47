"""Train cells of the POPGym studies in the order given, many at once, for a limited time on one GPU.

    PYTHONPATH=src python benchmarks/popgym_queue.py --seconds 1600 --jobs 15 'popgym-best-[ABCR]*-shm-1' 'popgym-best-[ABCR]*-gpt2-1'

PATTERN: names of cells, `PRESET[-VARIANT]-TASK-MEMORY-SEED`; those of the first pattern come first. Cells with a record are not
repeated. With fewer than --last seconds left no other cell is started; what is not finished in time is stopped with a checkpoint, and
resumed by the same command if its folder (--out) is still there. With NVIDIA's MPS (`nvidia-cuda-mps-control -d`) fifteen cells of
`popgym-best` share a GPU well.
"""

from __future__ import annotations

import argparse
import fnmatch
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hadamem.experiments.folder import StudyFolder
from hadamem.experiments.local import worker_arguments
from hadamem.experiments.records import read_record
from hadamem.experiments.studies import ablation, popgym_table
from hadamem.experiments.study import Study, TrainTask
from hadamem.training.processes import Job, python_module, run_jobs

SEEDS = 5


def find_cells(patterns: list[str]) -> list[TrainTask]:
    """The cells of all POPGym studies whose names match, in the order of the patterns."""
    protocols = {"fair": popgym_table.MEMORIES, "release": popgym_table.MEMORIES, "best": popgym_table.BEST, "gae": popgym_table.BEST}
    studies = [popgym_table.make(name, seeds=SEEDS, memories=memories) for name, memories in protocols.items()]
    studies += [ablation.make(protocol, seeds=SEEDS, memories=popgym_table.BEST, tasks=popgym_table.TASKS) for protocol in ("best", "gae")]
    cells = {task.name: task for study in studies for task in study.runs}
    names = dict.fromkeys(name for pattern in patterns for name in fnmatch.filter(cells, pattern))
    return [cells[name] for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="+", metavar="PATTERN")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--jobs", type=int, default=15, help="cells at the same time")
    parser.add_argument("--last", type=float, default=300.0, help="with fewer seconds left, none is started")
    parser.add_argument("--records", type=Path, default=Path("docs/results"))
    parser.add_argument("--out", type=Path, default=Path("runs/popgym-queue"))
    args = parser.parse_args()
    begin = time.monotonic()
    cells = find_cells(args.patterns)
    if not cells:
        parser.error(f"no cell matches {' '.join(args.patterns)}")
    folder = StudyFolder(args.out, args.records)
    folder.begin(Study("popgym-queue", "POPGym", cells))
    folder.adopt_records(cells)
    (args.out / "runs").mkdir(exist_ok=True)

    def say(*words: object) -> None:
        print(f"{time.monotonic() - begin:6.0f} s", *words, flush=True)

    def jobs() -> Iterator[Job]:
        for task in cells:
            if time.monotonic() - begin > args.seconds - args.last:
                return
            if not folder.finished(task):
                say("starts  ", task.name)
                command = [*python_module("hadamem.experiments.worker"), *worker_arguments(folder, task)]
                yield Job(task.name, partial(list, command), folder.log(task))

    def tick(running: list[Job]) -> None:
        for job in running:
            if job.code is not None:
                record = read_record(args.records / f"{job.name}.json") if job.code == 0 else None
                found = f"{100 * record['final']['return']:.1f}" if record else job.last_error()
                say("finished" if record else "failed  ", job.name, found)
        if time.monotonic() - begin > args.seconds:
            raise KeyboardInterrupt

    run_jobs(jobs(), args.jobs, tick=tick, stopping=partial(say, "time is over: writing checkpoints"), every=1.0)
    done = sum(folder.finished(task) for task in cells)
    say(f"{done} of {len(cells)} cells finished")


if __name__ == "__main__":
    main()
