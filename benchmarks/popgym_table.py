"""Print the records of `popgym_results.py` as two markdown tables, the source of those in docs/results.md.

    python benchmarks/popgym_table.py [--records docs/results]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path


def read(folder):
    records = defaultdict(list)   # (preset, task, memory): one record per seed
    for path in sorted(Path(folder).glob("popgym-*.json")):
        record = json.loads(path.read_text())
        records[record["preset"], record["task"], record["memory"]].append(record)
    return records


def cell(records):
    """Format the final return x 100 of each seed (with its steps if fewer than 15 million) and the best iteration of all seeds."""
    if not records:
        return ""
    ends = ", ".join(f"{r['last10']:.1f}" + ("" if r["steps"] > 14.9e6 else f" at {r['steps'] / 1e6:.1f} M") for r in records)
    return f"{ends} (best {max(r['best'] for r in records):.1f})"


def seconds(record):
    """Format the training time; "-" if other runs trained on the GPU at the same time."""
    return f"{record['seconds']:.0f} s" if record["alone"] else "-"


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", default="docs/results")
    records = read(parser.parse_args().records)
    groups = sorted({(task, preset) for preset, task, _ in records}, reverse=True)
    memories = list(dict.fromkeys(memory for _, _, memory in records))
    table(["memory", *(f"{task}, {preset.removeprefix('popgym-')}" for task, preset in groups)],
          [[f"`{m}`", *(cell(records.get((preset, task, m))) for task, preset in groups)] for m in memories])
    chosen = {m: records["popgym-fair", "RepeatPreviousEasy", m] for m in memories if ("popgym-fair", "RepeatPreviousEasy", m) in records}
    order = sorted(chosen, key=lambda m: -chosen[m][0]["last10"])
    table(["memory", "return x 100", "steps", "time per run", "state", "parameters"],
          [[f"`{m}`", cell(chosen[m]), f"{chosen[m][0]['steps'] / 1e6:.1f} M", seconds(chosen[m][0]), f"{chosen[m][0]['state_size']:,}",
            f"{chosen[m][0]['parameters']:,}"] for m in order])


if __name__ == "__main__":
    main()
