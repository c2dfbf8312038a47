"""MineSweeper (POPGym): uncover all cells without mines, seeing only the number at the last cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from torch import Tensor

from ... import random
from ..base import BatchedEnv, assign
from ..checks import positive
from ..render.blocks import BLUE, FAINT, RED, Block, Caption, Grid, Square

LEVELS = {"Easy": dict(size=4, num_mines=2), "Medium": dict(size=6, num_mines=6), "Hard": dict(size=8, num_mines=10)}


class MineSweeper(BatchedEnv):
    """An action (row, column) uncovers a cell; the observation is the number of mines in the 3 x 3 cells around it, itself included.

    With n cells that hold no mine: a new one pays 1 / n, one uncovered before -0.5 / (n - 2), and a mine pays -0.5 - 1 / n and ends the
    episode. Terminates also when all n are uncovered, and is truncated after n steps. The first observation of an episode is always 0.
    """

    layout = ("mines",)

    def __init__(self, num_envs: int = 1, *, size: int = 4, num_mines: int = 2, **options: Any):
        super().__init__(num_envs, **options)
        self.size, self.num_mines = positive("size", size), positive("num_mines", num_mines)
        cells = self.size**2
        self.free = self.episode_steps = cells - self.num_mines
        if self.free < 3:
            raise ValueError(f"num_mines must leave three cells of {cells} free, got num_mines={num_mines}; lower it or raise size")
        self.single_observation_space = Discrete(min(self.num_mines + 1, 10))
        self.single_action_space = MultiDiscrete(np.array([self.size, self.size]))
        row, column = torch.arange(cells) // self.size, torch.arange(cells) % self.size
        near = ((row[:, None] - row).abs() <= 1) & ((column[:, None] - column).abs() <= 1)
        self.near = near.to(self.device)                                    # [cells, cells]: neighbours, the cell itself included
        self.last_picks = torch.arange(cells - self.num_mines, cells, device=self.device)
        self.mines = self.zeros("mines", cells, dtype=torch.bool)
        self.seen = self.zeros("seen", cells, dtype=torch.bool)             # free cells uncovered
        self.hint = self.zeros("hint")

    def start(self, mask: Tensor | None) -> None:
        assign(self.mines, mask, self._lay())
        assign(self.seen, mask, False)
        assign(self.hint, mask, 0)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cell = (action[:, 0] * self.size + action[:, 1])[:, None]
        hit, again = self.mines.gather(1, cell)[:, 0], self.seen.gather(1, cell)[:, 0]
        reward = torch.where(hit, -0.5 - 1 / self.free, torch.where(again, -0.5 / (self.free - 2), 1 / self.free))
        self.seen.scatter_(1, cell, ~hit[:, None])
        self.hint.copy_((self.near[cell[:, 0]] & self.mines).sum(1))
        terminated = hit | (self.seen.sum(1) == self.free)
        return reward, terminated, (self.elapsed >= self.free) & ~terminated

    def observe(self) -> Tensor:
        return self.hint.clone()

    def inject(self, layout: dict[str, Any]) -> None:
        """`mines` [N, size, size] or [N, size * size]: true where there is a mine."""
        mines = torch.as_tensor(layout["mines"], device=self.device).reshape(self.num_envs, -1).bool()
        if mines.shape != self.mines.shape or bool((mines.sum(1) != self.num_mines).any()):
            size = f"{self.size} x {self.size}"
            raise ValueError(f"layout['mines'] must have {self.num_mines} mines on each of {self.num_envs} boards of {size}")
        self.mines.copy_(mines)

    def scene(self, i: int, hidden: bool) -> list[Block]:
        size, steps = self.size, int(self.elapsed[i])
        word = "nothing uncovered" if steps == 0 else f"mines around: {int(self.hint[i])}"
        blocks: list[Block] = [Caption(f"step {steps} of {self.episode_steps}"), Caption(word, strong=True)]
        if hidden:
            mines, seen = self.mines[i], self.seen[i].tolist()
            hints = (self.near & mines).sum(1).tolist()
            covered, mine = Square("·", (200, 200, 196), FAINT), Square("*", (200, 200, 196), RED)
            cells = [Square(str(hint), (250, 250, 246), BLUE) if seen[c] else mine if mines[c] else covered for c, hint in enumerate(hints)]
            blocks.append(Grid([cells[r * size:(r + 1) * size] for r in range(size)], labels=True))
        return blocks

    def _lay(self) -> Tensor:
        """Mines for all envs [N, cells]: a uniform choice by Floyd's method, with one draw per mine and no retries."""
        draws = random.integers(random.spread(self.counter(), self.num_mines), self.last_picks + 1)     # [N, mines]
        mines = torch.zeros_like(self.mines)
        for draw, last in zip(draws.unbind(1), self.last_picks.unbind(), strict=True):
            taken = mines.gather(1, draw[:, None])
            mines.scatter_(1, torch.where(taken, last, draw[:, None]), True)
        return mines
