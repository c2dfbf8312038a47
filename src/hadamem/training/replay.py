"""Where agents take experience from: the latest rollout (`LatestRollout`), or a buffer of many (`Replay`).

A replay is large and only grows at one end, so checkpoints do not rewrite it: every rollout that was added is a chunk, written once. See
`runs.chunks`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import states
from ..agents import Rollout
from ..envs import trees


class LatestRollout:
    """The rollout that was collected last, and nothing else."""

    def __init__(self, rollout: Rollout):
        self.rollout = rollout

    def __len__(self) -> int:
        return len(self.rollout.reward)

    def choose(self, n: int, generator: torch.Generator) -> Tensor:
        """n different envs of the rollout."""
        return torch.randperm(len(self), generator=generator)[:n]

    def take(self, rows: Tensor) -> Rollout:
        return _walk(self.rollout, lambda name, x: x.index_select(0, rows))


class Replay:
    """The latest rollouts, as many as make up `steps` env steps. A sequence is the T steps of one env in one of them.

    With it goes the network's state before its first step. All memory is allocated here, on the rollout's device; `size_in_bytes` says
    beforehand how much it will be.
    """

    def __init__(self, rollout: Rollout, steps: int):
        n, T = rollout.shape
        if steps < n * T:
            raise ValueError(f"the replay must hold at least one rollout ({n} envs x {T} steps), got a size of {steps} env steps; raise "
                             "replay_size, or lower num_envs or num_steps")
        self.rollout, self.added = rollout, 0
        self.slots = steps // (n * T)                    # rollouts that fit
        self.tensors = {name: torch.zeros(self.slots * n, *x.shape[1:], dtype=x.dtype, device=x.device)
                        for name, x in rollout_tensors(rollout).items()}

    def __len__(self) -> int:
        """Sequences that can be sampled."""
        return min(self.added, self.slots) * len(self.rollout.reward)

    def add(self) -> None:
        """Copy the latest rollout; the oldest one is dropped when the replay is full."""
        self._put(self.added, rollout_tensors(self.rollout))
        self.added += 1

    def choose(self, n: int, generator: torch.Generator) -> Tensor:
        """n sequences, uniformly at random with replacement."""
        return torch.randint(len(self), (n,), generator=generator)

    def take(self, rows: Tensor) -> Rollout:
        return _walk(self.rollout, lambda name, x: self.tensors[name].index_select(0, rows))

    # --- checkpoints: a chunk is one rollout, named by its number ------------------------------------------------------

    def chunk_names(self) -> list[str]:
        """The chunks that make up the replay now, oldest first."""
        return [f"{i:08}" for i in range(max(0, self.added - self.slots), self.added)]

    def read_chunk(self, name: str) -> dict[str, Tensor]:
        rows = self._rows(int(name))
        return {key: x[rows] for key, x in self.tensors.items()}

    def load_chunks(self, chunks: Iterator[tuple[str, Mapping[str, Tensor]]]) -> None:
        """Restore the replay from its chunks, in the order of `chunk_names`."""
        self.added = 0
        for name, tensors in chunks:
            for key, x in self.tensors.items():
                if key not in tensors or tensors[key].shape[1:] != x.shape[1:]:
                    raise ValueError(f"chunk {name} of the replay does not fit: {key} is missing or has another shape; was it made with "
                                     "another env?")
            self._put(int(name), tensors)
            self.added = int(name) + 1

    def _rows(self, number: int) -> slice:
        n = len(self.rollout.reward)
        return slice(number % self.slots * n, (number % self.slots + 1) * n)

    def _put(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        for name, x in self.tensors.items():
            x[self._rows(number)] = tensors[name].to(x.device)


def size_in_bytes(rollout: Rollout, steps: int) -> int:
    """Memory that a replay of `steps` env steps needs."""
    n, T = rollout.shape
    return steps // (n * T) * sum(x.numel() * x.element_size() for x in rollout_tensors(rollout).values())


def rollout_tensors(rollout: Rollout) -> dict[str, Tensor]:
    """Every tensor of a rollout by name."""
    found: dict[str, Tensor] = {}
    _walk(rollout, lambda name, x: found.setdefault(name, x))
    return found


def _walk(rollout: Rollout, fn: Callable[[str, Tensor], Tensor]) -> Rollout:
    """A rollout with fn(name, tensor) in place of every tensor."""
    def tree(name: str, value: Any) -> Any:
        number = iter(range(len(trees.leaves(value))))
        return trees.apply(lambda x: fn(f"{name}.{next(number)}", x), value)

    def state(value: Any) -> Any:
        number = iter(range(len(states.tensors(value))))
        return states.apply(lambda x: fn(f"state.{next(number)}", x), value)

    changes: dict[str, Any] = {}
    for field in dataclasses.fields(rollout):
        name, value = field.name, getattr(rollout, field.name)
        if name in ("obs", "next_obs") and value is not None:
            changes[name] = tree(name, value)
        elif name == "state":
            changes[name] = state(value)
        elif isinstance(value, dict):
            changes[name] = {key: fn(f"{name}.{key}", x) for key, x in value.items()}
        elif isinstance(value, Tensor):
            changes[name] = fn(name, value)
    return dataclasses.replace(rollout, **changes)
