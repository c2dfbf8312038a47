"""What one SAC update costs on this machine, and where the time goes: `python benchmarks/profile_sac.py --preset wind-50-150 --memory shm`.

Fills the replay with random steps, then times updates as the trainer runs them (CUDA graphs on a GPU), with and without torch.compile.
"""

from __future__ import annotations

import argparse
import time

import torch

from hadamem.runs.config import make_config
from hadamem.training.trainer import Trainer


def build(preset: str, memory: str, device: str, compile: bool) -> tuple[Trainer, float]:
    """A trainer whose replay holds a few rollouts, and the seconds that building it took."""
    start = time.perf_counter()
    config = make_config(preset, memory=memory, device=device, compile=compile, replay_size=100_000, eval_every=0,
                         **({"num_envs": 10} if preset.startswith("wind") else {}))
    trainer = Trainer(config)
    seconds = time.perf_counter() - start
    assert trainer.replay is not None
    for i in range(3):
        trainer.collector.draw(i)
        trainer._collect()
        trainer.replay.add()
    return trainer, seconds


def time_updates(trainer: Trainer, seconds: float) -> float:
    """Milliseconds per update."""
    agent, source = trainer.agent, trainer.source
    agent.rows.copy_(source.choose(agent.rows.numel(), torch.Generator().manual_seed(0)).view_as(agent.rows))

    def some(n: int) -> float:
        agent.number.zero_()
        begin = time.perf_counter()
        for _ in range(n):
            agent.update()
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / n

    some(3)
    count = min(64, max(1, int(seconds / 4 / some(3))))
    return 1e3 * min(some(count) for _ in range(4))


def time_collection(trainer: Trainer) -> float:
    """Milliseconds per rollout."""
    trainer._collect()
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    trainer._collect()
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def kernels(trainer: Trainer) -> str:
    """The slowest kernels of an update."""
    agent = trainer.agent
    agent.number.zero_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]) as found:
        agent.update()
        torch.cuda.synchronize()
    events = [e for e in found.key_averages() if e.self_device_time_total > 0]
    events.sort(key=lambda e: -e.self_device_time_total)
    total, count = sum(e.self_device_time_total for e in events), sum(e.count for e in events)
    lines = [f"{e.self_device_time_total:9.1f} us {e.count:5} x {e.key[:100]}" for e in events[:45]]
    return "\n".join([f"{count} kernels, {total:.0f} us", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", nargs="+", default=["wind-50-150"])
    parser.add_argument("--memory", nargs="+", default=["shm"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--kernels", action="store_true", help="list the slowest kernels")
    args = parser.parse_args()
    table = []
    for preset in args.preset:
        for memory in args.memory:
            for compile in args.compile:
                try:
                    trainer, build_seconds = build(preset, memory, args.device, bool(compile))
                    update = time_updates(trainer, 1.0)
                    row = f"{preset:24} {memory:12} {compile:8} {update:10.3f} {time_collection(trainer):10.1f} {build_seconds:8.1f}"
                    if args.kernels:
                        print(row, kernels(trainer), sep="\n", flush=True)
                    del trainer
                except Exception as error:      # show the other rows
                    row = f"{preset:24} {memory:12} {compile:8} {type(error).__name__}: {str(error)[:300]}"
                table.append(row)
                print(row, flush=True)
    print(f"\n{'preset':24} {'memory':12} {'compile':>8} {'ms/update':>10} {'ms/rollout':>10} {'build s':>8}")
    print("\n".join(table))


if __name__ == "__main__":
    main()
