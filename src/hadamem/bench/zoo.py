"""`hadamem bench memory --all`: every memory next to PyTorch's GRU, at the sizes of the paper and at equal state, in one run.

A training step is forward and backward through B sequences of T steps, to the inputs and all parameters: `whole`, where every sequence
is one episode and the memory is given that hint (how PPO trains on tasks of fixed length), and `resets`, where episodes end inside. On a
GPU each is timed as a CUDA graph, which is how the trainer runs it, and `whole` also launched operation by operation. An acting step is one
step of `acting` rows without gradients. All are timed in turns.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..devices import find_device
from ..memory import Memory, find_memory, list_memories, make_memory
from . import tables, timing
from .timing import Timing

PEER = "nn.GRU"
SIZES: dict[str, dict[str, Any]] = {   # as in the paper or its released code; for memories that they do not have, our defaults
    "shm": {"memory_size": 128}, "shm-paper": {"memory_size": 128}, "shm-release": {"memory_size": 128},
    "hebbian": {"memory_size": 128}, "linear_attention": {"memory_size": 128}, "fast_weights": {"memory_size": 128},
    "fwp": {"memory_size": 64}, "mlstm": {"memory_size": 128}, "ffm": {"memory_size": 128, "context": 4}, "s6": {"memory_size": 512},
    "gru": {"memory_size": 256}, "lstm": {"memory_size": 256}, "gpt2": {"memory_size": 512, "heads": 4, "window": 1024},
}
EQUAL: dict[str, dict[str, Any]] = {"gpt2": {"memory_size": 32}}   # what stays fixed while another size is fitted
FITTED = {"gpt2": "window"}                                        # which one; memory_size for all others
MANY_LAUNCHES = 1.0       # seconds of one training step from which no CUDA graph of it is made: it would hold 100,000 operations
RESET_EVERY = 64          # steps, on average
COPIES = 3                # sets of inputs taken in turn


@dataclass(frozen=True)
class Settings:
    device: str = "auto"
    batch: int = 8
    time: int | None = None          # None: 1024 on a GPU, 256 elsewhere
    acting: int = 64                 # rows of an acting step
    input_size: int = 64
    output_size: int = 64
    state: int = 1024                # real numbers, for the comparison at equal state
    peer_size: int = 256             # hidden size of torch.nn.GRU
    only: tuple[str, ...] = ()       # names; empty: all
    repeats: int = 20                # timed calls of each, at most
    limit_seconds: float = 0.5       # for the timed calls of each
    seed: int = 0
    out: str = "bench/memories"

    def __post_init__(self) -> None:
        for name in ("batch", "acting", "input_size", "output_size", "state", "peer_size", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.time is not None and self.time < 2:
            raise ValueError(f"time must be at least 2, got {self.time}")
        if not self.limit_seconds > 0:
            raise ValueError(f"limit_seconds must be positive, got {self.limit_seconds}")
        for name in self.only:
            find_memory(name)
        find_device(self.device)


@dataclass
class Row:
    """The measurements of one memory. Times are medians in seconds, None where one is missing (`note` says why)."""

    memory: str
    options: dict[str, Any]
    state: int
    parameters: int
    times: dict[str, Timing] = field(default_factory=dict)   # whole, whole (graph), resets, resets (graph), act
    peak_bytes: int | None = None                            # of `whole`, beyond inputs and parameters
    note: str = ""


class Contest:
    """All memories of one table, built and timed together."""

    def __init__(self, settings: Settings, sizes: dict[str, dict[str, Any]]):
        self.settings, self.device = settings, find_device(settings.device)
        self.T = settings.time or (1024 if self.device.type == "cuda" else 256)
        torch.manual_seed(settings.seed)
        B, D = settings.batch, settings.input_size
        self.x = [torch.randn(B, self.T, D, device=self.device) for _ in range(COPIES)]
        self.x1 = [torch.randn(settings.acting, D, device=self.device) for _ in range(COPIES)]
        self.reset = torch.rand(B, self.T, device=self.device) < 1 / RESET_EVERY
        self.reset[:, 0] = True
        self.memories: dict[str, nn.Module] = {}
        self.rows: dict[str, Row] = {}
        for name, options in sizes.items():
            memory = make_memory(name, D, settings.output_size, **options).to(self.device)
            self._enter(name, memory, options, memory.state_size)
        self._enter(PEER, nn.GRU(D, settings.peer_size, batch_first=True).to(self.device), {"memory_size": settings.peer_size},
                    settings.peer_size)

    def _enter(self, name: str, memory: nn.Module, options: dict[str, Any], state: int) -> None:
        self.memories[name] = memory
        self.rows[name] = Row(name, options, state, sum(p.numel() for p in memory.parameters()))

    def run(self) -> list[Row]:
        gc.collect()
        plain = {"whole": self._train(whole=True), "resets": self._train(whole=False), "act": self._act()}
        for kind, calls in plain.items():
            if self.device.type != "cuda" or kind == "whole":
                self._time(kind, calls)
            if kind == "whole":
                for name, call in calls.items():
                    self.rows[name].peak_bytes = timing.peak_memory(call, self.device) if kind in self.rows[name].times else None
            if self.device.type == "cuda":
                self._time(kind if kind == "act" else f"{kind} (graph)", self._graphs(kind, calls))
                torch.cuda.empty_cache()
        return list(self.rows.values())

    def _time(self, kind: str, calls: dict[str, timing.Call]) -> None:
        found = timing.measure(calls, self.device, self.settings.repeats, self.settings.limit_seconds)
        for name, seconds in found.items():
            if isinstance(seconds, Timing):
                self.rows[name].times[kind] = seconds
            else:
                self._say(name, f"{kind}: {tables.why(seconds)}")

    def _say(self, name: str, note: str) -> None:
        row = self.rows[name]
        row.note = f"{row.note}; {note}" if row.note else note

    def _train(self, whole: bool) -> dict[str, timing.Call]:
        first = torch.zeros_like(self.reset)
        first[:, 0] = True
        calls = {}
        for name, memory in self.memories.items():
            if isinstance(memory, Memory):
                calls[name] = self._learner(memory, first if whole else self.reset, whole)
            elif whole:           # PyTorch's GRU has no resets
                calls[name] = self._gradients(memory, _first_of(memory))
        return calls

    def _learner(self, memory: Memory, reset: Tensor, whole: bool) -> timing.Call:
        state, hints = memory.initial_state(self.settings.batch), memory.hints(whole, whole)

        def forward(x: Tensor) -> Tensor:
            return memory(x, state, reset, **hints)[0]

        return self._gradients(memory, forward)

    def _gradients(self, memory: nn.Module, forward: Callable[[Tensor], Tensor]) -> timing.Call:
        leaves, parameters = [x.clone().requires_grad_() for x in self.x], list(memory.parameters())
        cotangent: list[Tensor] = []

        def call(i: int) -> Any:
            x = leaves[i % COPIES]
            y = forward(x)
            if not cotangent:
                cotangent.append(torch.randn_like(y))
            return torch.autograd.grad(y, [x, *parameters], cotangent[0], allow_unused=True)

        return call

    def _act(self) -> dict[str, timing.Call]:
        calls: dict[str, timing.Call] = {}
        reset = torch.zeros(self.settings.acting, dtype=torch.bool, device=self.device)
        for name, memory in self.memories.items():
            if isinstance(memory, Memory):
                calls[name] = self._actor(memory, reset)
            else:
                calls[name] = self._peer(memory)
        return calls

    def _peer(self, gru: nn.Module) -> timing.Call:
        h = torch.zeros(1, self.settings.acting, self.settings.peer_size, device=self.device)

        @torch.no_grad()
        def call(i: int) -> Any:
            return gru(self.x1[i % COPIES][:, None], h)

        return call

    def _actor(self, memory: Memory, reset: Tensor) -> timing.Call:
        state = memory.initial_state(self.settings.acting)

        @torch.no_grad()
        def call(i: int) -> Any:
            return memory.step(self.x1[i % COPIES], state, reset)

        return call

    def _graphs(self, kind: str, calls: dict[str, timing.Call]) -> dict[str, timing.Call]:
        graphs = {}
        for name, call in calls.items():
            launched = self.rows[name].times.get("whole")
            if kind != "act" and launched is not None and launched.median > MANY_LAUNCHES:
                self._say(name, f"{kind}: too many operations for a CUDA graph")
                continue
            try:
                graphs[name] = timing.graphed(call, COPIES if kind == "act" else 1)
            except Exception as error:
                torch.cuda.synchronize(self.device)
                self._say(name, f"{kind}: no CUDA graph: {timing.one_line(error)}")
        return graphs


def _first_of(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x)[0]


def paper_sizes(names: list[str]) -> dict[str, dict[str, Any]]:
    return {name: SIZES.get(name, {}) for name in names}


def equal_sizes(names: list[str], settings: Settings) -> dict[str, dict[str, Any]]:
    """For each memory with a state: the size for which it is nearest to settings.state real numbers."""
    found = {}
    for name in names:
        fixed, fitted = EQUAL.get(name, {}), FITTED.get(name, "memory_size")

        def state(size: int, name: str = name, fixed: dict[str, Any] = fixed, fitted: str = fitted) -> int:
            with torch.device("meta"):
                return make_memory(name, settings.input_size, settings.output_size, **fixed, **{fitted: size}).state_size

        low, high = 2, 2
        try:
            state(high)
        except (TypeError, ValueError):      # a user's memory without memory_size
            continue
        while state(high) < settings.state and high < 1 << 20:
            low, high = high, 2 * high
        if high >= 1 << 20:      # it has no state
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if state(middle) < settings.state else (low, middle)
        found[name] = {**fixed, fitted: min((low, high), key=lambda size: abs(state(size) - settings.state))}
    return found


def run(settings: Settings) -> dict[str, list[Row]]:
    """Both tables, printed and written to results.json and tables.md in `settings.out`."""
    device = find_device(settings.device)
    names = list(settings.only) or [name for name in list_memories() if name not in ("shm-paper", "shm-release")]
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    facts = timing.machine(device)
    print(tables.zoo_headline(facts))
    others = timing.Others()
    found: dict[str, list[Row]] = {}
    text: list[str] = []
    contests = {"sizes of the paper": paper_sizes(names), f"state of about {settings.state} numbers": equal_sizes(names, settings)}
    for title, sizes in contests.items():
        contest = Contest(settings, sizes)
        found[title] = contest.run()
        head = f"{title}: B={settings.batch}, T={contest.T}, {settings.input_size} -> {settings.output_size}, acting B={settings.acting}"
        cells = tables.zoo_cells(found[title], contest.rows[PEER], device, settings)
        print("\n" + head + "\n" + tables.aligned(cells), flush=True)
        for row in found[title]:
            if row.note:
                print(f"  {row.memory}: {row.note}")
        text += [f"**{head[0].upper()}{head[1:]}**", "", *tables.markdown(cells), ""]
        share = others.share()
        if share is not None and share > timing.DISTURBED and device.type == "cpu":
            print(f"  {tables.disturbance(share)}")
        facts["share of other programs"] = share
        content = {"format": 1, "settings": asdict(settings), "machine": facts,
                   "tables": {name: [asdict(row) for row in rows] for name, rows in found.items()}}
        timing.write_json(out / "results.json", content)
        (out / "tables.md").write_text("\n".join(text))
        del contest
        gc.collect()
    print(f"\n{tables.ZOO_LEGEND[device.type == 'cuda']}\nwrote {out / 'results.json'} and {out / 'tables.md'}")
    return found
