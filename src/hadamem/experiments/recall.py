"""Supervised recall: can a memory learn to hold symbols over a gap of noise? From short sequences to long ones.

    from hadamem.experiments.recall import Learner, Recall, curriculum
    learner = Learner(hm.make_memory("gru", Recall().input_size, 32, memory_size=32), Recall())
    for outcome in curriculum(learner): print(outcome)

A sequence shows `items` symbols at its first steps, then noise, and asks for them one by one at its last steps. Each
item and each question carries a flag with its position. Without memory, an answer is right once in `symbols` times.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory import Memory

LENGTHS = (8, 16, 32, 64, 128, 256, 512)      # each length starts from the weights of the one before
STOPPING = 1                                  # seed of the sequences that decide when training stops
SHORT, SURE = 32, 0.99                        # a higher goal up to this length: errors learned there remain at longer ones


@dataclass(frozen=True)
class Recall:
    """The task. The length of sequences is an argument of `draw`."""

    symbols: int = 8
    items: int = 2             # symbols to hold at the same time
    noise: float = 0.1         # standard deviation of every feature in the gap
    blank: bool = True         # a feature that is 1 in the gap; without it, an input norm scales the noise up to the symbols' size

    @property
    def input_size(self) -> int:
        return self.symbols + 2 * self.items + int(self.blank)

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    def draw(self, size: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw x [size, steps, input_size] and the symbols [size, items] that its last steps ask for."""
        S, K = self.symbols, self.items
        if steps < 2 * K:
            raise ValueError(f"steps must be at least {2 * K} to show {K} symbols and ask for them, got {steps}")
        symbol = torch.randint(S, (size, K), generator=generator)
        x = self.noise * torch.randn(size, steps, self.input_size, generator=generator)
        if self.blank:
            x[:, :, -1] += 1.0
            x[:, :K, -1] = x[:, -K:, -1] = 0.0
        x[:, :K, :S] = F.one_hot(symbol, S).float()
        x[:, :K, S:S + K] = torch.eye(K)
        x[:, -K:, S + K:S + 2 * K] = torch.eye(K)
        return x, symbol


@dataclass(frozen=True)
class Overwrite(Recall):
    """`items` keys, each shown with a symbol and then, in random order, with others: the last steps ask for the latest one of each."""

    blank: bool = False        # there is no gap

    def draw(self, size: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        S, K = self.symbols, self.items
        if steps < 2 * K:
            raise ValueError(f"steps must be at least {2 * K} to show {K} keys and ask for them, got {steps}")
        writes = steps - K
        key = torch.randint(K, (size, writes), generator=generator)
        key[:, :K] = torch.arange(K)
        symbol = torch.randint(S, (size, writes), generator=generator)
        x = torch.zeros(size, steps, self.input_size)
        x[:, :writes, :S] = F.one_hot(symbol, S).float()
        x[:, :writes, S:S + K] = F.one_hot(key, K).float()
        x[:, -K:, S + K:S + 2 * K] = torch.eye(K)
        last = torch.stack([(torch.arange(1, writes + 1) * (key == k)).argmax(1) for k in range(K)], 1)      # [size, K]
        return x, symbol.gather(1, last)


@dataclass(frozen=True)
class Outcome:
    """The result of training at one length."""

    steps: int
    solved: bool               # whether the goal was reached, on the sequences used for stopping
    accuracy: float            # after training, on sequences used neither for training nor for stopping
    before: float              # on the same sequences before training at this length
    updates: int
    skipped: int               # updates without a step because a gradient was inf or nan
    seconds: float


class Learner:
    """A memory with a linear head, trained on the task with Adam."""

    def __init__(self, memory: Memory, task: Recall, *, batch: int = 32, learning_rate: float = 3e-3, clip: float = 1.0, seed: int = 0):
        """clip: limit of the gradient norm. seed: of the training sequences."""
        self.memory, self.task, self.batch, self.clip = memory, task, batch, clip
        self.head = nn.Linear(memory.output_size, task.symbols)
        self.parameters = [*memory.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=learning_rate)
        self.generator = torch.Generator().manual_seed(seed)
        self.skipped = 0

    def answer(self, x: Tensor) -> Tensor:
        """Logits [B, items, symbols] for the questions of x."""
        return self.head(self.memory(x)[0][:, -self.task.items:])

    def update(self, steps: int) -> float:
        """Train on a new batch; returns the share of right answers on it."""
        x, symbol = self.task.draw(self.batch, steps, self.generator)
        logits = self.answer(x)
        loss = F.cross_entropy(logits.flatten(0, 1), symbol.flatten())
        self.optimiser.zero_grad()
        loss.backward()
        if bool(torch.isfinite(nn.utils.clip_grad_norm_(self.parameters, self.clip))):
            self.optimiser.step()
        else:
            self.skipped += 1
        return _share(logits, symbol)

    @torch.no_grad()
    def accuracy(self, steps: int, size: int = 512, seed: int = 0) -> float:
        """Share of right answers on sequences that are not trained on; equal seeds give equal sequences."""
        generator = torch.Generator().manual_seed((1 << 32) + (seed << 16) + steps)
        shares = []
        for _ in range(0, size, 64):
            x, symbol = self.task.draw(64, steps, generator)
            shares.append(_share(self.answer(x), symbol))
        return statistics.fmean(shares)

    def solve(self, steps: int, *, goal: float = 0.95, updates: int = 1000, seconds: float = float("inf"), window: int = 10,
              report: Callable[[int, float], None] | None = None) -> Outcome:
        """Train until a share `goal` of the answers is right, or updates or seconds run out.

        Batches have random lengths from half of `steps` to `steps`, so that counting steps does not help. Training stops
        when the last `window` batches and 512 separate sequences reach `goal`. The reported accuracy is on yet other
        sequences, since those used for stopping would flatter it.
        report: called with the number of updates and the share of right answers.
        """
        start, skipped = time.perf_counter(), self.skipped
        before, solved = self.accuracy(steps), self.accuracy(steps, seed=STOPPING) >= goal
        recent, count, checked = deque[float](maxlen=window), 0, 0
        shortest = max(2 * self.task.items, steps // 2)
        while not solved and count < updates and time.perf_counter() - start < seconds:
            recent.append(self.update(int(torch.randint(shortest, steps + 1, (), generator=self.generator))))
            count += 1
            if report is not None:
                report(count, recent[-1])
            if count - checked >= window and statistics.fmean(recent) >= goal:
                solved, checked = self.accuracy(steps, seed=STOPPING) >= goal, count
        return Outcome(steps, solved, self.accuracy(steps), before, count, self.skipped - skipped, time.perf_counter() - start)


def curriculum(learner: Learner, lengths: tuple[int, ...] = LENGTHS, goal: float = 0.95, **options: Any) -> Iterator[Outcome]:
    """Train at one length after the other with the same learner. options: keywords of `Learner.solve`."""
    for steps in lengths:
        yield learner.solve(steps, goal=max(goal, SURE) if steps <= SHORT else goal, **options)


def _share(logits: Tensor, symbol: Tensor) -> float:
    return float((logits.detach().argmax(-1) == symbol).float().mean())
