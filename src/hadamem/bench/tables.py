"""The text that `hadamem bench memory` prints, with and without --all: headlines, rows, legends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from . import timing
from .timing import DISTURBED, Timing

if TYPE_CHECKING:
    from . import memory, zoo


def milliseconds(seconds: float | None, digits: int) -> str:
    if seconds is None:
        return "-"
    ms = 1e3 * seconds
    return f"{ms:.0f}" if ms >= 10 ** (digits - 1) else f"{ms:.{digits if ms >= 0.1 else 3}g}"


def times(ratio: float | None, digits: int) -> str:
    if ratio is None:
        return "-"
    whole = 1 if ratio < 10 else 2 if ratio < 100 else 3      # digits before the point
    return f"{ratio:.{max(0, digits - whole)}f}x"


def mebibytes(number: int | None, form: str) -> str:
    return "-" if number is None else f"{number / 2**20:{form}}"


def why(error: Exception) -> str:
    return f"{type(error).__name__}: {timing.one_line(error)}"


def disturbance(share: float) -> str:
    return f"! other programs took {share:.0%} of the CPU meanwhile: do not quote these numbers"


def progress(text: str) -> None:
    """Print a line on the terminal that the next one replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _device_name(facts: dict[str, Any]) -> str:
    return facts.get("gpu") or facts["cpu"]


def _first_line(facts: dict[str, Any], command: str) -> str:
    return f"hadamem {facts['hadamem']} {command}, commit {facts['commit'] or 'unknown'}, {facts['date']}"


# --- bench memory: a section for each part, rows as they are timed ---------------------------------------------------

TITLES = {
    "op": "op: hm.kernels.shm, the recurrence from vectors [B, T, H], with SHM's limit",
    "module": "module: hm.SHM(D={D}, D, H), projections and readout included",
    "step": "step: one acting step of hm.SHM(D={D}, D, H), no gradient",
}
_PASS = {"forward": "fwd", "both": "fwd+bwd"}


def grid_headline(facts: dict[str, Any], settings: memory.Settings) -> str:
    lines = [_first_line(facts, "bench memory")]
    lines.append(f"{_device_name(facts)}; torch {facts['torch']}, numba {facts['numba']}, triton {facts['triton']}")
    lines.append(f"{settings.dtype}, {facts['threads']} CPU threads on {facts['cores']} cores, load {facts['load']}")
    if "gpu" in facts:
        lines[-1] += f", TF32 in matmul {_on(facts['tf32 in matmul'])}, in cuDNN {_on(facts['tf32 in cudnn'])}"
    return "\n".join(lines)


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def plot_subtitle(facts: dict[str, Any], settings: memory.Settings) -> str:
    where = _device_name(facts) if "gpu" in facts else f"{facts['cpu']}, {facts['threads']} threads"
    worst = facts.get("largest share of other programs") or 0.0
    note = "; DISTURBED by other programs" if worst > DISTURBED else ""
    return f"{where}, {settings.dtype}, torch {facts['torch']}{note}"


def section(part: str, device: torch.device, settings: memory.Settings) -> str:
    """The title of a part, and the names of the columns."""
    wall = f" {'wall ms':>9}" if device.type == "cuda" else ""
    return (f"{TITLES[part].format(D=settings.input_size)}\n"
            f"{'B':>4} {'T':>6} {'H':>4}  {'model':<15} {'pass':<8} {'ms':>9}  {'quartiles':<19}{wall}"
            f" {'peak MiB':>9} {'vs loop':>9} {'vs GRU':>8}")


def grid_row(result: memory.Result, vs_loop: float | None, vs_gru: float | None, device: torch.device) -> str:
    start = f"{result.B:>4} {result.T:>6} {result.H:>4}  {result.model:<15} {_PASS[result.direction]:<8}"
    if result.seconds is None:
        return f"{start}   skipped: {result.skipped}"
    s = result.seconds
    spread = f"{milliseconds(s.low, 4)} .. {milliseconds(s.high, 4)}" if s.runs > 1 else "one run"
    wall = f" {milliseconds(s.wall, 4):>9}" if device.type == "cuda" else ""
    peak = mebibytes(result.peak_bytes, ".1f")
    return f"{start} {milliseconds(s.median, 4):>9}  {spread:<19}{wall} {peak:>9} {times(vs_loop, 3):>9} {times(vs_gru, 3):>8}"


