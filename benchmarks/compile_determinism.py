"""Do separately compiled runs of one seed agree, and what does Inductor's deterministic mode cost?

    PYTHONPATH=src python benchmarks/compile_determinism.py [--builds 3] [--iterations 3] [--task RepeatPreviousEasy] [--memory shm]

Every build is a process with empty compiler caches. It trains a few iterations of preset popgym-fair and prints a checksum of the weights
after each, and the time of the last iteration's updates. Builds run side by side, trainings one at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODES = {"default": "0", "deterministic": "1"}      # of $TORCHINDUCTOR_DETERMINISTIC


def build(args):
    """One process: train, print one line of JSON."""
    from popgym_trainer import hold, make_trainer

    trainer = make_trainer("popgym-fair", args.task, args.memory)
    rows, sums = [], []
    with hold(args.lock):
        for _ in range(args.iterations):
            rows.append(trainer.iteration())
            weights = b"".join(x.cpu().numpy().tobytes() for x in trainer.network.state_dict().values())
            sums.append(hashlib.sha256(weights).hexdigest()[:10])
    print(json.dumps({"sums": sums, "update_seconds": rows[-1]["update_seconds"], "capture_seconds": trainer.capture_seconds}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--builds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--task", default="RepeatPreviousEasy")
    parser.add_argument("--memory", default="shm")
    parser.add_argument("--lock")
    args = parser.parse_args()
    if args.lock:
        build(args)
        return
    with tempfile.TemporaryDirectory() as home:
        running = []
        for mode, flag in MODES.items():
            for i in range(args.builds):
                caches = {name: str(Path(home) / f"{mode}-{i}-{name}") for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
                command = [sys.executable, __file__, "--lock", str(Path(home) / "lock"), "--iterations", str(args.iterations),
                           "--task", args.task, "--memory", args.memory]
                env = {**os.environ, **caches, "TORCHINDUCTOR_DETERMINISTIC": flag}
                running.append((mode, subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)))
        for mode, process in running:
            out, _ = process.communicate()
            found = json.loads(out.strip().splitlines()[-1]) if process.returncode == 0 else {"sums": ["failed"]}
            seconds = {name: found.get(f"{name}_seconds", 0) for name in ("update", "capture")}
            print(f"{mode:<14} {' '.join(found['sums'])}  updates {seconds['update']:.4f} s  build {seconds['capture']:.0f} s")


if __name__ == "__main__":
    main()
