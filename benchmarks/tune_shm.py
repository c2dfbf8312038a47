"""Check the plans of the Triton backend on this GPU: are the chosen tiles, unrolling and segments still the fastest?

    PYTHONPATH=src python benchmarks/tune_shm.py [--quick] [--clip 1e4]

Prints the largest error relative to a float64 loop for odd shapes; then the median time of each stage, inside a CUDA graph, under the
chosen plan and its neighbours; last the whole op and `SHM.step` as a user calls them. --quick times the chosen plans only.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics

import torch
import triton.testing

import hadamem as hm
from hadamem.kernels.shm import triton as backend
from hadamem.kernels.shm.reference import shm_reference

SHAPES = ((2, 17, 5), (3, 33, 24), (2, 64, 72), (1, 100, 128), (1, 70, 156), (1, 40, 256), (1, 24, 512), (8, 1, 128), (4, 300, 128))


def inputs(B, T, H, resets=0.0):
    g = torch.Generator("cuda").manual_seed(0)
    theta, vc, v, k, q, dh = (torch.randn(B, T, H, device="cuda", generator=g) * s for s in (0.1, 1, 1, 0.1, 0.1, 1))
    reset = None if not resets else torch.rand(B, T, device="cuda", generator=g) < resets
    return theta, vc, v, k, q, reset, dh


def check(B, T, H, clip=None, calibration="tanh"):
    """Return the largest relative error of outputs and gradients against the reference in float64."""
    theta, vc, v, k, q, reset, dh = inputs(B, T, H, resets=0.05)
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


def graph_ms(fn):
    """Return the median time of `fn` inside a CUDA graph."""
    return triton.testing.do_bench_cudagraph(fn, rep=20, return_mode="median")


def stages(B, T, H, resets, quick, clip):
    """Time forward and backward under the chosen plan and, unless `quick`, its neighbours."""
    theta, vc, v, k, q, reset, dh = inputs(B, T, H, resets)
    dM = torch.zeros(B, H, H, device="cuda")
    chosen = backend.plan_forward(B, T, H, H, clip)
    plans = [chosen, dataclasses.replace(chosen, N=2)]
    plans += [dataclasses.replace(chosen, R=R, groups=H // R) for R in (chosen.R // 2, chosen.R * 2)]
    for plan in plans[:1] if quick and (B != 8 or resets) else dict.fromkeys(plans):
        keep, backend.plan_forward = backend.plan_forward, lambda *a, p=plan: p
        ms = graph_ms(lambda: backend.forward(theta, vc, v, k, q, None, reset, clip, "tanh", True))
        print(f"  forward  {ms:.3f} ms  {plan}", flush=True)
        backend.plan_forward = keep
    saved = backend.forward(theta, vc, v, k, q, None, reset, clip, "tanh", True)[2]
    chosen = backend.plan_backward(B, T, H, H)
    plans = [chosen]
    for groups, segments in ((1, 16), (2, 32), (2, 16), (4, 16)):
        plans.append(dataclasses.replace(chosen, groups=groups, bands=H // chosen.R // groups, segments=segments, length=T // segments))
    for plan in plans[:1] if quick else dict.fromkeys(plans):
        keep, backend.plan_backward = backend.plan_backward, lambda *a, p=plan: p
        ms = graph_ms(lambda: backend.backward(theta, vc, v, k, q, None, reset, clip, "tanh", saved, dh, dM))
        print(f"  backward {ms:.3f} ms  {plan}", flush=True)
        backend.plan_backward = keep
    flags = None if reset is None else reset.view(torch.uint8)
    form = backend._form("tanh", torch.float32, theta.shape[-1])
    limit = backend.find_limit(clip, v, k, saved)
    ms = graph_ms(lambda: backend._enter(chosen, theta, vc, dh, q, flags, dM, form, True, limit))
    print(f"  of that, summaries and their chain {ms:.3f} ms", flush=True)


def whole(B, T, H, clip):
    """Time the op as a user calls it, forward + backward, eager and in a graph, with peak memory."""
    theta, vc, v, k, q, reset, dh = inputs(B, T, H, resets=0.01)
    leaves = [x.requires_grad_() for x in (theta, vc, v, k, q)]

    def run():
        h, _ = hm.kernels.shm(*leaves, reset=reset, clip=clip)
        torch.autograd.grad(h, leaves, dh)

    for _ in range(5):
        run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"B={B} T={T} H={H} with resets, forward+backward, eager: {statistics.median(times):.3f} ms, peak {peak:.3f} GiB, "
          f"in a graph {graph_ms(run):.3f} ms", flush=True)


def single_step(B, H):
    """Time the recurrence alone, at T = 1, under plans of several sizes."""
    theta, vc, v, k, q, _, _ = inputs(B, 1, H)
    reset = torch.zeros(B, 1, dtype=torch.bool, device="cuda")
    M0 = torch.randn(B, H, H, device="cuda")
    chosen = backend.plan_forward(B, 1, H, H, None)
    for R, warps in ((chosen.R, chosen.warps), (1, 1), (2, 1), (8, 1), (8, 4), (16, 4)):
        plan = dataclasses.replace(chosen, R=R, warps=warps, groups=H // R)
        keep, backend.plan_forward = backend.plan_forward, lambda *a, p=plan: p
        ms = graph_ms(lambda: backend.forward(theta, vc, v, k, q, M0, reset, None, "tanh", False))
        print(f"  single step B={B} H={H} R={R} warps={warps}: {1e3 * ms:.1f} us", flush=True)
        backend.plan_forward = keep


def profile(B, H):
    """Print the time of each kernel of one `SHM.step`."""
    memory = hm.SHM(64, 64, memory_size=H).cuda()
    x, state, reset = torch.randn(B, 64, device="cuda"), memory.initial_state(B), torch.zeros(B, dtype=torch.bool, device="cuda")
    with torch.no_grad():
        memory.step(x, state, reset)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(20):
                memory.step(x, state, reset)
            torch.cuda.synchronize()
    for event in sorted(profiler.key_averages(), key=lambda e: -e.self_device_time_total):
        print(f"  {event.self_device_time_total / 20:7.2f} us  {event.count / 20:.0f} x {event.key[:90]}", flush=True)


def acting(B, H):
    """Time one whole `SHM.step` inside a CUDA graph."""
    memory = hm.SHM(64, 64, memory_size=H).cuda()
    x, state, reset = torch.randn(B, 64, device="cuda"), memory.initial_state(B), torch.zeros(B, dtype=torch.bool, device="cuda")
    with torch.no_grad():
        print(f"SHM.step B={B} H={H} in a graph: {1e3 * graph_ms(lambda: memory.step(x, state, reset)):.1f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="time the chosen plans only")
    parser.add_argument("--clip", type=float, help="limit on M (default: none)")
    args = parser.parse_args()
    quick, clip = args.quick, args.clip
    print("torch", torch.__version__, "triton", triton.__version__, torch.cuda.get_device_name())
    for shape in () if quick else SHAPES:
        print(shape, f"error {check(*shape):.1e}  clip {check(*shape, clip=0.5):.1e}  sigmoid {check(*shape, calibration='sigmoid'):.1e}"
              f"  none {check(*shape, calibration='none'):.1e}", flush=True)
    for B, resets in ((8, 0.0), (64, 0.0), (8, 0.01)):
        print(f"B={B} T=1024 H=128 resets={resets}")
        stages(B, 1024, 128, resets, quick, clip)
    for B in (1, 8, 64):
        whole(B, 1024, 128, clip)
    for B in (8, 64):
        acting(B, 128)
    single_step(64, 128)
    profile(64, 128)


if __name__ == "__main__":
    main()
