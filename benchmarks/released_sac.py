"""Time one gradient update of recurrent SAC as the SHM paper's released meta-RL code does it, written plainly in PyTorch.

    PYTHONPATH=src python benchmarks/released_sac.py [--cases wind ...] [--device cuda] [--seconds 5] [--out FILE] [--quick]

A yardstick for this library's SAC, with random data: it times, it does not learn a task. The update is that of the release (recurrent SAC
of pomdp-baselines) and, for the credit tasks, of its discrete variant, for which the release has no settings: those are pomdp-baselines'.

- Actor and critic are separate, each with its own embeddings. The actor's memory is a GRU, the critic's is SHM; the target is a copy.
- SHM is a Python loop over time with C, U and M [B, H, H] formed at each step, and M clamped to +-100.
- One update: actor and target forward for the targets, critic forward and backward, actor and critic forward again and backward, a soft
  update of each parameter, and the temperature (continuous actions only). Adam has PyTorch's defaults. No CUDA graphs, no compilation.
- Whole trajectories are drawn in numpy from a buffer in main memory and copied to the device for every update.

Where the release may do more, this does less: projections of SHM are made for all steps at once, an image is encoded once per pass, and
images are copied as uint8.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hadamem.bench.timing import machine, write_json

H, L = 24, 128               # side of SHM's memory, rows of theta
HIDDEN = 128                 # width of the two hidden layers of each head
TRAJECTORIES = 200           # in the buffer; more would only fill memory
LEARNING_RATE, TAU, ALPHA = 3e-4, 0.005, 0.1      # ALPHA: the fixed temperature of discrete actions


@dataclass(frozen=True)
class Case:
    batch: int                              # trajectories per update
    steps: int                              # of a trajectory
    obs_shape: tuple[int, ...]              # three numbers: an image
    num_actions: int                        # discrete: number of actions, else their size
    output: int                             # of the memories
    gamma: float
    discrete: bool = False
    action_embedding: int = 0               # sizes; 0: not an input
    reward_embedding: int = 0
    obs_embedding: int = 0                  # of vectors; images have an encoder


CASES = {
    "wind": Case(64, 100, (2,), 2, 64, 0.9, action_embedding=8, obs_embedding=32),
    "point-robot": Case(32, 200, (3,), 2, 128, 0.9, obs_embedding=32, reward_embedding=8),
    "visual-match-250": Case(32, 275, (3, 5, 5), 4, 128, 0.99, discrete=True),
    "visual-match-500": Case(32, 525, (3, 5, 5), 4, 128, 0.99, discrete=True),
}


class SHM(nn.Module):
    """Stable Hadamard Memory, one step after the other. x [T, B, D] -> [T, B, output]."""

    def __init__(self, input_size: int, output: int):
        super().__init__()
        self.norm = nn.LayerNorm(input_size)
        self.key, self.query, self.value, self.v_c = (nn.Linear(input_size, H, bias=False) for _ in range(4))
        self.eta = nn.Linear(input_size, 1, bias=False)
        self.shortcut, self.out = nn.Linear(input_size, H), nn.Linear(H, output)
        self.theta = nn.Parameter(nn.init.xavier_uniform_(torch.empty(L, H)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(x)
        k, q = torch.relu(self.key(x)), torch.relu(self.query(x))
        k, q = k / (1e-5 + k.sum(-1, keepdim=True)), q / (1e-5 + q.sum(-1, keepdim=True))
        v, v_c, eta = self.value(x), self.v_c(x), torch.sigmoid(self.eta(x))
        B = x.shape[1]
        M = torch.zeros(B, H, H, device=x.device)
        read = []
        for t in range(x.shape[0]):
            theta_t = self.theta[torch.randint(L, (B,), device=x.device)]           # [B, H]
            C = 1 + torch.tanh(theta_t[:, :, None] * v_c[t][:, None, :])            # [B, H, H]
            U = eta[t][:, :, None] * v[t][:, :, None] * k[t][:, None, :]            # [B, H, H]
            M = torch.clamp(M * C + U, -100, 100)
            read.append(torch.matmul(M, q[t][:, :, None])[:, :, 0])
        return self.out(torch.stack(read) + self.shortcut(x)), M


class Inputs(nn.Module):
    """Embed previous action, previous reward and observation for a memory, and the observation again for the heads."""

    def __init__(self, case: Case, shown: int = 0):
        """shown: size of the embedding for the heads; 0: none."""
        super().__init__()
        self.image = self.shown = None
        if len(case.obs_shape) == 3:
            self.image = nn.Sequential(nn.Conv2d(3, 8, 2), nn.ReLU(), nn.Conv2d(8, 16, 2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 100))
            self.size = self.shown_size = 100
            return
        self.action = embedding(case.num_actions, case.action_embedding)
        self.reward = embedding(1, case.reward_embedding)
        self.obs = embedding(case.obs_shape[0], case.obs_embedding)
        self.shown = embedding(case.obs_shape[0], shown)
        self.size, self.shown_size = case.action_embedding + case.reward_embedding + case.obs_embedding, shown

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """[T + 1, B, size] for the memory, [T + 1, B, shown_size] for the heads."""
        if self.image is not None:
            x = self.image(batch.obs.flatten(0, 1).float() / 255).unflatten(0, batch.obs.shape[:2])
            return x, x
        parts = [(self.action, batch.previous_action), (self.reward, batch.previous_reward), (self.obs, batch.obs)]
        x = torch.cat([layer(value) for layer, value in parts if layer is not None], dim=-1)
        return x, None if self.shown is None else self.shown(batch.obs)


class Actor(nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.inputs = Inputs(case, shown=32)
        self.memory = nn.GRU(self.inputs.size, case.output)
        self.body = hidden(case.output + self.inputs.shown_size)
        self.last = last(case.num_actions, 1e-3)                        # logits, or means
        self.log_std = None if case.discrete else last(case.num_actions, 1e-3)
        begin_memory(self.memory)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Continuous: actions and their log-probabilities [T + 1, B, 1]. Discrete: probabilities and their logarithms [T + 1, B, A]."""
        x, shown = self.inputs(batch)
        x = self.body(torch.cat([self.memory(x)[0], shown], dim=-1))
        if self.log_std is None:
            probs = F.softmax(self.last(x), dim=-1)
            return probs, torch.log(probs.clamp(min=1e-8))
        mean, std = self.last(x), self.log_std(x).clamp(-20, 2).exp()
        normal = torch.distributions.Normal(mean, std)
        before = normal.rsample()
        action = torch.tanh(before)
        log_prob = normal.log_prob(before) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(-1, keepdim=True)


