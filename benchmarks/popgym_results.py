"""Train POPGym tasks with several memories and keep a compact record of each run: settings, curve, times. Finished ones are not redone.

    PYTHONPATH=src python benchmarks/popgym_results.py --out docs/results [--tasks RepeatPreviousEasy ...] [--memories shm gru ...]
        [--preset popgym-fair] [--seeds 0] [--steps 15000000] [--limit SECONDS] [--lock FILE] [--after RECORD ...]

A record is docs/results/<preset>-<task>-<memory>-<seed>.json; `curve` holds the mean return of the episodes that ended in each
iteration. Runs that --limit stopped are redone. Several of these commands may share a GPU: with the same --lock they build side by side
and train one after the other, so that the times are each run's own (`alone` in the record).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import time
from pathlib import Path

import torch

from hadamem.bench.timing import machine
from hadamem.training.config import make_config, to_dict
from hadamem.training.trainer import Trainer

MEMORIES = {      # name here: memory and its options
    "shm": ("shm", {}),                                                              # first row, theta from 0, normalised read
    "shm-random-rows": ("shm-paper", {}),                                            # as the paper: a random row at every step
    "shm-first-row": ("shm-release", {}),                                            # as released: row 0, Xavier start, no norm on the read
    "shm-random-rows-norm": ("shm-paper", {"read_norm": True}),
    "gru": ("gru", {}),
    "none": ("none", {}),
}


@contextlib.contextmanager
def turn(lock, after):
    """Wait for the records `after`, then hold the lock, if there is one."""
    while not all(Path(path).exists() for path in after):
        time.sleep(0.2)
    if lock is None:
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(task, name, preset, seed, steps, out, limit, lock=None, after=()):
    path = Path(out) / f"{preset}-{task}-{name}-{seed}.json"
    if path.exists() and json.loads(path.read_text())["finished"]:
        print(f"{path.name}: there already", flush=True)
        return
    memory, options = MEMORIES[name]
    changes = {"network.memory_options": options} if options else {}
    config = make_config(preset, env=f"popgym/{task}", memory=memory, seed=seed, steps=steps, **changes)
    start = time.perf_counter()
    trainer = Trainer(config)
    built = time.perf_counter()
    curve, rollout, update, skipped = [], 0.0, 0.0, 0.0
    with turn(lock, after):
        begun = time.perf_counter()
        while not trainer.done and time.perf_counter() - begun < limit:
            row = trainer.iteration()
            curve.append(round(100 * row["return"], 2))
            rollout, update, skipped = rollout + row["rollout_seconds"], update + row["update_seconds"], skipped + row["skipped"]
        seconds = time.perf_counter() - begun
    record = {
        "task": task, "memory": name, "preset": preset, "seed": seed, "steps": trainer.env_steps, "finished": trainer.done,
        "alone": lock is not None,
        "last": curve[-1], "last10": round(sum(curve[-10:]) / len(curve[-10:]), 2), "best": max(curve), "skipped": skipped,
        "seconds": round(seconds, 2), "rollout_seconds": round(rollout, 2), "update_seconds": round(update, 2),
        "rest_seconds": round(seconds - rollout - update, 2), "build_seconds": round(built - start, 2),
        "of_that_capture_and_compile": round(trainer.capture_seconds, 2),
        "parameters": sum(p.numel() for p in trainer.network.parameters()), "state_size": trainer.network.trunk.memory.state_size,
        "config": to_dict(config), "machine": machine(trainer.device), "curve": curve,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(record) + "\n")
    os.replace(part, path)
    shown = ("last10", "best", "steps", "seconds", "rollout_seconds", "update_seconds", "rest_seconds", "build_seconds", "skipped")
    print(path.name, {key: record[key] for key in shown}, flush=True)
    trainer.env.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="docs/results")
    parser.add_argument("--tasks", nargs="+", default=["RepeatPreviousEasy", "AutoencodeEasy"])
    parser.add_argument("--memories", nargs="+", default=["shm", "shm-random-rows", "shm-first-row", "gru", "none"], choices=list(MEMORIES))
    parser.add_argument("--preset", default="popgym-fair")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=15_000_000)
    parser.add_argument("--limit", type=float, default=1e9, help="stop a run after this many seconds of training and record it unfinished")
    parser.add_argument("--lock", help="a file: train only while holding its lock, so one at a time")
    parser.add_argument("--after", nargs="+", default=[], help="train only when these records exist")
    args = parser.parse_args()
    for seed in args.seeds:
        for task in args.tasks:
            for name in args.memories:
                run(task, name, args.preset, seed, args.steps, args.out, args.limit, args.lock, args.after)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
