"""GPU minutes of the POPGym tables, from their records: runs that were trained at the same time share the GPU's time.

    python benchmarks/gpu_minutes.py docs/results

A record says when its run ended and how long it trained. A moment at which n runs trained counts as 1/n of it for each. Builds are not
counted. Of a run that was stopped and resumed on another day, only the last part can be placed: no session lasts longer than half an hour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from datetime import datetime
from pathlib import Path

TABLES = ("popgym-fair", "popgym-release", "popgym-best", "popgym-gae")
PAUSE = 600.0      # seconds without a run's end, or more: another session
LONGEST = 1800.0   # seconds of a session, at most


def read(folder: Path) -> list[tuple[str, float, float]]:
    """Name, start and end in seconds of every finished run on a GPU."""
    runs = []
    for path in sorted(folder.glob("popgym-*.json")):
        record = json.loads(path.read_text())
        if record.get("finished") and record["machine"].get("gpu") and "date" in record["machine"]:
            end = datetime.fromisoformat(record["machine"]["date"]).timestamp()
            runs.append((path.stem, end - record["seconds"], end))
    runs.sort(key=lambda run: run[2])
    breaks = [0, *(i for i in range(1, len(runs)) if runs[i][2] - runs[i - 1][2] > PAUSE), len(runs)]
    placed, before = [], 0.0      # when the session before ended
    for session in (runs[i:j] for i, j in itertools.pairwise(breaks)):
        last = session[-1][2]
        earliest = max(before, last - LONGEST)
        placed += [(name, max(start, earliest), end) for name, start, end in session]
        before = last
    return placed


def share(runs: list[tuple[str, float, float]]) -> dict[str, float]:
    """Seconds of the GPU for each run."""
    times = sorted({t for _, start, end in runs for t in (start, end)})
    shares = dict.fromkeys((name for name, _, _ in runs), 0.0)
    for left, right in itertools.pairwise(times):
        active = [name for name, start, end in runs if start <= left and right <= end]
        for name in active:
            shares[name] += (right - left) / len(active)
    return shares


def totals(folder: Path) -> list[tuple[str, int, float]]:
    """Name, runs and seconds of the GPU for each table, and for the runs of each preset with changed settings."""
    shares, found = share(read(folder)), []
    for table in TABLES:
        cell = re.compile(rf"{table}-(Autoencode|Battleship|Concentration|RepeatPrevious)(Easy|Medium|Hard)-")
        for title, names in ((table, [name for name in shares if cell.match(name)]),
                             (f"{table}, changed", [name for name in shares if name.startswith(table) and not cell.match(name)])):
            if names:
                found.append((title, len(names), sum(shares[name] for name in names)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, help="folder with the records of runs")
    print(f"{'':24} {'runs':>5} {'GPU minutes':>12} {'seconds per run':>16}")
    for title, runs, total in totals(parser.parse_args().records):
        print(f"{title:24} {runs:5} {total / 60:12.0f} {total / runs:16.0f}")


if __name__ == "__main__":
    main()
