"""Check and time plans of the Triton backend on the present GPU: which tiles, unrolling and segments are fastest for a shape.

    PYTHONPATH=src python benchmarks/tune_shm.py [--quick] > table.txt

Each line is one plan: its correctness (largest error relative to a float64 loop) and the median time inside a CUDA graph.
"""

from __future__ import annotations

import argparse
import itertools

import torch
import triton.testing

from hadamem.kernels.shm import triton as backend
from hadamem.kernels.shm.reference import shm_reference


def inputs(B, T, H, dtype=torch.float32, resets=0.0):
    g = torch.Generator("cuda").manual_seed(0)
    theta, vc, v, k, q, dh = (torch.randn(B, T, H, device="cuda", generator=g, dtype=dtype) * s for s in (0.1, 1, 1, 0.1, 0.1, 1))
    reset = None if not resets else torch.rand(B, T, device="cuda", generator=g) < resets
    return theta, vc, v, k, q, reset, dh


def check(B, T, H, clip=None, resets=0.05, calibration="tanh"):
    theta, vc, v, k, q, reset, dh = inputs(B, T, H, resets=resets)
    g = torch.Generator("cuda").manual_seed(1)
    M0, dM = (torch.randn(B, H, H, device="cuda", generator=g) for _ in range(2))
    results = []
    for run, dtype in ((shm_reference, torch.float64), (backend.shm_triton, torch.float32)):
        leaves = [x.to(dtype).requires_grad_() for x in (theta, vc, v, k, q, M0)]
        args = [None, None, *leaves[2:]] if calibration == "none" else leaves
        h, M = run(*args, reset, clip, calibration)
        used = [x for x in args if x is not None]
        grads = torch.autograd.grad((h * dh.to(dtype)).sum() + (M * dM.to(dtype)).sum(), used)
        results.append([x.detach().double() for x in (h, M, *grads)])
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(results[1], results[0], strict=True))


def median_ms(fn):
    return triton.testing.do_bench_cudagraph(fn, rep=20, return_mode="median")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--resets", type=float, default=0.0)
    options = parser.parse_args()
    T, H = 1024, 128
    plans = backend.plan_forward, backend.plan_backward
    print("torch", torch.__version__, "triton", triton.__version__, torch.cuda.get_device_name())
    for shape in ((3, 33, 24), (1, 100, 128), (1, 70, 156)):
        print(shape, f"error {check(*shape):.1e}  clip {check(*shape, clip=0.5):.1e}  sigmoid {check(*shape, calibration='sigmoid'):.1e}"
              f"  none {check(*shape, calibration='none'):.1e}", flush=True)
    for B in options.batch:
        theta, vc, v, k, q, reset, dh = inputs(B, T, H, resets=options.resets)
        dM = torch.zeros(B, H, H, device="cuda")
        Plan = backend.Plan
        backend.plan_forward = plans[0]
        for S, tile, N, registers in (
                (8, (2, 2, 64, 1), 4, None), (4, (2, 2, 64, 1), 4, None), (6, (2, 2, 64, 1), 3, None), (6, (2, 2, 64, 1), 3, 224),
                (8, (1, 2, 128, 1), 4, None), (4, (1, 2, 128, 1), 4, None), (8, (1, 1, 128, 1), 4, None), (8, (1, 1, 128, 1), 8, None),
                (4, (2, 2, 64, 1), 2, None), (4, (1, 1, 128, 1), 4, 168), (4, (1, 2, 128, 1), 2, 168)):
            if N > S:
                continue
            backend.INTERVAL = S
            _, _, saved = backend.forward(theta, vc, v, k, q, None, reset, None, "tanh", True)
            G, R, W, warps = tile
            for groups, segments in ((4, 32), (2, 64)) if B == 8 else ((1, 16),):
                plan = Plan(G, R, W, N, warps, -(-T // segments // S) * S, -(-T // (-(-T // segments // S) * S)), H // R // groups, groups, registers=registers)
                backend.plan_backward = lambda *a, p=plan: p
                ms = median_ms(lambda: backend.backward(theta, vc, v, k, q, None, reset, None, "tanh", saved, dh, dM))
                print(f"B={B} backward S={S} tile={tile} N={N} registers={registers} groups={groups} segments={segments}: {ms:.3f} ms", flush=True)
        backend.INTERVAL = 8
        backend.plan_backward = plans[1]


if __name__ == "__main__":
    main()
