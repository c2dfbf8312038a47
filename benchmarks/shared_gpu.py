"""What runs of PPO cost that share one GPU: in processes of their own, as streams of a process, and with several times the envs.

    PYTHONPATH=src python benchmarks/shared_gpu.py [--memory shm] [--processes 8] [--envs 3] [--seconds 6] [--no-overlap]

Start NVIDIA's MPS first (`nvidia-cuda-mps-control -d`). Every process builds a trainer of a task, the same with --envs times the envs, as
if that many seeds were one batch, and half of them a third one, for a second stream. Then all replay their graphs (a rollout and its
updates, or one of these, again and again) at the same time. Prints the GPU's seconds per 15 million steps of a seed in each arrangement.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from hadamem.kernels import _gates
from hadamem.runs.presets import PRESETS
from hadamem.training.trainer import Trainer
from popgym_trainer import make_trainer

TASKS = ("RepeatPreviousEasy", "RepeatPreviousMedium", "RepeatPreviousHard", "AutoencodeEasy", "AutoencodeMedium", "BattleshipEasy",
         "BattleshipMedium", "ConcentrationEasy", "ConcentrationMedium", "AutoencodeHard", "BattleshipHard", "ConcentrationHard")
STEPS = 15_000_000


def replay(trainer: Trainer, until: float, rates: list[float], rollouts: bool, updates: bool) -> None:
    """Rollouts, updates or both until a time of the host's clock; appends the steps per second."""
    config = trainer.config.algorithm
    count, steps, begin = updates * config.num_epochs * config.num_minibatches, 0, time.time()
    with torch.cuda.stream(torch.cuda.Stream()):
        while time.time() < until:
            if rollouts:
                trainer._collect()
            for _ in range(count):
                trainer.agent.update()
            torch.cuda.current_stream().synchronize()
            steps += trainer.batch
    rates.append(steps / (time.time() - begin))


def together(trainers: list[Trainer], seconds: float, rollouts: bool = True, updates: bool = True) -> float:
    """Steps per second of several trainers of this process, each in a thread and on a stream of its own."""
    until, rates = time.time() + seconds, []
    threads = [threading.Thread(target=replay, args=(trainer, until, rates, rollouts, updates)) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def work(args: argparse.Namespace) -> None:
    """One process: build, then measure whenever all others are ready, too."""
    me, folder, _gates.OVERLAP = args.worker, Path(args.folder), not args.no_overlap
    begin, task = time.time(), TASKS[me]
    steps = PRESETS[args.preset].settings["steps_per_iteration"]
    make = [make_trainer(args.preset, task, args.memory, steps_per_iteration=steps)]
    make.append(make_trainer(args.preset, task, args.memory, steps_per_iteration=args.envs * steps, total_steps=10 * STEPS))
    if me < args.processes // 2:
        make.append(make_trainer(args.preset, task, args.memory, steps_per_iteration=steps, seed=1))
    print(f"{me} built after {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
    one, several, found = make[0], make[1], {}
    half = args.processes // 2
    stages = {
        "one run alone": [one] if me == 0 else [],
        f"{args.envs} times the envs, alone": [several] if me == 0 else [],
        f"{half} processes": [one] if me < half else [],
        f"{half} processes of 2 streams": [one, make[2]] if me < half else [],
        f"{args.processes} processes": [one],
        f"{args.processes} processes, rollouts alone": [one],
        f"{args.processes} processes, updates alone": [one],
        f"{args.processes} processes, {args.envs} times the envs": [several],
    }
    for i, (name, trainers) in enumerate(stages.items()):
        (folder / f"{i}-{me}").touch()
        while len(list(folder.glob(f"{i}-*"))) < args.processes:
            time.sleep(0.01)
        if trainers:
            found[name] = together(trainers, args.seconds, "updates alone" not in name, "rollouts alone" not in name)
        else:
            time.sleep(args.seconds)
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="popgym-best")
    parser.add_argument("--memory", default="shm")
    parser.add_argument("--processes", type=int, default=8, choices=range(2, len(TASKS) + 1))
    parser.add_argument("--envs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--no-overlap", action="store_true", help="GRU, LSTM: launch no step before the one before it has ended")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        work(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--folder", folder, "--worker"]
        running = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(args.processes)]
        found = [json.loads(process.communicate()[0]) for process in running]
    names = dict.fromkeys(name for one in found for name in one)
    rates = {name: sum(one.get(name, 0.0) for one in found) for name in names}
    print(json.dumps({name: round(STEPS / rate, 2) for name, rate in rates.items()}, indent=1))


if __name__ == "__main__":
    main()
