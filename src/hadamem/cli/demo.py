"""`make demo`: an agent with memory and one without on the same task, trained, evaluated and compared. Minutes on a CPU."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from ..runs.config import make_config
from ..training.evaluate import Evaluation, evaluate
from ..training.loop import train
from ..view.curves import draw_curves
from ..view.progress import Progress, clock

# What is trained: change it here. Both runs get the same settings.
ENV, STEPS = "popgym/RepeatPreviousEasy", 800_000
SETTINGS: dict[str, Any] = {"preset": "default", "seed": 0, "device": "cpu"}
MEMORIES = {"shm": "Stable Hadamard Memory", "none": "no memory"}
EPISODES = 200


def main(argv: list[str] | None = None) -> int:
    """Train, evaluate, compare; 0 if memory won beyond doubt."""
    parser = argparse.ArgumentParser(prog="python -m hadamem.cli.demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--env", default=ENV)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where the folder of the demo goes")
    args = parser.parse_args(argv)
    start = time.perf_counter()
    home = free_folder(args.out / "demo")
    runs, found = {}, dict[str, Evaluation]()
    for memory, words in MEMORIES.items():
        print(f"\n{memory} ({words}) learns {args.env} in {args.steps:,} steps:", flush=True)
        config = make_config(env=args.env, memory=memory, total_steps=args.steps, **SETTINGS)
        with Progress(config, str(home / memory)) as progress:
            runs[memory] = train(config, home / memory, **progress.hooks)
        if runs[memory].status != "finished":      # Ctrl-C
            return 130
        found[memory] = evaluate(runs[memory].policy, args.env, EPISODES)
    curve = draw_curves({f"{memory}: {words}": runs[memory].metrics for memory, words in MEMORIES.items()}, home / "curve.png",
                        args.env, f"PPO, preset {SETTINGS['preset']}, seed {SETTINGS['seed']}")
    print(f"\nAfter training, over {EPISODES} new episodes each:\n")
    print(compared(found))
    (best, control) = (found[memory].ci or (0.0, 0.0) for memory in MEMORIES)
    better = best[0] > control[1]
    print(f"\nshm {'beats' if better else 'does not beat'} the control without memory. It all took {clock(time.perf_counter() - start)}.\n")
    hadamem = shown_command()
    for name, value in {"curves": curve, "runs": home, "watch shm": f"{hadamem} watch {home / 'shm'} --text",
                        "as a GIF": f"{hadamem} watch {home / 'shm'}", "train more": f"{hadamem} train --help"}.items():
        print(f"  {name:<10}  {value}")
    return 0 if better else 1


def compared(found: dict[str, Evaluation]) -> str:
    """The evaluations side by side."""
    rows = [("memory", "return", "95 % interval", "success")]
    for memory, result in found.items():
        low, high = result.ci or (result.mean, result.mean)
        success = "" if result.success is None else f"{100 * result.success:.0f} %"
        rows.append((memory, f"{result.mean:+.3f}", f"{low:+.3f} to {high:+.3f}", success))
    if all(row[3] == "" for row in rows[1:]):
        rows = [(*row[:3], "") for row in rows]
    return "\n".join(f"  {a:<8}  {b:>7}   {c:<18}  {d}".rstrip() for a, b, c, d in rows)


def shown_command() -> str:
    """How to call `hadamem` from here: by its path where the virtual environment is not active."""
    script = Path(sys.executable).with_name("hadamem")
    if shutil.which("hadamem") is not None or not script.exists():
        return "hadamem"
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)


def free_folder(wanted: Path) -> Path:
    """The folder, or the first of wanted-2, wanted-3, ... that is not there yet."""
    path, n = wanted, 1
    while path.exists():
        n += 1
        path = wanted.with_name(f"{wanted.name}-{n}")
    return path


if __name__ == "__main__":
    sys.exit(main())
