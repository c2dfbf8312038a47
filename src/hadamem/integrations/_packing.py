"""States as vectors [B, state_width + 1], for frameworks that carry tensors and know no fresh state other than zeros.

The first number is a mark: 0 where there is no state yet (a row of zeros), 1 for a fresh state, 2 for one that has seen steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import states
from ..memory import Memory


def packed_width(memory: Memory) -> int:
    """Numbers per row of a packed state."""
    return memory.state_width + 1


def pack(state: states.State, fresh: bool = False) -> Tensor:
    """The state and its mark, [B, state_width + 1]. Gradients flow through it."""
    vector = states.to_vector(state)
    return torch.cat([vector.new_full((vector.shape[0], 1), 1 if fresh else 2), vector], dim=1)


def unpack(memory: Memory, vector: Tensor, start: Tensor | None = None) -> states.State:
    """The state that `pack` wrote; a fresh one where there is none, and where start [B] is set but the state has seen steps."""
    state = states.from_vector(memory, vector[:, 1:])
    mark = vector[:, 0]
    fresh = mark == 0 if start is None else (mark == 0) | (start & (mark == 2))
    if fresh.any():
        state = states.where(fresh, memory.initial_state(fresh.shape[0], device=fresh.device), state)
    return state
