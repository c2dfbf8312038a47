"""How often 95 % intervals hold the true mean, for few seeds: the stratified bootstrap and Student's t, on normal scores.

    PYTHONPATH=src python benchmarks/interval_coverage.py [--out docs/measurements/interval-coverage.json]

Takes about a minute. The numbers do not depend on the machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from hadamem.bench.timing import machine, write_json
from hadamem.statistics import bootstrap_interval, mean_interval, task_mean


def coverage(seeds: int, tasks: int, samples: int) -> tuple[float, float | None]:
    """Shares of the intervals that hold the true mean, 0: bootstrap over all tasks, and Student's t for one task."""
    rng = np.random.default_rng((seeds, tasks))
    scores = rng.normal(size=(samples, seeds, tasks))
    bootstrap = [bootstrap_interval(x, task_mean, seed=n) for n, x in enumerate(scores)]
    students = [mean_interval(x[:, 0]) for x in scores] if tasks == 1 else []
    return held(bootstrap), held(students) if students else None


def held(intervals: list[tuple[float, float] | None]) -> float:
    return round(float(np.mean([low <= 0 <= high for low, high in filter(None, intervals)])), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--samples", type=int, default=4000, help="experiments per cell (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    columns = ["seeds", "tasks", "bootstrap", "Student's t"]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    rows = []
    for seeds in (3, 5, 10):
        for tasks in (1, 12):
            rows.append([seeds, tasks, *coverage(seeds, tasks, args.samples)])
            print("| " + " | ".join("" if x is None else str(x) for x in rows[-1]) + " |", flush=True)
    if args.out:
        about = machine(torch.device("cpu"))
        facts = {"what": "share of 95 % intervals that hold the true mean of normal scores", "samples": args.samples,
                 "date": about["date"][:10], "commit": about["commit"], "machine": about,
                 "command": "python benchmarks/interval_coverage.py"}
        write_json(args.out, {**facts, "columns": columns, "rows": rows})


if __name__ == "__main__":
    main()
