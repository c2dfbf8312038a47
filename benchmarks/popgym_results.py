"""Train POPGym tasks with several memories and write one compact record per run: settings, curve, times. Finished runs are skipped.

    PYTHONPATH=src python benchmarks/popgym_results.py --out docs/results [--tasks RepeatPreviousEasy ...] [--memories shm gru ... | all]
        [--preset popgym-fair] [--seeds 0] [--steps 15000000] [--limit SECONDS] [--lock FILE]
    ... --jobs popgym-fair/AutoencodeEasy/gru popgym-fair/RepeatPreviousEasy/dnc=3000000       # any mixture, each with its own steps

A record is docs/results/<preset>-<task>-<memory>-<seed>.json. Its `curve` holds the mean return of the episodes that ended in each
iteration. Runs stopped by --limit start over the next time. Several of these commands may share a GPU. With the same --lock they build
in parallel and train one after the other, so no other training affects the times (`alone` in the record), though a build may.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

import torch

from hadamem import list_memories
from hadamem.bench.timing import machine
from hadamem.runs.config import make_config, to_dict
from hadamem.training.trainer import Trainer

MEMORIES = {      # name in the records: memory and its options
    "shm": ("shm", {}),                                                              # first row, theta from 0, normalised read
    "shm-clip-none": ("shm", {"clip": None}),
    "shm-clip-1e4": ("shm", {"clip": 1e4}),
    "shm-random-rows": ("shm-paper", {}),                                            # as in the paper: a random row at every step
    "shm-first-row": ("shm-release", {}),                                            # as released: row 0, Xavier start, no norm on the read
    "shm-random-rows-norm": ("shm-paper", {"read_norm": True}),
    **{name: (name, {}) for name in list_memories() if not name.startswith("shm")},   # default sizes
    "gpt2": ("gpt2", {"window": 128}),                                               # covers the longest episode
}


@contextlib.contextmanager
def hold(lock):
    """Hold the file lock, if there is one."""
    if lock is None:
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Job(NamedTuple):
    preset: str
    task: str
    memory: str
    seed: int
    steps: int

    @property
    def record(self):
        return f"{self.preset}-{self.task}-{self.memory}-{self.seed}.json"


def make_trainer(preset, task, memory, **settings):
    """Build the trainer of a POPGym task; `memory` is a name of MEMORIES."""
    memory, options = MEMORIES[memory]
    if options:
        settings["network.memory_options"] = options
    return Trainer(make_config(preset, env=f"popgym/{task}", memory=memory, **settings))


class Run:
    """Builds, trains and records one job."""

    def __init__(self, job):
        self.job, start = job, time.perf_counter()
        self.trainer = make_trainer(job.preset, job.task, job.memory, seed=job.seed, steps=job.steps)
        self.build_seconds = time.perf_counter() - start
        self.curve, self.seconds, self.rollout, self.update, self.skipped = [], 0.0, 0.0, 0.0, 0.0

    def train(self, limit):
        start = time.perf_counter()
        while not self.trainer.done and time.perf_counter() - start < limit:
            row = self.trainer.iteration()
            self.curve.append(round(100 * row["return"], 2))
            self.rollout, self.update = self.rollout + row["rollout_seconds"], self.update + row["update_seconds"]
            self.skipped += row["skipped"]
        self.seconds = time.perf_counter() - start

    def write(self, out, alone):
        trainer, curve = self.trainer, self.curve
        record = {
            **self.job._asdict(), "steps": trainer.env_steps, "finished": trainer.done, "alone": alone,
            "last": curve[-1], "last10": round(sum(curve[-10:]) / len(curve[-10:]), 2), "best": max(curve), "skipped": self.skipped,
            "seconds": round(self.seconds, 2), "rollout_seconds": round(self.rollout, 2), "update_seconds": round(self.update, 2),
            "rest_seconds": round(self.seconds - self.rollout - self.update, 2), "build_seconds": round(self.build_seconds, 2),
            "of_that_capture_and_compile": round(trainer.capture_seconds, 2),
            "parameters": sum(p.numel() for p in trainer.network.parameters()), "state_size": trainer.network.trunk.memory.state_size,
            "config": to_dict(trainer.config), "machine": machine(trainer.device), "curve": curve,
        }
        path = Path(out) / self.job.record
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(record) + "\n")
        os.replace(part, path)
        shown = ("last10", "best", "steps", "seconds", "rollout_seconds", "build_seconds", "skipped")
        print(path.name, {key: record[key] for key in shown}, flush=True)
        trainer.env.close()


def find_jobs(args):
    named = [(*text.partition("=")[0].split("/"), int(text.partition("=")[2] or args.steps)) for text in args.jobs]
    for text, job in zip(args.jobs, named, strict=True):
        if len(job) != 4 or job[2] not in MEMORIES:
            raise SystemExit(f"--jobs {text}: expected PRESET/TASK/MEMORY or PRESET/TASK/MEMORY=STEPS, memory from {', '.join(MEMORIES)}")
    every = named or [(args.preset, task, memory, args.steps) for task in args.tasks for memory in args.memories]
    jobs = [Job(preset, task, memory, seed, steps) for seed in args.seeds for preset, task, memory, steps in every]
    for job in jobs:
        path = Path(args.out) / job.record
        record = json.loads(path.read_text()) if path.exists() else None
        if record and record["finished"] and record["steps"] >= job.steps:
            print(f"{path.name}: finished, skipped", flush=True)
        else:
            yield job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="docs/results", help="folder of the records")
    parser.add_argument("--jobs", nargs="+", default=[], help="PRESET/TASK/MEMORY or PRESET/TASK/MEMORY=STEPS, instead of tasks x memories")
    parser.add_argument("--tasks", nargs="+", default=["RepeatPreviousEasy", "AutoencodeEasy"])
    parser.add_argument("--memories", nargs="+", default=["shm", "shm-random-rows", "shm-first-row", "gru", "none"],
                        choices=[*MEMORIES, "all"])
    parser.add_argument("--preset", default="popgym-fair")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=15_000_000)
    parser.add_argument("--limit", type=float, default=1e9, help="stop a run after this many seconds of training and record it unfinished")
    parser.add_argument("--lock", help="lock file: train only while holding it, so that runs train one at a time")
    args = parser.parse_args()
    args.memories = list(MEMORIES) if "all" in args.memories else args.memories
    for job in list(find_jobs(args)):
        run = Run(job)
        with hold(args.lock):
            run.train(args.limit)
        run.write(args.out, alone=args.lock is not None)
        del run
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
