"""Where the time of a PPO run goes on a GPU: the kernels of one update and of one rollout, by their time.

    PYTHONPATH=src python benchmarks/profile_ppo.py [--task AutoencodeEasy] [--memory shm] [--preset popgym-fair] [--top 25] [--lock FILE]

Kernel times are the profiler's, inside the captured graphs; an iteration's seconds are taken without it. --lock as in popgym_results.py.
"""

from __future__ import annotations

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from hadamem.training.config import make_config
from hadamem.training.trainer import Trainer
from popgym_results import MEMORIES, turn


def kernels(name, call, repeats, top):
    """Print what `call` runs on the GPU."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events) / repeats
    print(f"{name}: {total:.0f} us in {sum(event.count for event in events) / repeats:.0f} kernels")
    for event in events[:top]:
        print(f"  {event.self_device_time_total / repeats:9.1f} us {event.count / repeats:7.1f} x {event.key[:100]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="AutoencodeEasy")
    parser.add_argument("--memory", default="shm", choices=list(MEMORIES))
    parser.add_argument("--preset", default="popgym-fair")
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--lock")
    args = parser.parse_args()
    memory, options = MEMORIES[args.memory]
    changes = {"network.memory_options": options} if options else {}
    trainer = Trainer(make_config(args.preset, env=f"popgym/{args.task}", memory=memory, **changes))
    with turn(args.lock):
        for _ in range(3):
            row = trainer.iteration()
        print(f"{args.preset} {args.task} {args.memory}: {trainer.num_envs} envs, {trainer.steps} steps, {trainer.updates} updates; "
              f"rollout {row['rollout_seconds']:.4f} s, updates {row['update_seconds']:.4f} s")
        kernels("update", trainer._update, 5, args.top)
        kernels("rollout", trainer._collect, 2, args.top)


if __name__ == "__main__":
    main()
