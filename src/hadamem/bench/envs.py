"""`hadamem bench envs`: env steps per second of the batched tasks, next to the popgym package where it has the task.

Every env step counts, resets included; actions are random and drawn beforehand. On a GPU a CUDA graph of many steps is replayed; on a
CPU `step` is called in a loop. Tasks take turns in rounds, as in `timing`, and the best and the median round are reported. popgym runs one
env in one process, as it is designed.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box, MultiDiscrete
from torch import Tensor

from .. import envs
from ..cuda_graphs import record
from ..devices import find_device
from . import timing

ROUNDS = 5
UNROLL = 32       # steps in one CUDA graph
DEFAULT = ("popgym/RepeatPreviousEasy", "popgym/AutoencodeEasy", "popgym/BattleshipEasy", "popgym/ConcentrationEasy", "VisualMatch",
           "KeyToDoor", "Wind", "PointRobot")


@dataclass(frozen=True)
class Settings:
    """What to time."""

    names: tuple[str, ...] = DEFAULT
    num_envs: int = 8192
    device: str = "auto"
    seconds: float = 1.0          # for each task and round together
    peer: bool = True             # also time the popgym package
    out: str = "bench/envs"

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in envs.list_envs()]
        if unknown:
            raise ValueError(f"unknown envs {unknown}; `hadamem list envs` names them all")
        if self.num_envs < 1 or self.seconds <= 0:
            raise ValueError(f"num_envs and seconds must be positive, got {self.num_envs} and {self.seconds}")


@dataclass(frozen=True)
class Result:
    name: str
    num_envs: int
    steps_per_second: float       # the median round
    best: float
    popgym: float | None          # env steps per second of the package
    others: float | None          # share of the CPU other programs took meanwhile


def run(settings: Settings) -> list[Result]:
    """Time the tasks, print a table, and write results.json into `settings.out`."""
    device = find_device(settings.device)
    facts = timing.machine(device)
    print(f"hadamem {facts['hadamem']} bench envs, commit {facts['commit']}, {facts['date']}")
    print(f"{facts.get('gpu') or facts['cpu']}; torch {facts['torch']}, {facts['threads']} CPU threads, load {facts['load']}, "
          f"{settings.num_envs} envs" + (f", CUDA graphs of {UNROLL} steps" if device.type == "cuda" else ""))
    blocks: dict[str, Callable[[], int]] = {name: _block(name, settings.num_envs, device) for name in settings.names}
    peers = {name: _peer(name) for name in settings.names} if settings.peer else {}
    rates: dict[str, list[float]] = {name: [] for name in settings.names}
    theirs: dict[str, list[float]] = {name: [] for name in settings.names}
    others = timing.Others()
    for _ in range(ROUNDS):
        for name in settings.names:
            rates[name].append(_rate(blocks[name], device, settings.seconds / ROUNDS))
            peer = peers.get(name)
            if peer is not None:
                theirs[name].append(_rate(peer, torch.device("cpu"), settings.seconds / ROUNDS))
    share = others.share()
    results = [Result(name, settings.num_envs, statistics.median(rates[name]), max(rates[name]),
                      statistics.median(theirs[name]) if theirs[name] else None, share) for name in settings.names]
    print("\n".join(_table(results)))
    if share is not None and share > 0.1:
        print(f"other programs took {share:.0%} of the CPU meanwhile")
    path = Path(settings.out) / "results.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    timing.write_json(path, {"machine": facts, "settings": asdict(settings), "results": [asdict(r) for r in results]})
    print(f"wrote {path}")
    return results


def _block(name: str, num_envs: int, device: torch.device) -> Callable[[], int]:
    """A function that makes some steps and returns the number of env steps."""
    env = envs.make(name, num_envs=num_envs, device=device, seed=0)
    env.reset()
    actions = _actions(env, UNROLL)

    def steps() -> int:
        for action in actions:
            env.step(action)
        return UNROLL * num_envs

    if device.type != "cuda":
        return steps
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        steps()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with record(graph):
        steps()

    def replay(kept: object = (env, actions)) -> int:      # the graph works in their memory
        graph.replay()
        return UNROLL * num_envs

    return replay


def _actions(env: envs.BatchedEnv, steps: int) -> list[Tensor]:
    rng, space = np.random.default_rng(0), env.single_action_space
    shape = (steps, env.num_envs, *(space.shape or ()))
    values: np.ndarray
    if isinstance(space, Box):
        values = rng.uniform(space.low, space.high, size=shape).astype(np.float32)
    else:
        values = rng.integers(space.nvec if isinstance(space, MultiDiscrete) else int(space.n), size=shape)  # type: ignore[attr-defined]
    return list(torch.as_tensor(values, device=env.device).unbind(0))


def _peer(name: str) -> Callable[[], int] | None:
    """The popgym package's env of that name, one process, or None."""
    family, _, task = name.partition("/")
    if family != "popgym":
        return None
    try:
        popgym = importlib.import_module("popgym")
    except ImportError:
        return None
    cls = next((cls for cls in popgym.envs.ALL if cls.__name__ == task), None)
    if cls is None:
        return None
    env = cls()
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(64)]

    def steps() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(actions)

    return steps


def _rate(block: Callable[[], int], device: torch.device, seconds: float) -> float:
    """Env steps per second over about that time."""
    block()
    timing.synchronize(device)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(10 if device.type == "cuda" else 1):
            count += block()
        timing.synchronize(device)
    return count / (time.perf_counter() - start)


def _table(results: list[Result]) -> list[str]:
    width = max(len(r.name) for r in results)
    lines = [f"{'':<{width}}  steps/s (median of {ROUNDS})      best   popgym package    ratio"]
    for r in results:
        peer = "" if r.popgym is None else f"{_amount(r.popgym):>17}{r.steps_per_second / r.popgym:>8.0f}x"
        lines.append(f"{r.name:<{width}}{_amount(r.steps_per_second):>24}{_amount(r.best):>10}{peer}")
    return lines


def _amount(x: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if x >= size:
            return f"{x / size:.3g} {unit}"
    return f"{x:.3g}"
