"""Profile a PPO run on a GPU: the kernels of one update and of one rollout, slowest first.

    PYTHONPATH=src python benchmarks/profile_ppo.py [--task AutoencodeEasy] [--memory shm] [--preset popgym-fair] [--top 25] [--lock FILE]
        [--inductor combo_kernels ...]

Kernel times come from the profiler, inside the captured graphs; the seconds of an iteration are measured without it. --lock FILE: wait
until no other such script that has the same lock is measuring. --inductor: switches of torch._inductor.config to turn on.
"""

from __future__ import annotations

import argparse

import torch
from torch._inductor import config as inductor
from torch.profiler import ProfilerActivity, profile

from popgym_trainer import MEMORIES, hold, make_trainer


def kernels(name, call, repeats, top):
    """Print the GPU kernels of `call`, averaged over `repeats` calls."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
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
    parser.add_argument("--inductor", nargs="+", default=[])
    args = parser.parse_args()
    for name in args.inductor:
        setattr(inductor, name, True)
    trainer = make_trainer(args.preset, args.task, args.memory)
    with hold(args.lock):
        for _ in range(3):
            row = trainer.iteration()
        print(f"{args.preset} {args.task} {args.memory}: {trainer.num_envs} envs, {trainer.steps} steps, {round(row['updates'])} updates; "
              f"rollout {row['rollout_seconds']:.4f} s, updates {row['update_seconds']:.4f} s")
        kernels("update", trainer.agent.update, 5, args.top)
        kernels("rollout", trainer._collect, 2, args.top)


if __name__ == "__main__":
    main()
