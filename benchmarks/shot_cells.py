"""How soon the network of popgym-best learns a set: told the right answers, it names the cells of a board that were shot at so far.

    PYTHONPATH=src python benchmarks/shot_cells.py [--out docs/measurements/popgym-shot-cells.json] [--board 12] [--updates 800] [CASE ...]

Battleship asks for no more before its first hit, and reinforcement learning has one noisy reward per shot to learn it from. Here every
step has the answer for every cell, so that minutes on a CPU show what a layer or a memory is worth. Shots are those of a player that picks
a random cell in 30 % of the steps and one not shot at yet otherwise.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hadamem.agents.networks import NetworkConfig, Trunk
from hadamem.bench.timing import machine, write_json
from hadamem.runs.config import make_config

STEPS = 2048         # of an update
REPEATED, HITS = 0.3, 0.15
LINEAR = {"memory_activation": "none"}
WIDE = {"head_size": 256}
CASES: dict[str, dict[str, Any]] = {      # changes of popgym-best's network; "options": of its memory
    "popgym-best": {},
    "linear output": LINEAR,
    "wide head": WIDE,
    "linear output, wide head": {**LINEAR, **WIDE},
    "signed keys": {"options": {"normalize_keys": False}},
    "signed keys, linear output, wide head": {**LINEAR, **WIDE, "options": {"normalize_keys": False}},
    "no rotary rows, linear output, wide head": {**LINEAR, **WIDE, "options": {"rotary": False}},
    "256 x 64, linear output, wide head": {**LINEAR, **WIDE, "memory_size": 256, "options": {"key_size": 64}},
    "centred codes": {"centred": True},
    "centred codes, linear output, wide head": {**LINEAR, **WIDE, "centred": True},
    "ffm": {"memory": "ffm"},
    "gpt2": {"memory": "gpt2"},
}


def play(n: int, cells: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Features [n, cells, F] of an episode's steps, and the cells shot at so far [n, cells, cells]."""
    fresh = torch.rand(n, cells, generator=generator).argsort(1)
    shots = torch.where(torch.rand(n, cells, generator=generator) < REPEATED, torch.randint(cells, (n, cells), generator=generator), fresh)
    previous = torch.zeros(n, cells, cells).scatter_(2, shots[..., None], 1.0).roll(1, 1)
    previous[:, 0] = 0.0
    hit = F.one_hot((torch.rand(n, cells, generator=generator) < HITS).long(), 2)
    first = F.one_hot((torch.arange(cells) == 0).long(), 2).expand(n, -1, -1)
    return torch.cat([hit, previous, first], -1), previous.cumsum(1).clamp(max=1.0)


def learn(changes: dict[str, Any], board: int, updates: int, seed: int) -> dict[str, Any]:
    changes = dict(changes)
    options, centred = changes.pop("options", {}), changes.pop("centred", False)
    memory = changes.pop("memory", "shm")
    usual = make_config("popgym-best", memory=memory)
    options = {**usual.network.memory_options, **options}
    config = make_config("popgym-best", memory=memory, **changes, memory_options=options).network
    assert isinstance(config, NetworkConfig)
    torch.manual_seed(seed)
    generator, cells = torch.Generator().manual_seed(seed + 1), board * board
    x, _ = play(64, cells, generator)
    mean = x.mean((0, 1)) if centred else torch.zeros(x.shape[-1])
    trunk = Trunk(x.shape[-1], (), config)
    head = nn.Sequential(nn.Linear(config.layer_size, config.head_size), nn.Linear(config.head_size, cells))
    parameters = [*trunk.parameters(), *head.parameters()]
    rate = usual.algorithm.learning_rate
    adam = torch.optim.Adam(parameters, rate)
    n, begin, right, loss = max(1, STEPS // cells), time.perf_counter(), [], torch.zeros(())
    for update in range(updates):
        for group in adam.param_groups:
            group["lr"] = rate * (1 - update / updates)
        x, shot = play(n, cells, generator)
        reset = (torch.arange(cells) == 0).expand(n, -1)
        y, _ = trunk(x - mean, trunk.initial_state(n), reset, resets_only_at_start=True, starts_fresh=True)
        logits = head(y)
        loss = F.binary_cross_entropy_with_logits(logits, shot)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        adam.step()
        right.append(float(((logits > 0) == (shot > 0.5)).float().mean()))
    part = max(1, updates // 10)
    shares = [round(sum(right[i:i + part]) / part, 3) for i in range(0, part * (updates // part), part)]
    return {"right": shares, "cross-entropy": round(loss.item(), 3), "seconds": round(time.perf_counter() - begin)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--out", type=Path, default=Path("docs/measurements/popgym-shot-cells.json"))
    parser.add_argument("--board", type=int, default=12)
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = {}
    for name in args.cases or CASES:
        found[name] = learn(CASES[name], args.board, args.updates, args.seed)
        print(f"{name:45}", *found[name]["right"], f"({found[name]['seconds']} s)", flush=True)
    about = "Share of right cells by tenths of the updates, and the last cross-entropy; benchmarks/shot_cells.py"
    write_json(args.out, {"about": about, "board": args.board, "updates": args.updates, "seed": args.seed,
                          "machine": machine(torch.device("cpu")), "cases": found})


if __name__ == "__main__":
    main()