class Critic(nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.inputs = Inputs(case)
        self.memory = SHM(self.inputs.size, case.output)
        self.pair = None if case.discrete else embedding(case.obs_shape[0] + case.num_actions, 40)
        width = case.output + (100 if case.discrete else 40)
        outputs = case.num_actions if case.discrete else 1
        self.heads = nn.ModuleList(nn.Sequential(hidden(width), last(outputs, 3e-3)) for _ in range(2))
        begin_memory(self.memory)

    def forward(self, batch: Batch, action: Tensor | None = None) -> list[Tensor]:
        """Both heads: Q of `action` [T + 1 or T, B, 1], or of every discrete action [T + 1, B, A]."""
        x, shown = self.inputs(batch)
        h = self.memory(x)[0]
        if self.pair is not None:
            steps = action.shape[0]
            h, shown = h[:steps], self.pair(torch.cat([batch.obs[:steps], action], dim=-1))
        x = torch.cat([h, shown], dim=-1)
        return [head(x) for head in self.heads]


def embedding(inputs: int, outputs: int) -> nn.Module | None:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU()) if outputs else None


def hidden(inputs: int) -> nn.Module:
    layers = [nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    for layer in layers[::2]:
        nn.init.uniform_(layer.weight, -HIDDEN**-0.5, HIDDEN**-0.5)
        nn.init.constant_(layer.bias, 0.1)
    return nn.Sequential(*layers)


def last(outputs: int, bound: float) -> nn.Linear:
    layer = nn.Linear(HIDDEN, outputs)
    nn.init.uniform_(layer.weight, -bound, bound)
    nn.init.uniform_(layer.bias, -bound, bound)
    return layer


def begin_memory(memory: nn.Module) -> None:
    """Orthogonal weights and zero biases, except in the norm and theta."""
    for name, parameter in memory.named_parameters():
        if "norm" in name or name == "theta":
            continue
        if "weight" in name:
            nn.init.orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)


@dataclass
class Batch:
    """Trajectories on the device, time first. Steps 0 .. T of obs and of what came before them, 0 .. T - 1 of the rest."""

    obs: Tensor                  # [T + 1, B, ...]
    previous_action: Tensor      # [T + 1, B, A], zero at step 0; unused if discrete
    previous_reward: Tensor      # [T + 1, B, 1], zero at step 0
    action: Tensor               # [T, B, A], or [T, B, 1] int64
    reward: Tensor               # [T, B, 1]
    terminal: Tensor             # [T, B, 1]
    mask: Tensor                 # [T, B, 1], 1 at real steps


class Buffer:
    """Trajectories in main memory, flat, as a replay of single steps has them. Filled with random ones."""

    def __init__(self, case: Case, rng: np.random.Generator):
        self.case, self.rng = case, rng
        size = TRAJECTORIES * case.steps
        if len(case.obs_shape) == 3:
            self.obs, self.next_obs = (rng.integers(0, 256, (size, *case.obs_shape), dtype=np.uint8) for _ in range(2))
        else:
            self.obs, self.next_obs = (rng.normal(size=(size, *case.obs_shape)).astype(np.float32) for _ in range(2))
        if case.discrete:
            self.action = rng.integers(0, case.num_actions, (size, 1))
        else:
            self.action = rng.uniform(-1, 1, (size, case.num_actions)).astype(np.float32)
        self.reward = (rng.random((size, 1)) < 0.1).astype(np.float32)
        ends = np.arange(size) % case.steps == case.steps - 1
        self.terminal = ends[:, None].astype(np.float32) if case.discrete else self.reward.copy()
        self.starts = np.arange(TRAJECTORIES) * case.steps

    def sample(self, device: torch.device) -> Batch:
        starts = self.rng.choice(self.starts, self.case.batch)
        index = starts[None, :] + np.arange(self.case.steps)[:, None]                   # [T, B]

        def take(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[index]).to(device)

        obs = torch.cat([torch.from_numpy(self.obs[starts]).to(device)[None], take(self.next_obs)])
        action, reward, terminal = take(self.action), take(self.reward), take(self.terminal)
        mask = torch.from_numpy(np.ones((*index.shape, 1), np.float32)).to(device)
        previous = [torch.cat([torch.zeros_like(value[:1]), value]) for value in (action, reward)]
        return Batch(obs, *previous, action, reward, terminal, mask)


