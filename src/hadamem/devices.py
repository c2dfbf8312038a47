"""Devices by name, and their free memory."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

PER_GPU = 3           # runs that share a GPU; with NVIDIA's MPS they do so well


def find_device(name: str) -> torch.device:
    """The device of that name; "auto": a GPU if there is one, otherwise the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used here: {' '.join(str(error).split())[:200]}") from error
    return device


def usable_cores() -> int:
    """CPU cores that this process may use: fewer than there are, in a container or under taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def runs_at_once(device: torch.device) -> int:
    """How many training runs to start side by side: three per GPU, or one per core."""
    return PER_GPU * len(gpu_slots()) if device.type == "cuda" else usable_cores()


def gpu_slots(devices: Iterable[str] = ()) -> list[Mapping[str, str]]:
    """Environment variables that select each of the GPUs in turn; one empty entry for a machine with one GPU or none.

    devices: what the runs are to use; if one names a GPU by its number, such as "cuda:1", all of them choose for themselves.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2 or any(":" in device for device in devices):
        return [{}]
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return [{"CUDA_VISIBLE_DEVICES": name} for name in names[:count]]


def sharing_hint(runs: int) -> str:
    """What helps if so many runs share the GPUs here; "" if nothing does. Without MPS a GPU runs one process at a time."""
    tool = "nvidia-cuda-mps-control"
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))      # NVIDIA's default
    if not torch.cuda.is_available() or runs <= torch.cuda.device_count() or (pipes / "control").exists() or shutil.which(tool) is None:
        return ""
    return (f"{runs} runs take turns on {torch.cuda.device_count()} GPU(s); with NVIDIA's MPS they run side by side, up to twice as fast: "
            f"{tool} -d")


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated; None if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):      # a container's own limit, if it has one
        group = Path("/sys/fs/cgroup")
        cache = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(cache.get("inactive_file", 0))      # without what can be dropped
        found.append(int((group / "memory.max").read_text()) - used)
    return min(found) if found and device.type == "cpu" else None


def size_text(n: int) -> str:
    """A number of bytes as people read it."""
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"
