"""How many small kernels a GPU can start in a second when several runs share it.

    python benchmarks/launch_rate.py [--chains 1 4 15] [--kernels 1000] [--seconds 0.5] [--streams 1 3]

Each chain is a CUDA graph of small kernels that depend on one another, as a rollout or an update of PPO is. Prints microseconds per kernel
for one chain and for several at once: as streams of one process, and in processes of their own, --streams chains in each; start NVIDIA's
MPS (`nvidia-cuda-mps-control -d`) first, so that those run at the same time. "small" kernels add 1 to 4,096 numbers, "large" ones multiply
matrices of 512.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import torch

KINDS = ("small", "large")


def make_chain(kind: str, kernels: int) -> tuple[torch.cuda.Stream, torch.cuda.CUDAGraph]:
    """A graph of kernels, and the stream it will run on."""
    x = torch.zeros((64, 64) if kind == "small" else (512, 512), device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        x @ x      # cuBLAS sets itself up
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(kernels):
            x = x.add_(1) if kind == "small" else x @ x
    return stream, graph


def us_per_kernel(kind: str, chains: int, kernels: int, seconds: float, start: float = 0.0) -> float:
    """Microseconds per kernel of all chains of this process together. start: wait until this time, in seconds since the epoch."""
    made = [make_chain(kind, kernels) for _ in range(chains)]
    torch.cuda.synchronize()
    time.sleep(max(0.0, start - time.time()))
    begin, replays = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for stream, graph in made:
            with torch.cuda.stream(stream):
                graph.replay()
        replays += 1
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e6 / (replays * chains * kernels)


def in_processes(kind: str, processes: int, streams: int, kernels: int, seconds: float) -> float:
    """The same in several processes. All measure at the same time, in three times the seconds, to make up for late starts."""
    options = {"worker": kind, "chains": streams, "kernels": kernels, "seconds": 3 * seconds, "start": time.time() + 6 + 0.3 * processes}
    command = [sys.executable, __file__, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    found = [float(process.communicate()[0]) for process in running]
    return 1 / sum(1 / us for us in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 4, 15])
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1], help="chains of each process, where there are several processes")
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--start", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(us_per_kernel(args.worker, args.chains[0], args.kernels, args.seconds, args.start))
        return
    found = {}
    for kind in KINDS:
        for chains in args.chains:
            found[f"{kind}, {chains} streams"] = us_per_kernel(kind, chains, args.kernels, args.seconds)
            for streams in args.streams if chains > 1 else ():
                name = f"{kind}, {chains // streams} processes of {streams}"
                found[name] = in_processes(kind, chains // streams, streams, args.kernels, args.seconds)
    print(json.dumps({name: round(us, 3) for name, us in found.items()}, indent=1))


if __name__ == "__main__":
    main()
