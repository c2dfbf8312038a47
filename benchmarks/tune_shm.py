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
    for shape in ((2, 17, 5), (3, 33, 24), (2, 64, 72), (1, 100, 128), (1, 70, 156), (1, 40, 256), (1, 24, 512)):
        print(shape, f"error {check(*shape):.1e}  clip {check(*shape, clip=0.5):.1e}  sigmoid {check(*shape, calibration='sigmoid'):.1e}"
              f"  none {check(*shape, calibration='none'):.1e}", flush=True)
    for B in options.batch:
        theta, vc, v, k, q, reset, dh = inputs(B, T, H, resets=options.resets)
        dM = torch.zeros(B, H, H, device="cuda")
        for runs, N, warps, segments in itertools.product((2, 4), (1, 2), (1, 2, 4, 8), (1, 4, 16) if B == 8 else (1,)):
            G, R, W, warps = backend._tile(H, 128, runs, warps)
            backend.plan_forward = lambda *a, p=backend.Plan(G, R, W, N, warps, T // segments, segments, groups=H // R): p
            ms = median_ms(lambda: backend.forward(theta, vc, v, k, q, None, reset, None, "tanh", True))
            print(f"B={B} forward  G={G} R={R} W={W} N={N} warps={warps} segments={segments}: {ms:.3f} ms", flush=True)
        backend.plan_forward = plans[0]
        _, _, saved = backend.forward(theta, vc, v, k, q, None, reset, None, "tanh", True)
        cases = itertools.product((1, 2, 4, 8), (1, 2, 4), (16, 32, 64) if B == 8 else (1, 2, 16))
        for warps, groups, segments in cases:
            G, R, W, warps = backend._tile(H, 128, 2, warps)
            plan = backend.Plan(G, R, W, 4, warps, T // segments, segments, H // R // groups, groups)
            backend.plan_backward = lambda *a, p=plan: p
            ms = median_ms(lambda: backend.backward(theta, vc, v, k, q, None, reset, None, "tanh", saved, dh, dM))
            print(f"B={B} backward warps={warps} groups={groups} segments={segments}: {ms:.3f} ms", flush=True)
        backend.plan_backward = plans[1]
        summary = backend.plan_summary
        form = backend._form("tanh", torch.float32)
        for segments, (runs, N, warps) in itertools.product((16, 64) if B == 8 else (16,), itertools.product((2, 4), (2, 4), (1, 4))):
            G, R, W, warps = backend._tile(H, 128, runs, warps)
            plan = backend.Plan(G, R, W, N, warps, T // segments, segments, groups=H // R)
            backend.plan_summary = lambda *a, p=plan: p
            ms = median_ms(lambda p=plan: backend._enter(p, theta, vc, dh, q, None, dM, form, True))
            print(f"B={B} summary + combine G={G} N={N} warps={warps} segments={segments}: {ms:.3f} ms", flush=True)
        backend.plan_summary = summary


if __name__ == "__main__":
    main()