def make(case: Case, device: torch.device, seed: int = 0) -> Callable[[], dict[str, float]]:
    """Build networks, optimizers and buffer; each call of the result is one update and returns its losses."""
    torch.manual_seed(seed)
    actor, critic = Actor(case).to(device), Critic(case).to(device)
    target = copy.deepcopy(critic)
    log_alpha = torch.zeros(1, device=device, requires_grad=True)
    actor_optimizer, critic_optimizer = (torch.optim.Adam(net.parameters(), lr=LEARNING_RATE) for net in (actor, critic))
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=LEARNING_RATE)
    buffer = Buffer(case, np.random.default_rng(seed))
    alpha = ALPHA if case.discrete else 1.0

    def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def value(net: Critic, batch: Batch) -> tuple[Tensor, Tensor]:
        """The soft value at each step of the actor's actions, and their log-probability."""
        choice, log_prob = actor(batch)
        if not case.discrete:
            return torch.minimum(*net(batch, choice)) - alpha * log_prob, log_prob
        return (choice * (torch.minimum(*net(batch)) - alpha * log_prob)).sum(-1, keepdim=True), log_prob

    def update() -> dict[str, float]:
        nonlocal alpha
        batch = buffer.sample(device)
        valid = batch.mask.sum().clamp(min=1)

        with torch.no_grad():
            y = batch.reward + case.gamma * (1 - batch.terminal) * value(target, batch)[0][1:]
        if case.discrete:
            found = [q[:-1].gather(-1, batch.action) for q in critic(batch)]
        else:
            found = critic(batch, batch.action)
        critic_loss = sum((batch.mask * (q - y).pow(2)).sum() / valid for q in found)
        step(critic_optimizer, critic_loss)

        soft, log_prob = value(critic, batch)
        actor_loss = -(batch.mask * soft[:-1]).sum() / valid
        step(actor_optimizer, actor_loss)

        with torch.no_grad():
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.copy_((1 - TAU) * old + TAU * new)

        if not case.discrete:
            mean = ((batch.mask * log_prob[:-1]).sum() / valid).item()
            step(alpha_optimizer, -(log_alpha.exp() * (mean - case.num_actions)).sum())
            alpha = log_alpha.exp().item()
        return {"critic loss": critic_loss.item(), "actor loss": actor_loss.item(), "alpha": alpha}

    return update


def measure(case: Case, device: torch.device, seconds: float, warm_up: int, least: int) -> list[float]:
    """Milliseconds of single updates, for about `seconds` and at least `least` of them."""
    update = make(case, device)
    sync = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for _ in range(warm_up):
        update()
    times: list[float] = []
    while len(times) < least or sum(times) < 1000 * seconds:
        sync()
        begin = time.perf_counter()
        losses = update()
        sync()
        times.append(1000 * (time.perf_counter() - begin))
    if not all(np.isfinite(list(losses.values()))):
        raise RuntimeError(f"the losses are not finite after {len(times)} updates: {losses}; the timing is worthless")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=5, help="per case")
    parser.add_argument("--quick", action="store_true", help="two updates per case, for a CPU")
    parser.add_argument("--out", type=Path, help="write the numbers and the machine to this JSON file")
    args = parser.parse_args()
    device = torch.device(args.device)
    limits = (0.0, 1, 2) if args.quick else (args.seconds, 3, 10)
    head = ["case", "B", "T", "ms per update, median", "mean", "updates/s", "updates timed"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    rows = []
    for name in args.cases:
        case = CASES[name]
        times = measure(case, device, *limits)
        mean = statistics.fmean(times)
        rows.append([name, case.batch, case.steps, round(statistics.median(times), 2), round(mean, 2), round(1000 / mean, 2), len(times)])
        print("| " + " | ".join(map(str, rows[-1])) + " |", flush=True)
    if args.out:
        about = machine(device)
        facts = {"what": "one gradient update of recurrent SAC as released, critic memory SHM, actor memory GRU", "machine": about,
                 "date": about["date"][:10], "commit": about["commit"], "command": "python benchmarks/released_sac.py"}
        write_json(args.out, {**facts, "columns": head, "rows": rows})


if __name__ == "__main__":
    main()
