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


def unpack(memory: Memory, vector: Tensor, start: Tensor | None = None, seeds: Tensor | None = None) -> states.State:
    """The state that `pack` wrote; a fresh one where there is none, and where start [B] is set but the state has seen steps.

    seeds [B]: row i gets the fresh state of seed seeds[i], so that acting and learning agree where fresh states are random.
    """
    state = states.from_vector(memory, vector[:, 1:])
    fresh = _needs_fresh(vector, start)
    if fresh.any():
        new = memory.initial_state(fresh.shape[0], device=fresh.device) if seeds is None else _seeded(memory, fresh, seeds)
        state = states.where(fresh, new, state)
    return state


def renew(memory: Memory, vector: Tensor, start: Tensor) -> Tensor:
    """`vector`, with a packed fresh state where `unpack` would make one."""
    fresh = _needs_fresh(vector, start)
    if not fresh.any():
        return vector
    return torch.where(fresh[:, None], pack(memory.initial_state(fresh.shape[0], device=fresh.device), fresh=True), vector)


def _needs_fresh(vector: Tensor, start: Tensor | None) -> Tensor:
    mark = vector[:, 0]
    return mark == 0 if start is None else (mark == 0) | (start & (mark == 2))


def _seeded(memory: Memory, fresh: Tensor, seeds: Tensor) -> states.State:
    """Fresh states in the rows of `fresh` [B], each drawn with its seed; other rows hold any fresh state."""
    source = torch.Generator()
    any_other = memory.initial_state(1, device=fresh.device)
    rows = [memory.initial_state(1, device=fresh.device, generator=source.manual_seed(seed)) if wanted else any_other
            for wanted, seed in zip(fresh.tolist(), seeds.tolist(), strict=True)]
    return type(any_other)(*(torch.cat(parts) for parts in zip(*rows, strict=True)))


def starts_at_random(memory: Memory) -> bool:
    """Whether fresh states differ, as those of memories that draw random rows do."""
    one, other = (memory.initial_state(1, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    return not torch.equal(states.to_vector(one), states.to_vector(other))
