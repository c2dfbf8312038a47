"""Trains every memory on supervised recall, from short sequences to long ones: accuracy, updates and seconds.

    PYTHONPATH=src python benchmarks/recall.py [--out docs/results/recall.json] [--markdown FILE]
        [--memories shm gru package.module:Class ...] [--seeds 0 1 2] [--updates 2000] [--seconds 120]

The task is in hadamem.experiments.recall: two of eight symbols are shown, then noise, then asked for. A memory is trained at T = 8,
then at 16, 32, ... 512, each until 95 % of the answers are right (99 % up to T = 32) or its updates or seconds run out.
Accuracy is then measured on other sequences. Seeds that the output file already has, with the same settings, are not
run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from pathlib import Path

import torch

import hadamem as hm
from hadamem.bench.timing import machine, write_json
from hadamem.experiments.recall import LENGTHS, Learner, Recall, curriculum

OUTPUT, SHOWN = 32, (32, 128, 512)
SIZES = {"memory_size": 32}
ROWS = {      # name of the row: memory, and options that differ from SIZES
    "shm": ("shm", {}),
    "shm, clip=1e4": ("shm", {"clip": 1e4}),
    "shm, clip=None": ("shm", {"clip": None}),               # M may overflow in long sequences
    "shm-paper": ("shm-paper", {}),
    "shm-paper, clip=1e4": ("shm-paper", {"clip": 1e4}),
    "shm-release": ("shm-release", {}),
    "shm-release, clip=1e4": ("shm-release", {"clip": 1e4}),
    "hebbian": ("hebbian", {}),
    "hebbian, memory_size=64": ("hebbian", {"memory_size": 64}),      # without gates; a larger memory has less interference
    "gpt2": ("gpt2", {"window": max(LENGTHS)}),              # it sees nothing outside its window
    "s6": ("s6", {"memory_size": 16}),                       # the size that Mamba uses
    "dnc": ("dnc", {"memory_size": 16, "controller_size": 32}),
}


def rows() -> dict[str, tuple[str, dict]]:
    """All memories with their defaults, or with the variants in ROWS."""
    found = {}
    for name in hm.list_memories():
        found |= {row: entry for row, entry in ROWS.items() if entry[0] == name} or {name: (name, {})}
    return found


def train(memory: str, options: dict, seed: int, args: argparse.Namespace) -> dict:
    torch.manual_seed(seed)
    task = Recall()
    module = hm.make_memory(memory, task.input_size, OUTPUT, **{**SIZES, **options})
    learner = Learner(module, task, learning_rate=args.learning_rate, seed=seed)
    found = []
    for outcome in curriculum(learner, goal=args.goal, updates=args.updates, seconds=args.seconds):
        found.append(dataclasses.asdict(outcome))
        print(f"    T {outcome.steps:>4}  accuracy {outcome.accuracy:.3f}  before {outcome.before:.3f}  updates {outcome.updates:>5}"
              f"{f'  skipped {outcome.skipped}' if outcome.skipped else ''}  {outcome.seconds:.1f} s", flush=True)
        if memory == "none" and outcome.steps == 32:         # longer ones are at chance, too
            break
    return {"outcomes": found, "parameters": sum(p.numel() for p in learner.parameters), "state_size": module.state_size}


def table(record: dict) -> str:
    """A Markdown table: medians over seeds, updates and seconds summed over lengths."""
    lines = ["| memory | numbers held | parameters | " + " | ".join(f"T = {T}" for T in SHOWN) + " | updates | seconds |",
             "|---|---|---|" + "---|" * (len(SHOWN) + 2)]
    for name, row in record["rows"].items():
        runs = [list(run["outcomes"]) for run in row["seeds"].values()]
        cells = []
        for T in SHOWN:
            found = [o for run in runs for o in run if o["steps"] == T]
            worst = min((o["accuracy"] for o in found), default=None)
            solved = sum(o["solved"] for o in found)
            cells.append("-" if worst is None else f"{100 * statistics.median(o['accuracy'] for o in found):.0f} %"
                         + ("" if solved == len(runs) else f" ({solved} of {len(runs)} solved, worst {100 * worst:.0f} %)"))
        first = next(iter(row["seeds"].values()))
        updates = statistics.median(sum(o["updates"] for o in run) for run in runs)
        seconds = statistics.median(sum(o["seconds"] for o in run) for run in runs)
        lines.append(f"| {name} | {first['state_size']:,} | {first['parameters']:,} | {' | '.join(cells)} | {updates:,.0f} "
                     f"| {seconds:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", default="docs/results/recall.json")
    add("--markdown", metavar="FILE", help="also write the table to this file")
    add("--memories", nargs="+", metavar="NAME", help="rows to run (default: all): a name from hm.list_memories() or package.module:Class")
    add("--seeds", nargs="+", type=int, default=[0])
    add("--updates", type=int, default=2000, help="limit at each length")
    add("--seconds", type=float, default=120.0, help="limit at each length")
    add("--goal", type=float, default=0.95)
    add("--learning-rate", type=float, default=3e-3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    known, path = rows(), Path(args.out)
    settings = {"task": dataclasses.asdict(Recall()), "sizes": {**SIZES, "output_size": OUTPUT}, "lengths": LENGTHS, "goal": args.goal,
                "updates": args.updates, "seconds": args.seconds, "learning_rate": args.learning_rate}
    settings = json.loads(json.dumps(settings))              # as read from a file
    record = json.loads(path.read_text()) if path.exists() else {"settings": settings, "rows": {}}
    if record["settings"] != settings:
        parser.error(f"{path} was made with other settings ({record['settings']}); choose another --out")
    for name in args.memories or known:
        memory, options = known.get(name, (name, {}))
        row = record["rows"].setdefault(name, {"memory": memory, "options": {**SIZES, **options}, "seeds": {}})
        for seed in args.seeds:
            if str(seed) in row["seeds"]:
                print(f"{name}, seed {seed}: already done")
                continue
            print(f"{name}, seed {seed}", flush=True)
            facts = machine(torch.device("cpu"))
            about = {name: facts[name] for name in ("commit", "cpu", "torch", "date")}
            row["seeds"][str(seed)] = {**train(memory, options, seed, args), **about}
            row["seeds"] = dict(sorted(row["seeds"].items()))
            order = [*(n for n in known if n in record["rows"]), *(n for n in record["rows"] if n not in known)]
            record["rows"] = {n: record["rows"][n] for n in order}
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, record)
    print(table(record))
    if args.markdown:
        Path(args.markdown).write_text(table(record) + "\n")


if __name__ == "__main__":
    main()
