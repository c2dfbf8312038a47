"""No memory: the control that every memory must beat on a task that needs one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .base import Memory, check_size


class NoState(NamedTuple):
    empty: Tensor   # [B, 0]: nothing is carried, but a batch size is


class NoMemory(Memory):
    """A network of one hidden layer (`memory_size` wide) on the present step alone."""

    state_type = NoState

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 128):
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.memory_size = check_size("memory_size", memory_size)
        self.output_size = self.memory_size if output_size is None else check_size("output_size", output_size)
        self.net = nn.Sequential(nn.Linear(input_size, memory_size), nn.ReLU(), nn.Linear(memory_size, self.output_size))

    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        check_size("batch_size", batch_size)
        device, dtype = self.state_options(device, dtype)
        return NoState(torch.empty(batch_size, 0, device=device, dtype=dtype))

    def forward(self, x, state=None, reset=None):
        self.check_inputs(x, state, reset)
        return self.net(x), self.initial_state(x.shape[0], device=x.device) if state is None else self.widen(state)
