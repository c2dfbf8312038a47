"""What players that learn nothing reach on the POPGym tasks of the paper: random actions, good play without memory, a perfect memory.

    PYTHONPATH=src python benchmarks/popgym_players.py [--out docs/measurements/popgym-players.json] [--episodes 2000]

Players see observations and their own actions, as agents do.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hadamem import envs
from hadamem.bench.timing import machine, write_json
from hadamem.experiments.studies.popgym_table import TASKS

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "measurements" / "popgym-players.json"
SHIPS = (2, 3, 3, 4)


class RandomPlayer:
    """Every action is as likely as any other."""

    def __init__(self, env: Any):
        self.env, self.rng = env, np.random.default_rng(0)

    def act(self, t: int, obs: Any) -> np.ndarray:
        space = self.env.single_action_space
        parts = np.array(getattr(space, "nvec", space.n if hasattr(space, "n") else None))
        return self.rng.integers(parts, size=(self.env.num_envs, *parts.shape))


class SweepPlayer:
    """Battleship: shoots at one cell after the other, for which the number of the step is enough."""

    def __init__(self, env: Any):
        self.n, self.size = env.num_envs, env.board_size

    def act(self, t: int, obs: Any) -> np.ndarray:
        return np.tile(np.stack(divmod(t % self.size ** 2, self.size)), (self.n, 1))


class BoardPlayer:
    """Concentration: turns a card at random among those that lie face down on the board that it sees."""

    def __init__(self, env: Any):
        self.face_down, self.rng = env.face_down, np.random.default_rng(0)

    def act(self, t: int, obs: Any) -> np.ndarray:
        obs = obs.numpy()
        return np.where(obs == self.face_down, self.rng.random(obs.shape), -1.0).argmax(1)


class EchoPlayer:
    """RepeatPrevious and Autoencode: answers with the card that it sees."""

    def __init__(self, env: Any):
        pass

    def act(self, t: int, obs: Any) -> np.ndarray:
        return (obs[1] if isinstance(obs, tuple) else obs).numpy()


class RecallPlayer:
    """RepeatPrevious and Autoencode: remembers every card."""

    def __init__(self, env: Any):
        self.env, self.seen = env, []

    def act(self, t: int, obs: Any) -> np.ndarray:
        self.seen.append((obs[1] if isinstance(obs, tuple) else obs).numpy())
        if hasattr(self.env, "k"):
            return self.seen[max(len(self.seen) - self.env.k, 0)]
        cards = self.env.num_cards
        return self.seen[max(0, 2 * cards - 2 - t)] if t >= cards - 1 else self.seen[0]


class PairsPlayer:
    """Concentration: turns unknown cards in order; once two cards of a class are known, turns both.

    Even so a card has to be turned to be known, and a second card that does not match costs.
    """

    def __init__(self, env: Any):
        self.n, self.classes, self.cards = env.num_envs, env.face_down, env.num_cards
        self.known = np.full((self.n, self.cards), self.classes)
        self.up = np.zeros((self.n, self.cards), bool)
        self.tries: list[list[int]] = [[] for _ in range(self.n)]      # places turned in the current try

    def act(self, t: int, obs: Any) -> np.ndarray:
        obs = obs.numpy()
        self.known = np.where(obs < self.classes, obs, self.known)
        return np.array([self._turn(i) for i in range(self.n)])

    def _turn(self, i: int) -> int:
        known, up, tried = self.known[i], self.up[i], self.tries[i]
        if len(tried) == 2:
            if known[tried[0]] == known[tried[1]]:
                up[tried] = True
            tried.clear()
        if up.all():
            return 0                                            # over
        place = self._choose(known, up, tried)
        tried.append(place)
        return place

    def _choose(self, known: np.ndarray, up: np.ndarray, tried: list[int]) -> int:
        unknown = np.flatnonzero(known == self.classes)
        if tried:                                               # the first card of a try is open: is its partner known?
            partners = [p for p in np.flatnonzero((known == known[tried[0]]) & ~up) if p != tried[0]]
            return int(partners[0] if partners else unknown[0])
        for c in range(self.classes):
            places = np.flatnonzero((known == c) & ~up)
            if len(places) >= 2:
                return int(places[0])
        return int(unknown[0])


class HuntPlayer:
    """Battleship: shoots where most places of ships fit that have no miss, those with hits counting far more.

    A good player and not the best possible one: it does not infer which ships are sunk.
    """

    WEIGHT = 30.0      # of each hit in a place

    def __init__(self, env: Any):
        self.n, self.size = env.num_envs, env.board_size
        self.hit = np.zeros((self.n, self.size ** 2), np.float32)
        self.shot = np.zeros_like(self.hit)
        self.last: np.ndarray | None = None
        cells = np.arange(self.size ** 2).reshape(self.size, self.size)
        places = []
        for length in SHIPS:
            for board in (cells, cells.T):
                places += [row[start:start + length] for row in board for start in range(self.size - length + 1)]
        self.places = np.zeros((len(places), self.size ** 2), np.float32)
        for i, place in enumerate(places):
            self.places[i, place] = 1.0

    def act(self, t: int, obs: Any) -> np.ndarray:
        everyone = np.arange(self.n)
        if self.last is not None:
            self.hit[everyone, self.last] += obs.numpy()
            self.shot[everyone, self.last] = 1.0
        misses = (self.shot - self.hit) @ self.places.T
        value = (misses == 0) * self.WEIGHT ** (self.hit @ self.places.T)
        self.last = np.where(self.shot > 0, -1.0, value @ self.places).argmax(1)
        return np.stack(np.divmod(self.last, self.size), 1)


# By game; the last is for the others.
WITHOUT_MEMORY = {"Battleship": SweepPlayer, "Concentration": BoardPlayer, "": EchoPlayer}
PERFECT_MEMORY = {"Battleship": HuntPlayer, "Concentration": PairsPlayer, "": RecallPlayer}
PLAYERS: dict[str, dict[str, Any]] = {"random": {"": RandomPlayer}, "no memory": WITHOUT_MEMORY, "perfect memory": PERFECT_MEMORY}


def make_player(player: str, env: Any, task: str) -> Any:
    """A player of PLAYERS for the envs of a task."""
    return next(kind for game, kind in PLAYERS[player].items() if task.startswith(game))(env)


def play(task: str, player: str, episodes: int) -> np.ndarray:
    """The returns of that many episodes."""
    env = envs.make(f"popgym/{task}", num_envs=episodes, seed=0, autoreset_mode="disabled")
    obs, _ = env.reset()
    chosen = make_player(player, env, task)
    alive, returns, t = np.ones(episodes, bool), np.zeros(episodes), 0
    while alive.any():
        obs, reward, terminated, truncated, _ = env.step(chosen.act(t, obs))
        returns += np.where(alive, reward.numpy(), 0.0)
        alive &= ~(terminated | truncated).numpy()
        t += 1
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--episodes", type=int, default=2000)
    args = parser.parse_args()
    returns: dict[str, dict[str, dict[str, float]]] = {}
    for task in TASKS:
        print(f"{task:22}", end="", flush=True)
        for player in PLAYERS:
            found = play(task, player, args.episodes)
            mean, error = float(found.mean()), float(found.std(ddof=1) / math.sqrt(len(found)))
            returns.setdefault(task, {})[player] = {"mean": round(mean, 4), "error": round(error, 5)}
            print(f"{player} {100 * mean:6.1f} ± {100 * error:.1f}   ", end="", flush=True)
        print()
    write_json(args.out, {"about": "Mean return of players that learn nothing, and its standard error; benchmarks/popgym_players.py",
                          "episodes": args.episodes, "machine": machine(torch.device("cpu")), "returns": returns})


if __name__ == "__main__":
    main()
