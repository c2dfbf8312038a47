"""Compare the calibrations that SHM builds from vectors: products of C over time, and the time of the fused op.

    PYTHONPATH=src python benchmarks/calibrations.py --out docs/measurements/cpu-calibrations.json

Products: z is normal, drawn anew for every step and cell, with the standard deviations of --std. Times: forward, and forward with backward,
of `hm.kernels.shm`; all forms take turns in every round, and the fastest of the rounds counts. On one CPU thread (OMP_NUM_THREADS=1) it is
the thread's CPU time, which others who use the machine disturb less. `--only` runs one half and keeps the other as it is in the file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import hadamem as hm
from hadamem.bench.timing import machine
from hadamem.diagnostics import cumulative_products
from hadamem.kernels.shm.forms import calibrate, find_form

PRODUCTS = ("tanh", "exp", "exp:1.5")
TIMED = ("none", "sigmoid", "tanh", "exp", "drift")


def products(form: str, std: float, steps: int, cells: int) -> dict[str, Any]:
    """E[log C] and the distribution of prod C after 100 steps and after all of them."""
    draw = torch.Generator().manual_seed(0)
    logs: list[torch.Tensor] = []

    def run():
        for _ in range(steps):
            C = calibrate(std * torch.randn(cells, dtype=torch.float64, generator=draw), form)
            logs.append(C.log())
            yield C

    curves = cumulative_products(run())
    sums, found = torch.stack(logs).cumsum(0), {}
    for T in (100, steps):
        low, high = sums[T - 1].quantile(torch.tensor([0.1, 0.9], dtype=torch.float64)).exp().tolist()
        found[str(T)] = {"median": curves.median[T - 1].item(), "mean": curves.mean[T - 1].item(), "tenth": low, "ninetieth": high}
    every = torch.stack(logs)
    return {"mean_log_C": every.mean().item(), "error": every.std().item() / every.numel() ** 0.5, "steps": found}


def make_case(form: str, B: int, T: int, H: int, device: str) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    sizes = [2 * H if find_form(form).drift else H, H, H, H, H]
    scales = [0.05, 1.0, 1.0, 1 / H, 1 / H]
    return [(s * torch.randn(B, T, n, generator=draw)).to(device).requires_grad_() for s, n in zip(scales, sizes, strict=True)]


def once(form: str, inputs: list[torch.Tensor], clip: float | None, backward: bool) -> float:
    used = inputs if form != "none" else [None, None, *inputs[2:]]
    leaves = [x for x in used if x is not None]
    clock = time.thread_time if inputs[0].is_cpu and torch.get_num_threads() == 1 else time.perf_counter
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    start = clock()
    with torch.set_grad_enabled(backward):
        h, _ = hm.kernels.shm(*used, clip=clip, calibration=form)
        if backward:
            torch.autograd.grad(h.sum(), leaves)
    if inputs[0].is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (clock() - start)


def times(B: int, T: int, H: int, clip: float | None, rounds: int, device: str) -> dict[str, dict[str, float]]:
    """Milliseconds of each form, and the ratio to "tanh"."""
    cases = {form: make_case(form, B, T, H, device) for form in TIMED}
    taken: dict[tuple[str, bool], list[float]] = {(form, backward): [] for form in TIMED for backward in (False, True)}
    for n in range(rounds + 1):
        for (form, backward), found in taken.items():
            ms = once(form, cases[form], clip, backward)
            if n:                                            # the first round compiles
                found.append(ms)
    best = {key: min(found) for key, found in taken.items()}
    return {form: {"forward_ms": best[form, False], "both_ms": best[form, True],
                   "forward_ratio": best[form, False] / best["tanh", False],
                   "both_ratio": best[form, True] / best["tanh", True]} for form in TIMED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--std", type=float, nargs="+", default=[0.1, 0.25, 0.5])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--shape", type=int, nargs=3, default=[8, 256, 128], metavar=("B", "T", "H"))
    parser.add_argument("--clip", type=float, default=1e8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=["products", "times"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result = json.loads(args.out.read_text()) if args.out is not None and args.out.exists() else {}
    facts = machine(torch.device(args.device))
    if args.only != "times":
        found = {str(std): {form: products(form, std, args.steps, args.cells) for form in PRODUCTS} for std in args.std}
        result["products"] = {"machine": facts, "cells": args.cells, "forms": found}
    if args.only != "products":
        result["times"] = {"machine": facts, "shape": args.shape, "clip": args.clip, "rounds": args.rounds,
                           "forms": times(*args.shape, args.clip, args.rounds, args.device)}
    text = json.dumps(result, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