def disturbed(group: list[memory.Result]) -> list[str]:
    """A warning under the rows of a case, if other programs disturbed it."""
    share = max((r.others for r in group if r.others is not None), default=0.0)
    return [f"   {disturbance(share)}"] if share > DISTURBED else []


def grid_legend(device: torch.device, settings: memory.Settings, loop: str) -> str:
    lines = [
        "ms: median per call after warm-up, then quartiles; contenders timed in turns.",
        "fwd: no gradient; fwd+bwd: gradients of the inputs and all parameters.",
        f"vs loop, vs GRU: how many times faster than {loop} (the plain loop) and than",
        f"nn.GRU({settings.input_size}, {settings.peer_size}) in the same case; below 1 is slower.",
    ]
    if device.type == "cuda":
        lines += [
            "ms is time on the GPU between events, L2 overwritten before each call; wall ms is the clock per call of",
            "calls back to back. step runs as a CUDA graph.",
            "peak MiB: torch.cuda.max_memory_allocated during one call, beyond inputs and parameters.",
        ]
    else:
        lines += [
            "peak MiB: growth of the process's resident memory during one call, beyond inputs and parameters;",
            "good to a few MiB; '-': unknown.",
        ]
    return "\n".join(lines)


# --- bench memory --all: whole tables ----------------------------------------------------------------------------------

ZOO_LEGEND = {   # by whether it ran on a GPU
    False: """ms: median per call, all timed in turns. whole: every sequence one episode; resets: episodes end inside.
act: one step without gradients. vs GRU: how many times faster than torch.nn.GRU in `whole`.
peak: growth of resident memory, good to a few MiB.""",
    True: """ms: median on the GPU per call, all timed in turns; graph: as a CUDA graph. whole: every sequence one episode; resets: episodes
end inside. act: one step without gradients, as a CUDA graph. vs GRU: how many times faster than torch.nn.GRU, graph against
graph (launched against launched where there is no graph).""",
}


def zoo_headline(facts: dict[str, Any]) -> str:
    return (f"{_first_line(facts, 'bench memory --all')}\n"
            f"{_device_name(facts)}; torch {facts['torch']}; {facts['threads']} CPU threads, load {facts['load']}")


def zoo_cells(rows: list[zoo.Row], peer: zoo.Row, device: torch.device, settings: zoo.Settings) -> list[list[str]]:
    """The names of the columns, then the rows from the fastest to train to the slowest."""
    kinds = ["whole", "whole (graph)", "resets (graph)", "act"] if device.type == "cuda" else ["whole", "resets", "act"]
    head = ["memory", "size", "state", "parameters", *(f"{kind} ms" for kind in kinds), "vs GRU", "peak MiB"]
    lines = [head]
    for row in sorted(rows, key=_train_seconds):
        medians = [milliseconds(_median(row.times.get(kind)), 3) for kind in kinds]
        size = ", ".join(str(v) if k == "memory_size" else f"{k} {v}" for k, v in row.options.items()) or "-"
        name = f"{peer.memory}({settings.input_size}, {settings.peer_size})" if row is peer else row.memory
        peak = mebibytes(row.peak_bytes, ",.0f")
        lines.append([name, size, f"{row.state:,}", f"{row.parameters:,}", *medians, _vs_gru(row, peer), peak])
    return lines


def _median(seconds: Timing | None) -> float | None:
    return None if seconds is None else seconds.median


def _train_seconds(row: zoo.Row) -> float:
    seconds = row.times.get("whole (graph)") or row.times.get("whole")
    return seconds.median if seconds else float("inf")


def _vs_gru(row: zoo.Row, peer: zoo.Row) -> str:
    for kind in ("whole (graph)", "whole"):
        if kind in row.times and kind in peer.times:
            ratio = peer.times[kind].median / row.times[kind].median
            return times(ratio, 2) if ratio >= 1 else f"{ratio:.2g}x"
    return "-"


def aligned(cells: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
                     for row in cells)


def markdown(cells: list[list[str]]) -> list[str]:
    head, *rows = cells
    return ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2), *("| " + " | ".join(row) + " |" for row in rows)]
