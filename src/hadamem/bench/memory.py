"""`hadamem bench memory`: SHM on every usable backend against the plain loop, nn.GRU and nn.LSTM, in one run.

Three parts: the `op` hm.kernels.shm alone, the whole `module` hm.SHM, and the acting `step` (T = 1, no gradient; a
CUDA graph on a GPU). `shm[reference]` is the plain loop over `unbind`, the fair baseline; the GRU and LSTM are
PyTorch's own. All contenders of a case see the same dtype, batch and length, and are timed in turns, the peers in
every case. `forward` keeps no graph, `both` is forward and backward to the inputs and all parameters. Every call gets
the next of three sets of inputs.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import kernels
from ..devices import find_device
from ..files import clip_text
from ..kernels import _backends
from ..memory import SHM
from ..memory.calibration import CLIP
from . import tables, timing
from .timing import DISTURBED, Call, Timing

PARTS = ("op", "module", "step")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
QUICK: dict[str, Any] = {
    "batch": (8,), "time": (64, 256), "memory_size": (32, 128), "repeats": 6, "limit_seconds": 0.3,
}
COPIES = 3        # sets of inputs taken in turn


@dataclass(frozen=True)
class Settings:
    """What to time; `Settings.make` fills in the rest."""

    device: str = "auto"
    batch: tuple[int, ...] = (8, 64)
    time: tuple[int, ...] = (64, 256, 1024)
    memory_size: tuple[int, ...] = (32, 64, 128, 256)
    input_size: int = 64
    peer_size: int = 256            # hidden size of the GRU and LSTM
    dtype: str = "float32"
    what: tuple[str, ...] = PARTS
    backends: tuple[str, ...] = ()  # empty: all that are usable on the device
    repeats: int = 50               # timed calls per case, at most
    limit_seconds: float = 4.0      # per case; a case whose single call would take longer is skipped
    seed: int = 0
    quick: bool = False
    out: str = "bench/memory"
    plots: bool = True

    @classmethod
    def make(cls, **given: Any) -> Settings:
        """Settings with `quick`'s smaller grid where asked for; a ValueError or TypeError names what is wrong."""
        values = {**(QUICK if given.get("quick") else {}), **given}
        for name in ("batch", "time", "memory_size", "what", "backends"):
            if name in values:
                value = values[name]
                values[name] = tuple(dict.fromkeys(value)) if isinstance(value, (list, tuple)) else (value,)
        for name in ("batch", "time", "memory_size"):
            for n in values.get(name, ()):
                _check_whole(name, n)
            if name in values and not values[name]:
                raise ValueError(f"{name} must hold at least one number")
            if name in values:
                values[name] = tuple(sorted(values[name]))
        for name in ("input_size", "peer_size", "repeats"):
            if name in values:
                _check_whole(name, values[name])
        limit = values.get("limit_seconds", 1.0)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise ValueError(f"limit_seconds must be a positive number, got {limit!r}")
        if values.get("dtype", "float32") not in DTYPES:
            raise ValueError(f"unknown dtype {values['dtype']!r}; choose from {', '.join(DTYPES)}")
        if "all" in values.get("what", ()):
            values["what"] = PARTS
        for part in values.get("what", ()):
            if part not in PARTS:
                raise ValueError(f"unknown part {part!r} in what; choose from {', '.join(PARTS)}, all")
        settings = cls(**values)
        device = settings.find_device()
        for backend in settings.backends:
            if backend not in _backends.NAMES:
                raise ValueError(f"unknown backend {backend!r}; choose from {', '.join(_backends.NAMES)}")
            reason = _unusable(backend, device)
            if reason is not None:
                raise ValueError(f"backend {backend!r} cannot be timed on {device}: {reason}")
        return settings

    def find_device(self) -> torch.device:
        return find_device(self.device)


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must hold positive integers, got {value!r}")


def _unusable(backend: str, device: torch.device) -> str | None:
    if backend == "triton" and _backends.interpreting():
        return "TRITON_INTERPRET is set, and the interpreter's speed means nothing"
    return _backends.missing(backend, device.type)


