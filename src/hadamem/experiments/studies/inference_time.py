"""Milliseconds of one acting step of every memory, over the sizes of the paper's appendix, on the CPU and on a GPU where there is one."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from ...bench import timing
from ...bench.zoo import SIZES
from ...memory import Memory, list_memories, make_memory
from ...reports.content import Figure, Section, Series, Table
from ..measure import missing, one_thread, present, sized
from ..study import MeasureTask, Study

SWEEPS: dict[str, tuple[int, ...]] = {      # sizes of the paper's appendix
    "shm": (24, 32, 64, 128, 256, 512), "gru": (256, 512, 1024, 2048), "ffm": (32, 64, 128, 256, 512),
}
DEVICES, BATCHES = ("cpu", "cuda"), (1, 64)
COPIES = 3           # sets of inputs taken in turn
FACTS = ("device", "gpu", "cpu", "cores", "threads", "torch", "numba", "triton", "hadamem", "commit", "date", "load")


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seed: int = 0) -> Study:
    """protocol: every study takes it; a step of a memory does not depend on it. A GPU's tasks are made where there is one, also later."""
    sweeps = {"shm": (24, 128), "gru": (256,), "ffm": (32,)} if quick else SWEEPS
    rows = [{"memory": name, "options": {**SIZES.get(name, {}), "memory_size": size}} for name, sweep in sweeps.items() for size in sweep]
    sizes = {**SIZES, **({"gpt2": {"memory_size": 64, "window": 64}} if quick else {})}
    rows += [{"memory": name, "options": dict(sizes.get(name, {}))} for name in list_memories() if name not in SWEEPS]
    settings = {"rows": rows, "repeats": sized(200, 10, quick, budget), "limit_seconds": 0.02 if quick else 1.0 * budget, "seed": seed}
    tasks = [MeasureTask(f"{device}-{batch}", "inference_time:steps", {"device": device, "batch": batch, **settings})
             for device in DEVICES if device == "cpu" or torch.cuda.is_available() for batch in BATCHES]
    about = ("How long does one acting step take? All memories with 64 features in and 64 out, without gradients, timed in turns so that a "
             "disturbance of the machine meets all of them; medians of the calls, on the CPU of one thread's CPU time. SHM, GRU and FFM "
             "over the sizes of the paper's appendix, the others at the sizes of the paper or its code.")
    return Study("inference_time", "Time of an acting step", tasks, about, sections=sections, alone=True)


def steps(rows: list[dict[str, Any]], batch: int, device: str, repeats: int, limit_seconds: float, seed: int = 0) -> dict[str, Any]:
    """Times of a step of each row's memory. On a GPU, each step is a CUDA graph, as in training."""
    place = torch.device(device)
    torch.manual_seed(seed)
    spent: dict[str, list[float]] = {str(i): [] for i in range(len(rows))}
    with one_thread():
        calls = {str(i): _call(row, batch, place, spent[str(i)]) for i, row in enumerate(rows)}
        others, facts = timing.Others(), timing.machine(place)
        found = timing.measure(calls, place, repeats, limit_seconds)
    times: list[dict[str, Any]] = []
    for i, row in enumerate(rows):
        seconds = found[str(i)]
        if isinstance(seconds, Exception):
            times.append({**row, "failed": timing.one_line(seconds)})
        else:
            wall = {"wall": 1e3 * seconds.median, "low": 1e3 * seconds.low, "high": 1e3 * seconds.high, "runs": seconds.runs}
            own = 1e3 * statistics.median(spent[str(i)][-seconds.runs:]) if device == "cpu" else wall["wall"]      # without the warm-up
            times.append({**row, "ms": own, **wall})
    return {"rows": times, "batch": batch, "machine": {name: facts[name] for name in FACTS if name in facts}, "others": others.share()}


def _call(row: dict[str, Any], batch: int, device: torch.device, spent: list[float]) -> timing.Call:
    """A step of the row's memory. On the CPU, each call adds its CPU time to `spent`: other programs change it little."""
    memory: Memory = make_memory(row["memory"], 64, 64, **row["options"]).to(device)
    x = [torch.randn(batch, 64, device=device) for _ in range(COPIES)]
    state, reset = memory.initial_state(batch), torch.zeros(batch, dtype=torch.bool, device=device)

    @torch.no_grad()
    def call(i: int) -> Any:
        start = time.process_time()
        result = memory.step(x[i % COPIES], state, reset)
        spent.append(time.process_time() - start)
        return result

    return timing.graphed(call, COPIES) if device.type == "cuda" else call


# --- what the report says


def sections(results: Any) -> list[Section]:
    return [_section(results, device) for device in DEVICES]


def _section(results: Any, device: str) -> Section:
    names = [task.name for task in results.study.measures if task.settings["device"] == device]
    found = list(present(results, names).values())
    title = {"cpu": "On the CPU", "cuda": "On a GPU"}[device]
    if not names:
        return Section(title, "Not timed: the study ran where there is no CUDA device. The same command on a machine with one adds it.")
    text = [missing(results, *names)]
    if not found:
        return Section(title, text[0])
    facts = found[0]["machine"]
    text.append("Measured with " + ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None) + ".")
    shares = [result["others"] for result in found if result["others"] is not None]
    if shares and max(shares) > timing.DISTURBED:
        text.append(f"Other programs took up to {max(shares):.0%} of the CPU meanwhile: calls of more than a millisecond were interrupted, "
                    "and their wall times say little.")
    rows = []
    for i, row in enumerate(found[0]["rows"]):
        timed = [result["rows"][i] for result in found]
        rows.append([*_name(row), *(text for r in timed for text in _cells(r))])
    kind = {"cpu": "CPU time", "cuda": "on the GPU"}[device]
    columns = [f"{_envs(r['batch'])}, {what}" for r in found for what in (kind, "wall")]
    table = Table(f"times-{device}", "Milliseconds per acting step", ["memory", "size", *columns], rows,
                  "Medians; wall times with quartiles.")
    figures = []
    for result in found:
        own = [row for row in result["rows"] if "ms" in row]
        figures.append(Figure(f"step-{device}-{result['batch']}", f"One acting step, {_envs(result['batch'])}",
                              "", "ms", [Series("median", [" ".join(_name(row)) for row in own], [row["ms"] for row in own])],
                              kind="bar", y_log=True, group=f"step-{device}"))
    sweeps = [Series(f"{name}, {_envs(result['batch'])}",
                     [row["options"]["memory_size"] for row in own], [row["ms"] for row in own], dashed=result["batch"] > 1)
              for result in found for name in SWEEPS
              if (own := [row for row in result["rows"] if row["memory"] == name and "ms" in row])]
    sweep = Figure(f"sweep-{device}", "Time over memory size", "memory size", "ms per step", sweeps, x_log=True, y_log=True)
    return Section(title, " ".join(part for part in text if part), [table, *figures, sweep])


def _cells(row: dict[str, Any]) -> tuple[str, str]:
    if "failed" in row:
        return f"failed: {row['failed']}", ""
    return f"{row['ms']:.3f}", f"{row['wall']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def _envs(count: int) -> str:
    return "1 env" if count == 1 else f"{count} envs"


def _name(row: dict[str, Any]) -> tuple[str, str]:
    return row["memory"], str(row["options"].get("memory_size", "default"))
