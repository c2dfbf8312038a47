"""What is known of one episode, as plain arrays: what `view/record.py` makes, and what the page is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

EPSILONS = (0.01, 0.05, 0.1, 0.25, 0.5)   # how far from 1 a factor must be for its cell to count as erased or strengthened


@dataclass(frozen=True)
class Curve:
    """Numbers over time."""

    name: str
    values: np.ndarray            # [T]


@dataclass(frozen=True)
class Trace:
    """One tensor of the memory over the episode. Large ones hold some of their cells: `rows` and `columns` say which."""

    name: str
    kind: str                     # scalar, vector, matrix or attention
    role: str                     # as in `memory.inspection`: state, factor, update, read, gate or attention
    help: str
    values: np.ndarray            # [T], [T, columns], [T, rows, columns]; attention: [heads, bins, bins] by step and step seen
    shape: tuple[int, ...]        # of the whole tensor at one step
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    columns: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    shares: np.ndarray | None = None   # of a factor [epsilons, T, 2]: shares of all cells below 1 - epsilon, and above 1 + epsilon

    @property
    def is_reduced(self) -> bool:
        """Whether cells were left out."""
        return self.kind in ("vector", "matrix") and int(np.prod(self.values.shape[1:])) < int(np.prod(self.shape))


@dataclass(frozen=True)
class Triangle:
    """How much earlier steps (columns) matter at later ones (rows)."""

    title: str
    help: str
    targets: np.ndarray           # [K] the later steps
    sources: np.ndarray           # [S] the first earlier step of each column
    values: np.ndarray            # [K, S]; nan where the source is not earlier


@dataclass(frozen=True)
class Recording:
    """One episode."""

    facts: list[tuple[str, str]]         # what the page says at the top: run, env, memory
    title: str
    frames: list[bytes]                  # PNG files that differ
    frame_of_step: np.ndarray            # [T] index into frames
    captions: list[str]                  # [T] action, reward and return so far
    rewards: np.ndarray                  # [T]
    result: str                          # how the episode ended
    curves: list[Curve] = field(default_factory=list)             # value, entropy, continuous actions
    probabilities: np.ndarray | None = None                       # [T, A] of discrete actions
    action_names: list[str] = field(default_factory=list)         # [A]
    taken: np.ndarray | None = None                               # [T, parts] which of the A were taken
    traces: list[Trace] = field(default_factory=list)
    triangles: list[Triangle] = field(default_factory=list)
    has_state: bool = True
    notes: list[str] = field(default_factory=list)                # what was left out or estimated

    @property
    def steps(self) -> int:
        return len(self.rewards)
