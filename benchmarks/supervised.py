"""How soon the network of popgym-gae learns what POPGym's games need, if it is told the right answers.

    PYTHONPATH=src python benchmarks/supervised.py shots     # the cells that were shot at so far, as in Battleship-Hard
    PYTHONPATH=src python benchmarks/supervised.py pairs     # where the card lies that fits the one just turned, as in Concentration-Hard

Reinforcement learning has one noisy reward per action to learn this from. Here every step has its answers, so that minutes on a CPU show
what a layer, a memory or a code of the observation is worth.

- shots: episodes of 144 shots, of a player that picks a random cell in 30 % of the steps and one not shot at yet otherwise. The network
  says for every cell whether it was shot at. Reported: the share of right cells by tenths of the updates.
- pairs: episodes of a player that turns random cards. Where one card of a try is turned, and a card of its rank was seen before, the
  network names a place. Reported: the probability of such places by tenths of the updates, and the first update at which it is above 0.5.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hadamem as hm
from hadamem.agents.networks import NetworkConfig, Trunk
from hadamem.bench.timing import machine, write_json
from hadamem.envs.games.concentration import Concentration
from hadamem.runs.config import make_config

STEPS = 2048         # of an update, or a little more
REPEATED, HITS = 0.3, 0.15
BOARD = 12           # side, in cells
LINEAR = {"memory_activation": "none"}
WIDE = {"head_size": 256}
SIGNED = {"options": {"normalize_keys": False}}
TALL = {**LINEAR, **WIDE, "options": {"normalize_keys": False, "key_size": 64}}
TIED = {**TALL, "options": {**TALL["options"], "tied_start": True}}
# Changes of popgym-gae's network. "options": of its memory; "codes": see the players; "start": scale of the head's first weights.
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "shots": {
        "popgym-gae": {},
        "linear output": LINEAR,
        "wide head": WIDE,
        "linear output, wide head": {**LINEAR, **WIDE},
        "linear output, wide head that starts at 0.1": {**LINEAR, **WIDE, "start": 0.1},
        "signed keys": SIGNED,
        "signed keys, linear output, wide head": {**LINEAR, **WIDE, **SIGNED},
        "no rotary rows, linear output, wide head": {**LINEAR, **WIDE, "options": {"rotary": False}},
        "256 x 64, linear output, wide head": {**LINEAR, **WIDE, "memory_size": 256, "options": {"key_size": 64}},
        "centred codes": {"codes": "centred"},
        "centred codes, linear output, wide head": {**LINEAR, **WIDE, "codes": "centred"},
        "ffm": {"memory": "ffm"},
        "gpt2": {"memory": "gpt2"},
    },
    "pairs": {
        "popgym-gae": {},
        "128 x 64": TALL,
        "128 x 64, tied start": TIED,
        "128 x 64, no code for cards that lie face down": {**TALL, "codes": "up"},
        "... and tied start": {**TIED, "codes": "up"},
        "128 x 64, ... and the ranks of cards just turned": {**TALL, "codes": "up, turned"},
        "... and tied start, too": {**TIED, "codes": "up, turned"},
        "... board x 0.3": {**TIED, "codes": "up x 0.3, turned"},
        "... board x 0.3, no rotary rows": {**TIED, "options": {**TIED["options"], "rotary": False}, "codes": "up x 0.3, turned"},
        "... board x 0.3, rewards for random choices instead of answers": {**TIED, "codes": "up x 0.3, turned", "rewards": True},
        "gpt2": {"memory": "gpt2"},
    },
}


class Batch:
    """Episodes of one update: features x [n, T, F], the right answers [n, T, A], and the steps that count [n, T]."""

    def __init__(self, x: Tensor, right: Tensor, counts: Tensor):
        self.x, self.right, self.counts = x, right, counts


def play_shots(generator: torch.Generator, codes: str) -> Batch:
    cells = BOARD * BOARD
    n = max(1, STEPS // cells)
    fresh = torch.rand(n, cells, generator=generator).argsort(1)
    shots = torch.where(torch.rand(n, cells, generator=generator) < REPEATED, torch.randint(cells, (n, cells), generator=generator), fresh)
    previous = torch.zeros(n, cells, cells).scatter_(2, shots[..., None], 1.0).roll(1, 1)
    previous[:, 0] = 0.0
    hit = F.one_hot((torch.rand(n, cells, generator=generator) < HITS).long(), 2)
    first = F.one_hot((torch.arange(cells) == 0).long(), 2).expand(n, -1, -1)
    x = torch.cat([hit, previous, first], -1)
    if codes == "centred":
        share = torch.cat([torch.tensor([1 - HITS, HITS]), torch.full((cells,), 1 / cells), torch.tensor([1 - 1 / cells, 1 / cells])])
        x = x - share
    return Batch(x, previous.cumsum(1).clamp(max=1.0), torch.ones(n, cells, dtype=torch.bool))


def play_pairs(generator: torch.Generator, codes: str) -> Batch:
    """codes: "up": cards that lie face down have none; "x 0.3": a smaller scale of the board; "turned": the ranks of the cards that were
    face down a step before, wherever they lie.
    """
    seed = int(torch.randint(1 << 31, (), generator=generator))
    env = hm.envs.make("popgym/ConcentrationHard", num_envs=20, seed=seed)
    game = env.unwrapped
    assert isinstance(game, Concentration)
    assert game.episode_steps is not None
    cards, down, n = game.num_cards, game.face_down, game.num_envs
    obs = env.reset()[0].long()
    before = torch.full_like(obs, down)
    seen, previous = torch.zeros(n, cards, dtype=torch.bool), torch.zeros(n, cards)
    xs, answers, counts = [], [], []
    for t in range(game.episode_steps):
        board = F.one_hot(obs, down + 1)
        if "up" in codes:
            board = board[..., :-1]
        parts = [board.flatten(1) * (0.3 if "x 0.3" in codes else 1.0), previous, F.one_hot(torch.full((n,), int(t == 0)), 2)]
        if "turned" in codes:
            parts.append((F.one_hot(obs, down + 1)[..., :-1] * (before == down)[..., None]).sum(1))
        xs.append(torch.cat(parts, 1).float())
        seen |= obs != down
        mine = game.first.clamp(max=cards - 1)[:, None]
        right = seen & (game.deck == game.deck.gather(1, mine)) & ~game.up[:, :-1]
        right = right.scatter(1, mine, False) & (game.first < cards)[:, None]
        answers.append(right.float())
        counts.append(right.any(1))
        action = torch.multinomial((~game.up[:, :-1]).float(), 1, generator=generator)[:, 0]
        before, previous = obs, F.one_hot(action, cards).float()
        obs = env.step(action)[0].long()        # no episode of a random player ends early
    return Batch(torch.stack(xs, 1), torch.stack(answers, 1), torch.stack(counts, 1))


def shots_loss(logits: Tensor, batch: Batch, rewards: bool) -> tuple[Tensor, Tensor]:
    """The loss, and the share of right cells."""
    return F.binary_cross_entropy_with_logits(logits, batch.right), ((logits > 0) == (batch.right > 0.5)).float().mean()


def pairs_loss(logits: Tensor, batch: Batch, rewards: bool) -> tuple[Tensor, Tensor]:
    """The loss, and the probability of right places. With rewards a place is drawn evenly, and the network learns whether it was right."""
    log_p, right, steps = logits.log_softmax(-1), batch.right, batch.counts
    found = (log_p.exp() * right).sum(-1)[steps].mean()
    if not rewards:
        return -log_p.masked_fill(right == 0, -torch.inf)[steps].logsumexp(-1).mean(), found
    action = torch.randint(right.shape[-1], (*right.shape[:2], 1))
    reward = right.gather(-1, action)[..., 0][steps]
    advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
    return -(advantage * log_p.gather(-1, action)[..., 0][steps]).mean(), found


PLAYERS = {"shots": (play_shots, shots_loss), "pairs": (play_pairs, pairs_loss)}


def learn(task: str, changes: Mapping[str, Any], updates: int, seed: int) -> dict[str, Any]:
    play, loss_of = PLAYERS[task]
    changes = dict(changes)
    options, codes, rewards = changes.pop("options", {}), changes.pop("codes", ""), changes.pop("rewards", False)
    memory, start = changes.pop("memory", "shm"), changes.pop("start", 0.01)
    usual = make_config("popgym-gae", memory=memory)
    options = {**usual.network.memory_options, **options}
    config = make_config("popgym-gae", memory=memory, **changes, memory_options=options).network
    assert isinstance(config, NetworkConfig)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    batch = play(generator, codes)
    trunk = Trunk(batch.x.shape[-1], (), config)
    first, last = nn.Linear(config.layer_size, config.head_size), nn.Linear(config.head_size, batch.right.shape[-1])
    nn.init.orthogonal_(first.weight)                # as PPO's actor begins
    nn.init.normal_(last.weight, 0.0, start)
    parameters = [*trunk.parameters(), *first.parameters(), *last.parameters()]
    rate = usual.algorithm.learning_rate
    adam = torch.optim.Adam(parameters, rate)
    begin, right = time.perf_counter(), []
    for update in range(updates):
        for group in adam.param_groups:
            group["lr"] = rate * (1 - update / updates)
        n, T = batch.x.shape[:2]
        reset = (torch.arange(T) == 0).expand(n, -1)
        y, _ = trunk(batch.x, trunk.initial_state(n), reset, resets_only_at_start=True, starts_fresh=True)
        loss, found = loss_of(last(first(y)), batch, rewards)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        adam.step()
        right.append(float(found.detach()))
        batch = play(generator, codes)
    part = max(1, updates // 10)
    shares = [round(sum(right[i:i + part]) / part, 3) for i in range(0, part * (updates // part), part)]
    above = next((i for i, share in enumerate(right) if share > 0.5), None)
    return {"right": shares, **({"first above 0.5": above} if task == "pairs" else {}), "seconds": round(time.perf_counter() - begin)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=CASES)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="some of them only, by name")
    parser.add_argument("--out", type=Path, help="default: docs/measurements/popgym-supervised-TASK.json")
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_intermixed_args()
    unknown = [name for name in args.cases if name not in CASES[args.task]]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; choose from {', '.join(CASES[args.task])}")
    torch.set_num_threads(args.threads)
    found = {}
    for name in args.cases or CASES[args.task]:
        found[name] = learn(args.task, CASES[args.task][name], args.updates, args.seed)
        print(f"{name:65}", *found[name].values(), flush=True)
    out = args.out or Path(f"docs/measurements/popgym-supervised-{args.task}.json")
    write_json(out, {"about": "benchmarks/supervised.py: by tenths of the updates, how much of the answers is right", "task": args.task,
                     "updates": args.updates, "steps per update": STEPS, "seed": args.seed, "machine": machine(torch.device("cpu")),
                     "cases": found})


if __name__ == "__main__":
    main()