@dataclass(frozen=True)
class Case:
    part: str   # op, module or step
    B: int
    T: int
    H: int

    @property
    def work(self) -> int:
        return self.B * self.T * self.H * self.H


@dataclass(frozen=True)
class Result:
    """One line of the table. Exactly one of `seconds` and `skipped` is set."""

    part: str
    B: int
    T: int
    H: int
    model: str
    direction: str               # forward or both
    seconds: Timing | None
    peak_bytes: int | None       # beyond inputs and parameters
    others: float | None = None  # share of the CPU that other programs took while this case was timed
    skipped: str | None = None


@dataclass(frozen=True)
class Contender:
    """`build` makes the calls to time, by direction; `floats` estimates the numbers it keeps at worst, by direction."""

    model: str
    build: Callable[[], dict[str, Call]]
    floats: dict[str, float] = field(default_factory=dict)


LOOP, GRU = "shm[reference]", "gru"


def contenders(case: Case, settings: Settings, device: torch.device) -> Iterator[Contender]:
    """All that can be timed for this case, the two baselines first."""
    make = Factory(case, settings, device)
    left_out = ("scan",) if settings.quick else ()      # it takes gigabytes and seconds
    names = settings.backends or tuple(n for n in _backends.NAMES if n not in left_out and _unusable(n, device) is None)
    full, small = float(case.work), float(case.B * case.T * (case.H + settings.peer_size) * 8)
    keeps = {"reference": {"forward": small, "both": 5 * full}, "scan": {"forward": 10 * full, "both": 18 * full}}
    build = {"op": make.op, "module": make.module, "step": make.step}[case.part]
    for backend in names:
        floats = keeps.get(backend, {"forward": small, "both": small})
        yield Contender(f"shm[{backend}]", functools.partial(build, backend), floats)
    for model, kind in ((GRU, nn.GRU), ("lstm", nn.LSTM)):
        yield Contender(model, functools.partial(make.peer, kind))
    if case.part == "op" and device.type == "cuda" and importlib.util.find_spec("fla") is not None:
        yield Contender("fla.chunk_gla", make.gla)


