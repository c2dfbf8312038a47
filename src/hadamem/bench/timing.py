"""Timing of calls side by side: warm-up, synchronisation, medians with spread, cold caches, peak memory.

Calls to be compared take turns in rounds, so that a disturbance of the machine affects all of them, and `Others`
measures how much of the CPU other programs used meanwhile. Timed one after the other on a shared machine, a GRU once
appeared 80 times slower than it is.

On CUDA the time is between two events on the stream, with the L2 cache overwritten before each call; a second figure
is the wall clock per call of calls made back to back, which also counts what the host needs to launch them. Elsewhere
it is the wall clock alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .._version import __version__
from ..cuda_graphs import record

DISTURBED = 0.1               # share of the CPU used by other programs; above it, the results carry a warning
Call = Callable[[int], Any]   # the argument counts calls, so that inputs can be rotated


@dataclass(frozen=True)
class Timing:
    """Seconds per call."""

    median: float
    best: float
    low: float            # first quartile
    high: float           # third quartile
    runs: int
    wall: float | None    # wall clock per call, back to back; only on CUDA, where `median` is the time on the device


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def clock(call: Call, device: torch.device, i: int = 0) -> float:
    """Wall-clock seconds of one call, everything finished before and after."""
    synchronize(device)
    start = time.perf_counter()
    call(i)
    synchronize(device)
    return time.perf_counter() - start


ROUNDS = 5


def measure(
    calls: dict[str, Call], device: torch.device, repeats: int, limit_seconds: float
) -> dict[str, Timing | Exception]:
    """Time each call up to `repeats` times, fewer if that takes longer than `limit_seconds`, in rounds over all.

    For a call that raises, the result is its exception, and it is not called again.
    """
    found: dict[str, Timing | Exception] = {}
    plan: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    for name, call in calls.items():
        try:
            clock(call, device)                  # compiles, allocates, fills caches
            once = clock(call, device, 1)
            slow = once > (1.0 if device.type == "cuda" else limit_seconds)
            times[name] = [once] if slow else []   # it was warm and is a measurement: no need for another
            plan[name] = 0 if slow else max(1, min(repeats, int(limit_seconds / max(once, 1e-9))))
        except Exception as error:               # one that cannot run must not end the comparison
            found[name] = error
    for turn in range(ROUNDS):
        for name, runs in plan.items():
            share = runs * (turn + 1) // ROUNDS - runs * turn // ROUNDS
            late = device.type != "cuda" and sum(times[name]) > 2 * limit_seconds   # the machine got slower meanwhile
            if share and name not in found and not late:
                try:
                    if runs >= 2 * ROUNDS:
                        calls[name](0)           # restores its threads and caches after the others' turn
                    times[name] += _block(calls[name], device, share)
                except Exception as error:
                    found[name] = error
    for name in plan:
        if name not in found:
            wall = None
            if device.type == "cuda":
                wall = _wall(calls[name], device, plan[name]) if plan[name] else times[name][0]
            found[name] = _summary(times[name], wall)
    return found


def _block(call: Call, device: torch.device, runs: int) -> list[float]:
    if device.type != "cuda":
        return [clock(call, device, i) for i in range(runs)]
    size = max(1 << 26, 4 * torch.cuda.get_device_properties(device).L2_cache_size)
    flush = torch.empty(size, dtype=torch.int8, device=device)
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
    synchronize(device)
    for i, (start, end) in enumerate(events):
        flush.zero_()
        start.record()
        call(i)
        end.record()
    synchronize(device)
    return [start.elapsed_time(end) * 1e-3 for start, end in events]


def _wall(call: Call, device: torch.device, runs: int) -> float:
    synchronize(device)
    start = time.perf_counter()
    for i in range(runs):
        call(i)
    synchronize(device)
    return (time.perf_counter() - start) / runs


def graphed(call: Call, sets: int) -> Call:
    """The call as a CUDA graph for each of its sets of inputs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(sets):
            call(i)
    torch.cuda.current_stream().wait_stream(stream)
    graphs = []
    for i in range(sets):
        graph = torch.cuda.CUDAGraph()
        with record(graph):
            call(i)
        graphs.append(graph)
    return lambda i: graphs[i % sets].replay()


class Others:
    """Share of the machine's CPU time that other programs took since this was made; None without /proc/stat."""

    def __init__(self) -> None:
        self.start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Seconds of all cores: busy (stolen by the host included), in all, and busy for this process."""
        try:
            ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        user, nice, system, idle, iowait, irq, softirq, steal = (n / os.sysconf("SC_CLK_TCK") for n in ticks)
        busy = user + nice + system + irq + softirq + steal
        return busy, busy + idle + iowait, time.process_time()

    def share(self) -> float | None:
        now = self._read()
        if now is None or self.start is None or now[1] - self.start[1] < 0.05:   # ticks of 10 ms: too short to tell
            return None
        busy, total, own = (n - s for n, s in zip(now, self.start, strict=True))
        return min(1.0, max(0.0, (busy - own) / total))


def _summary(times: list[float], wall: float | None) -> Timing:
    low, median, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else 3 * times
    return Timing(median, min(times), low, high, len(times), wall)


def peak_memory(call: Call, device: torch.device) -> int | None:
    """Bytes in use at the worst moment of one call beyond those in use before it, or None where that cannot be known.

    CUDA: the allocator's count. Linux CPU: growth of the resident set to its high-water mark, after free memory was
    handed back; right to within a few MiB. Elsewhere: None.
    """
    if device.type == "cuda":
        synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call(0)
        synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return None
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")   # resets the high-water mark
        before = _status("VmRSS")
        call(0)
        return max(0, _status("VmHWM") - before)
    except (OSError, AttributeError, KeyError):
        return None


def _status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated, roughly."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 << 30


def machine(device: torch.device) -> dict[str, Any]:
    """What a reader needs to assess a timing: hardware, versions, threads, precision settings, load, commit."""
    facts: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": str(device),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "hadamem": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
    }
    for package in ("numpy", "numba", "triton", "flash-linear-attention"):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = None
    if device.type == "cuda":
        facts |= {
            "gpu": torch.cuda.get_device_name(device),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "tf32 in matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32 in cudnn": torch.backends.cudnn.allow_tf32,
        }
    return facts


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of this source tree, "+" for changes on top; for a copy without git the value of HADAMEM_COMMIT, or None."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return os.environ.get("HADAMEM_COMMIT")
    try:
        commit = _git(root, "rev-parse", "--short", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *args], check=True, capture_output=True, text=True, timeout=10)
    return done.stdout.strip()


def write_json(path: Path, content: Any) -> None:
    """Write the file atomically."""
    part = path.with_name(path.name + f".{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
