"""`make demo`: train an agent with memory and one without on the same task and compare them. Takes minutes on a CPU."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from ..agents import DEFAULT_AGENT
from ..files import clip_text, free_name
from ..runs.config import make_config
from ..training.evaluate import Evaluation, evaluate
from ..training.loop import train
from ..view.curves import draw_curves
from ..view.progress import Progress, clock

# Settings of the demo. Both runs share them.
ENV, STEPS = "popgym/RepeatPreviousEasy", 300_000
# Nobody sees more than one step at a time or past the memory, so that the memory makes the difference.
SETTINGS: dict[str, Any] = {
    "preset": "default", "seed": 0, "device": "cpu", "frame_stack": 1, "time_encoding": "sine", "shortcut": False,
}
MEMORIES = {"shm": "Stable Hadamard Memory", "none": "no memory"}
EPISODES = 200


def main(argv: list[str] | None = None) -> int:
    """Train, evaluate, compare. Returns 0 if the agent with memory is better and the confidence intervals do not overlap."""
    parser = argparse.ArgumentParser(prog="python -m hadamem.cli.demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--env", default=ENV)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="parent of the demo's folder (default: runs)")
    args = parser.parse_args(argv)
    start = time.perf_counter()
    folder = free_name(args.out / "demo")
    runs, results = {}, dict[str, Evaluation]()
    for memory, label in MEMORIES.items():
        print(f"\nTraining {memory} ({label}) on {args.env} for {args.steps:,} steps:", flush=True)
        config = make_config(env=args.env, memory=memory, total_steps=args.steps, **SETTINGS)
        with Progress(config, str(folder / memory)) as progress:
            runs[memory] = train(config, folder / memory, **progress.hooks)
        if runs[memory].status != "finished":      # Ctrl-C
            return 130
        results[memory] = evaluate(runs[memory].policy, args.env, EPISODES)
    curve = folder / "curve.png"
    try:
        draw_curves({f"{memory}: {label}": runs[memory].metrics for memory, label in MEMORIES.items()}, curve, args.env,
                    f"{DEFAULT_AGENT}, preset {SETTINGS['preset']}, seed {SETTINGS['seed']}")
    except OSError as error:
        print(f"{curve} cannot be written: {clip_text(error)}", file=sys.stderr)
    print(f"\nAfter training, over {EPISODES} new episodes each:\n")
    print(comparison_table(results))
    (best, control) = (results[memory].ci or (0.0, 0.0) for memory in MEMORIES)
    better = best[0] > control[1]
    print(f"\nshm {'beats' if better else 'does not beat'} the control without memory. Total time: {clock(time.perf_counter() - start)}.\n")
    hadamem = command_name()
    for name, value in {"curves": curve, "runs": folder, "watch shm": f"{hadamem} watch {folder / 'shm'} --text",
                        "as a GIF": f"{hadamem} watch {folder / 'shm'}", "train more": f"{hadamem} train --help"}.items():
        print(f"  {name:<10}  {value}")
    return 0 if better else 1


def comparison_table(results: dict[str, Evaluation]) -> str:
    """The evaluations as a text table."""
    rows = [("memory", "return", "95 % interval", "success")]
    for memory, result in results.items():
        low, high = result.ci or (result.mean, result.mean)
        success = "" if result.success is None else f"{100 * result.success:.0f} %"
        rows.append((memory, f"{result.mean:+.3f}", f"{low:+.3f} to {high:+.3f}", success))
    if all(row[3] == "" for row in rows[1:]):
        rows = [(*row[:3], "") for row in rows]
    return "\n".join(f"  {a:<8}  {b:>7}   {c:<18}  {d}".rstrip() for a, b, c, d in rows)


def command_name() -> str:
    """How to call `hadamem` here: by its path if the virtual environment is not active."""
    script = Path(sys.executable).with_name("hadamem")
    if shutil.which("hadamem") is not None or not script.exists():
        return "hadamem"
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)


if __name__ == "__main__":
    sys.exit(main())