class Factory:
    """Builds the calls of every contender from the same seed."""

    def __init__(self, case: Case, settings: Settings, device: torch.device):
        self.case, self.device, self.dtype = case, device, DTYPES[settings.dtype]
        self.D, self.N, self.seed = settings.input_size, settings.peer_size, settings.seed

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def op(self, backend: str) -> dict[str, Call]:
        torch.manual_seed(self.seed)
        B, T, H = self.case.B, self.case.T, self.case.H
        sets = []
        for _ in range(COPIES):
            theta, vc, v = 0.1 * self.normal(B, T, H), self.normal(B, T, H), self.normal(B, T, H)
            k, q = self.normal(B, T, H).softmax(-1), self.normal(B, T, H).softmax(-1)
            sets.append([theta, vc, v, k, q])
        return self.calls(sets, lambda theta, vc, v, k, q: kernels.shm(theta, vc, v, k, q, clip=CLIP, backend=backend)[0], [], H)

    def module(self, backend: str) -> dict[str, Call]:
        torch.manual_seed(self.seed)
        memory = SHM(self.D, self.D, self.case.H, backend=backend).to(self.device, self.dtype)
        return self.calls(self.features(), lambda x: memory(x)[0], list(memory.parameters()), self.D)

    def peer(self, kind: Callable[..., nn.RNNBase]) -> dict[str, Call]:
        torch.manual_seed(self.seed)
        rnn = kind(self.D, self.N, batch_first=True).to(self.device, self.dtype)
        if self.case.part != "step":
            return self.calls(self.features(), lambda x: rnn(x)[0], list(rnn.parameters()), self.N)
        h = self.normal(1, self.case.B, self.N)
        state = h if kind is nn.GRU else (h, h.clone())
        return self.acting(lambda x: rnn(x, state))

    def step(self, backend: str) -> dict[str, Call]:
        torch.manual_seed(self.seed)
        memory = SHM(self.D, self.D, self.case.H, backend=backend).to(self.device, self.dtype)
        state = memory.initial_state(self.case.B)
        return self.acting(lambda x: memory.step(x[:, 0], state))

    def gla(self) -> dict[str, Call]:
        from fla.ops.gla import chunk_gla

        torch.manual_seed(self.seed)
        shape = (self.case.B, self.case.T, 1, self.case.H)   # one head with an H x H state
        sets = []
        for _ in range(COPIES):
            q, k, v, gate = (self.normal(*shape) for _ in range(4))
            sets.append([q, k, v, nn.functional.logsigmoid(gate)])
        return self.calls(sets, lambda q, k, v, g: chunk_gla(q, k, v, g)[0], [], 1, self.case.H)

    def features(self) -> list[list[Tensor]]:
        return [[self.normal(self.case.B, self.case.T, self.D)] for _ in range(COPIES)]

    def calls(
        self, sets: list[list[Tensor]], fn: Callable[..., Tensor], parameters: list[nn.Parameter], *width: int
    ) -> dict[str, Call]:
        """`width`: the shape of fn's result after [B, T]."""
        cotangent = self.normal(self.case.B, self.case.T, *width)
        leaves = [[x.detach().requires_grad_() for x in inputs] for inputs in sets]   # dx too: an encoder comes before

        def forward(i: int) -> Any:
            with torch.no_grad():
                return fn(*sets[i % COPIES])

        def both(i: int) -> Any:
            inputs = leaves[i % COPIES]
            return torch.autograd.grad(fn(*inputs), [*inputs, *parameters], cotangent, allow_unused=True)

        return {"forward": forward, "both": both}

    def acting(self, fn: Callable[[Tensor], Any]) -> dict[str, Call]:
        sets = self.features()

        def call(i: int) -> Any:
            with torch.no_grad():
                return fn(sets[i % COPIES][0])

        return {"forward": timing.graphed(call, COPIES) if self.device.type == "cuda" else call}


class Bench:
    """Runs the grid case by case, and estimates the cost of a case from earlier ones."""

    def __init__(self, settings: Settings):
        self.settings, self.device = settings, settings.find_device()
        self.results: list[Result] = []

    def cases(self) -> Iterator[Case]:
        s = self.settings
        for part in (p for p in PARTS if p in s.what):
            for B in s.batch:
                for H in s.memory_size:
                    for T in (1,) if part == "step" else s.time:
                        yield Case(part, B, T, H)

    def run_case(self, case: Case) -> list[Result]:
        """All contenders of a case, the peers too: ratios are only meaningful between timings made together."""
        gc.collect()
        entries = list(contenders(case, self.settings, self.device))
        built: dict[str, dict[str, Call]] = {}
        group: list[Result] = []
        for direction in ("forward",) if case.part == "step" else ("forward", "both"):
            skipped: dict[str, str] = {}
            for contender in entries:
                reason = self._too_big(case, contender, direction)
                if reason is None and contender.model not in built:
                    try:
                        built[contender.model] = contender.build()
                    except Exception as error:
                        reason = tables.why(error)
                if reason is not None:
                    skipped[contender.model] = reason
            calls = {model: made[direction] for model, made in built.items() if model not in skipped}
            others = timing.Others()
            timings = timing.measure(calls, self.device, self.settings.repeats, self.settings.limit_seconds)
            share = others.share()
            for contender in entries:
                model, seconds, peak = contender.model, timings.get(contender.model), None
                if isinstance(seconds, Exception):
                    skipped[model], seconds = tables.why(seconds), None
                elif seconds is not None and not (case.part == "step" and self.device.type == "cuda"):
                    peak = timing.peak_memory(calls[model], self.device)   # (a graph sets its memory aside at capture)
                group.append(Result(case.part, case.B, case.T, case.H, model, direction, seconds, peak, share,
                                    skipped.get(model)))
        if self.device.type == "cuda":
            built.clear()
            torch.cuda.empty_cache()
        self.results += group
        return group

    def _too_big(self, case: Case, contender: Contender, direction: str) -> str | None:
        """Why this would not fit in memory or time, estimated from the nearest smaller case that ran, or None."""
        if not contender.floats:   # the peers: small, and every ratio needs them
            return None
        wanted = (case.part, contender.model, direction)
        ran = [r for r in self.results if (r.part, r.model, r.direction) == wanted and r.seconds is not None
               and r.B <= case.B and r.T <= case.T and r.H <= case.H]
        need = contender.floats[direction] * max(4, DTYPES[self.settings.dtype].itemsize)
        for last in sorted(ran, key=lambda r: r.B * r.T * r.H * r.H)[-1:]:
            if last.peak_bytes is not None and last.peak_bytes > 1 << 26:
                need = last.peak_bytes * case.work / (last.B * last.T * last.H * last.H)
        quiet = [r for r in ran if (r.others or 0.0) <= DISTURBED]   # a disturbed timing predicts nothing
        for last in sorted(quiet, key=lambda r: r.B * r.T * r.H * r.H)[-1:]:
            assert last.seconds is not None
            # A CPU is busy with arithmetic; a GPU in a Python loop waits for launches, which B and H do not change.
            growth = case.work / (last.B * last.T * last.H * last.H) if self.device.type == "cpu" else case.T / last.T
            expected = last.seconds.best * growth
            room = 5.0 if contender.model == LOOP else 1.0   # the baseline may take longer
            if expected > room * self.settings.limit_seconds:
                return f"a call would take about {expected:.1f} s, over --limit-seconds {self.settings.limit_seconds:g}"
        free = timing.free_memory(self.device)
        if need > 0.7 * free:
            return f"would need about {need / 2**30:.1f} GiB of {free / 2**30:.1f} GiB free"
        return None


