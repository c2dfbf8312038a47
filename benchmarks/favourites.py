"""Why agents stop below play without memory in POPGym's Concentration: they prefer some face-down cards to others.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/favourites.py [--task ConcentrationEasy] [--ent-coef 0.02 ...] [--steps 3000000]

Trains `popgym-best` without memory, for each weight of the entropy, and plays on with the learned probabilities: as they are, with those of
cards that lie face up taken out, and with what is left made more equal. Five minutes of a CPU core for each weight.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from hadamem import envs
from hadamem.bench.timing import machine, write_json
from hadamem.training.trainer import Trainer
from popgym_trainer import make_trainer

EPISODES = 600
PLAYS: dict[str, Callable[[Tensor], Tensor] | None] = {      # what becomes of the probabilities of face-down cards; None: nothing
    "as learned": None,
    "face-down cards alone": lambda p: p,
    "face-down cards, square roots": torch.sqrt,
    "face-down cards, all equal": torch.ones_like,
}


@torch.no_grad()
def play(trainer: Trainer, task: str, change: Callable[[Tensor], Tensor] | None) -> dict[str, float]:
    """Mean return x 100 and its standard error, the share of turns wasted on a card that is seen face up, the entropy of the choice."""
    env = envs.make(f"popgym/{task}", num_envs=EPISODES, seed=5)
    obs, _ = env.reset(seed=5)
    state, first = trainer.agent.initial_state(EPISODES, "cpu", torch.Generator().manual_seed(0)), torch.ones(EPISODES, dtype=torch.bool)
    action = torch.zeros(EPISODES, dtype=trainer.inputs.action_dtype)
    generator, live, total = torch.Generator().manual_seed(1), torch.ones(EPISODES, dtype=torch.bool), torch.zeros(EPISODES)
    turns, wasted, entropy, most = 0.0, 0.0, 0.0, 0.0
    for _ in range(env.unwrapped.episode_steps):
        out = trainer.network.step(trainer.inputs(obs, action, first, torch.zeros(EPISODES)).float(), state, first)
        p, down, state = out.dist.softmax(-1), obs.long() == env.unwrapped.face_down, out.state
        if change is not None:
            weights = torch.where(down, change(p) + 1e-12, 0.0)
            p = torch.where(down.any(1, keepdim=True), weights / weights.sum(1, keepdim=True).clamp(min=1e-12), p)
        action = torch.multinomial(p, 1, generator=generator)[:, 0].to(action.dtype)
        turns += float(live.sum())
        wasted += float((live & ~down.gather(1, action.long()[:, None])[:, 0]).sum())
        entropy += float((live * -(p * p.clamp(min=1e-12).log()).sum(1)).sum())
        most += float((live * down.sum(1).clamp(min=1).log()).sum())
        obs, reward, terminated, truncated, _ = env.step(action)
        total += torch.where(live, reward, 0.0)
        first = terminated | truncated
        live &= ~first
    return {"return": 100 * float(total.mean()), "error": 100 * float(total.std()) / EPISODES ** 0.5, "wasted": wasted / turns,
            "entropy": entropy / turns, "entropy_if_equal": most / turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="ConcentrationEasy")
    parser.add_argument("--ent-coef", type=float, nargs="+", default=[0.02, 0.08, 0.2])
    parser.add_argument("--steps", type=int, default=3_000_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {}
    for weight in args.ent_coef:
        trainer = make_trainer("popgym-best", args.task, "none", device="cpu", total_steps=args.steps, ent_coef=weight)
        while not trainer.done:
            trainer.iteration()
        plays = {name: play(trainer, args.task, change) for name, change in PLAYS.items()}
        found[str(weight)] = {name: {key: round(x, 4) for key, x in numbers.items()} for name, numbers in plays.items()}
        print(weight, json.dumps(found[str(weight)], indent=1), flush=True)
    if args.out is not None:
        about = "popgym-best without memory, how it plays with its learned probabilities and with changed ones; benchmarks/favourites.py"
        write_json(args.out, {"about": about, "machine": machine(torch.device("cpu")), "task": args.task, "steps": args.steps,
                              "episodes": EPISODES, "ent_coef": found})


if __name__ == "__main__":
    main()
