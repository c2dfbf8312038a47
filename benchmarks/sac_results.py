"""Train the SAC experiments (Wind, Point Robot, Visual Match, Key-to-Door) and write one compact record per run.

    PYTHONPATH=src python benchmarks/sac_results.py wind-50-150/shm visualmatch-250/gru/1 [--out docs/results] [--limit SECONDS]

A job is PRESET/MEMORY or PRESET/MEMORY/SEED. Its run folder is RUNS/<preset>-<memory>-<seed>: a run that --limit (in seconds) or Ctrl-C
stopped continues from there. Its record is OUT/<preset>-<memory>-<seed>.json: settings, machine, times, and two curves: `eval` with
(env steps, return, success) of every evaluation while training, and `training` with the same of the training episodes.
Finished runs are skipped. Several of these commands may run at the same time; `--shared` then notes it in the record.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from hadamem.bench.timing import machine
from hadamem.devices import find_device
from hadamem.runs.config import make_config, to_dict
from hadamem.runs.files import write_text
from hadamem.runs.presets import PRESETS
from hadamem.training.loop import train
from hadamem.training.run import Run

POINTS = 200      # of a training curve


def record_of(run: Run, job: str, shared: bool) -> dict[str, Any]:
    """What is kept of a run."""
    rows = run.metrics
    evals = [row for row in rows if "eval_return" in row]
    ended = [row for row in rows if row.get("episodes")]
    every = max(1, len(ended) // POINTS)
    groups = [ended[i:i + every] for i in range(0, len(ended), every)]
    total = {name: round(sum(row.get(name, 0.0) for row in rows), 2)
             for name in ("seconds", "rollout_seconds", "update_seconds", "eval_seconds", "updates", "skipped")}
    last = evals[-10:]
    return {
        "job": job, "steps": rows[-1]["steps"], "finished": run.status == "finished", "shared": shared, **total,
        "ms_per_update": round(1e3 * total["update_seconds"] / max(1, total["updates"]), 3),
        "eval_success": mean(last, "eval_success"), "eval_return": mean(last, "eval_return"), "last_evaluations": len(last),
        "best_eval_success": max((row.get("eval_success", 0.0) for row in evals), default=None),
        "config": to_dict(run.config), "machine": machine(find_device(run.config.device)),
        "eval": [[row["steps"], short(row["eval_return"]), short(row.get("eval_success"))] for row in evals],
        "training": [[group[-1]["steps"], mean(group, "return"), mean(group, "success")] for group in groups],
        "ent_coef": [[row["steps"], short(row["ent_coef"])] for row in rows[::max(1, len(rows) // 50)]],
    }


def mean(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return short(sum(values) / len(values)) if values else None


def short(x: float | None) -> float | None:
    return None if x is None else float(f"{x:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", help="PRESET/MEMORY or PRESET/MEMORY/SEED")
    parser.add_argument("--out", default="docs/results", help="folder of the records")
    parser.add_argument("--runs", default="runs/results", help="folder of the runs")
    parser.add_argument("--limit", type=float, default=1e9, help="stop after this many seconds, with a checkpoint to continue from")
    parser.add_argument("--published-tasks", action="store_true", help="Wind, Point Robot: the tasks of the published code for all seeds")
    parser.add_argument("--shared", action="store_true", help="other runs share the GPU, so times are longer")
    args = parser.parse_args()
    start = time.monotonic()
    for text in args.jobs:
        preset, memory, seed = [*text.split("/"), "0"][:3]
        job = f"{preset}{'-published-tasks' if args.published_tasks else ''}-{memory}-{seed}"
        out, folder = Path(args.out) / f"{job}.json", Path(args.runs) / job
        if out.exists() and json.loads(out.read_text())["finished"]:
            print(f"{job}: finished, skipped", flush=True)
            continue
        more = {"env_options": {**PRESETS[preset].settings["env_options"], "task_seed": "release"}} if args.published_tasks else {}
        config = make_config(preset, memory=memory, seed=int(seed), log=(), checkpoint_every=1e9, **more)
        run = train(config, folder, resume=folder.exists(), should_stop=lambda: time.monotonic() - start > args.limit,
                    notify=lambda message, job=job: print(f"{job}: {message}", flush=True))
        record = record_of(run, job, args.shared)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(record) + "\n")
        shown = ("steps", "finished", "seconds", "ms_per_update", "eval_seconds", "eval_success", "eval_return", "skipped")
        print(job, {name: record[name] for name in shown}, flush=True)


if __name__ == "__main__":
    main()