def speedup(result: Result, results: list[Result], model: str) -> float | None:
    """How many times faster than `model` in the same case and direction; None where either was skipped."""
    for other in results:
        same = all(getattr(other, name) == getattr(result, name) for name in ("part", "B", "T", "H", "direction"))
        if same and other.model == model and other.seconds is not None and result.seconds is not None:
            return other.seconds.median / result.seconds.median
    return None


def run(settings: Settings) -> list[Result]:
    """Time the grid, print the table as it grows, and write results.json and the plots into `settings.out`."""
    bench = Bench(settings)
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    facts = timing.machine(bench.device)
    print(tables.grid_headline(facts, settings))
    section = None
    for case in bench.cases():
        if case.part != section:
            section = case.part
            print(f"\n{tables.section(section, bench.device, settings)}")
        tables.progress(f"timing {case.part} B={case.B} T={case.T} H={case.H} ...")
        group = bench.run_case(case)
        tables.progress("")
        rows = [tables.grid_row(r, speedup(r, group, LOOP), speedup(r, group, GRU), bench.device) for r in group]
        print("\n".join([*rows, *tables.disturbed(group), ""]), flush=True)
        save(out / "results.json", settings, facts, bench.results)   # an interrupted run keeps what it has
    worst = max((r.others for r in bench.results if r.others is not None), default=None)
    facts["largest share of other programs"] = worst
    facts["load at the end"] = timing.machine(bench.device)["load"]
    save(out / "results.json", settings, facts, bench.results)
    print(tables.grid_legend(bench.device, settings, LOOP))
    print(f"wrote {out / 'results.json'}")
    if settings.plots:
        from . import plots

        try:
            for path in plots.draw(bench.results, out, tables.plot_subtitle(facts, settings)):
                print(f"wrote {path}")
        except OSError as error:      # the results are complete
            print(f"the plots cannot be written: {clip_text(error)}")
    return bench.results


def save(path: Path, settings: Settings, facts: dict[str, Any], results: list[Result]) -> None:
    """Write everything as JSON, atomically."""
    content = {"format": 1, "settings": asdict(settings), "machine": facts, "results": [asdict(r) for r in results]}
    timing.write_json(path, content)
