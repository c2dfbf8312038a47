"""Where agents take experience from: the latest rollout (`LatestRollout`), or many earlier ones (`Replay`).

A replay keeps the latest steps of every env in the order in which they happened: tensors [N, C, ...] with C steps of N envs, written as a
ring, one rollout at a time. A sequence is any run of L steps of an env. Episodes may end inside it: nothing is padded.

A replay is large and only grows at one end, so checkpoints do not rewrite it: it is saved in chunks of rollouts. See `runs.chunks`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import states
from ..agents import ReplaySpec, Rollout, Sequences
from ..devices import free_memory, size_text
from ..envs import trees

WINDOW = 64              # steps of a sequence where rollouts are not whole episodes
CHUNK = 1 << 15          # most env steps in a chunk of a checkpoint
CHUNK_BYTES = 1 << 26    # and its largest size, about


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
    """The latest `spec.size` env steps. `nbytes` says beforehand how much memory that is; `allocate` takes all of it.

    Sequences start where rollouts started, since the network's state is kept for these steps alone; or anywhere, if it has no state or
    `spec.stored_state` is off. Their row numbers are env * C + step. Steps with a number that is not finite are kept as zeros and are not
    learned from (`valid` is false); `bad` counts them.
    """

    def __init__(self, rollout: Rollout, spec: ReplaySpec, make_features: Callable[..., Tensor], to_env: Callable[[Tensor], Tensor]):
        """make_features(obs, previous_action, first, previous_reward), to_env: of the run, see `Sequences`. Allocates nothing yet."""
        n, T = rollout.shape
        self.rollout, self.make_features, self.to_env, self.added = rollout, make_features, to_env, 0
        self.whole = rollout.whole and spec.length is None
        # Every end of an episode inside a sequence adds an entry, for the final observation: 2 T entries always hold T steps.
        self.length = T if self.whole else max(WINDOW, 2 * T) if spec.length is None else spec.length
        if spec.burn_in >= self.length:
            raise ValueError(f"burn_in must be less than the {self.length} steps of a sequence, got {spec.burn_in}; lower it, or set "
                             "sequence_length to more")
        size = sum(x[0].numel() for x in states.tensors(rollout.state))
        self.keeps_state = bool(size) and (self.whole or spec.stored_state)
        self.stride = T if self.whole or self.keeps_state else 1           # between possible starts
        if self.length < self.stride:
            raise ValueError(f"sequence_length must be at least the {T} steps of a rollout, or the rest of it is never learned from, got "
                             f"{self.length}; lower num_steps, or set stored_state to False, so that sequences start anywhere")
        self.slots = spec.size // (n * T)                                  # rollouts that fit
        needed = -(-self.length // T) + (not self.whole)
        if self.slots < needed:
            raise ValueError(f"replay_size must be at least {needed * n * T} env steps to hold sequences of {self.length} steps ({n} envs, "
                             f"rollouts of {T}), got {spec.size}; raise replay_size, or lower num_envs, num_steps or sequence_length")
        self.tensors: dict[str, Tensor] = {}
        self.begins_inside = False           # its first rollout began in the middle of episodes, after a resume without the replay

    @property
    def nbytes(self) -> int:
        """Memory that the replay needs."""
        return sum(x[:, 0].numel() * x.element_size() * self._places(name) for name, x in self._records().items())

    def allocate(self) -> Replay:
        """Take the memory, or say that there is not enough."""
        free = free_memory(self.rollout.reward.device)
        if free is not None and self.nbytes > free:
            steps = self.rollout.reward.numel() * self.slots
            raise ValueError(f"a replay of {steps:,} steps needs {size_text(self.nbytes)}, but only {size_text(free)} are free on "
                             f"{self.rollout.reward.device}; lower replay_size to {steps * free // self.nbytes // 2:,} or less")
        for name, x in self._records().items():
            self.tensors[name] = torch.zeros(len(x), self._places(name), *x.shape[2:], dtype=x.dtype, device=x.device)
        device = self.rollout.reward.device
        self.bad = torch.zeros((), dtype=torch.int64, device=device)       # steps that were not finite, in all
        self.offsets = torch.arange(self.length, device=device)
        self.template = states.apply(lambda x: x[:1].clone(), self.rollout.state)      # nothing was collected yet: a fresh state
        return self

    @property
    def capacity(self) -> int:
        """C, the steps of an env that fit."""
        return self.slots * self.rollout.shape[1]

    @property
    def steps(self) -> int:
        """Env steps that it holds."""
        return min(self.added, self.slots) * self.rollout.reward.numel()

    @property
    def full(self) -> bool:
        """Whether new steps replace the oldest."""
        return self.added >= self.slots

    @property
    def starts(self) -> int:
        """Steps of an env that a sequence may start with."""
        T = self.rollout.shape[1]
        filled = min(self.added, self.slots) * T - (T if self.stride > 1 else 1) * self._skipped()
        return max(0, (filled - self.length) // self.stride + 1)

    def __len__(self) -> int:
        """Sequences that can be sampled."""
        return self.starts * len(self.rollout.reward)

    def choose(self, n: int, generator: torch.Generator) -> Tensor:
        """n sequences, uniformly at random with replacement. (Another way of sampling, such as by priority, is another `choose`.)"""
        T, starts = self.rollout.shape[1], self.starts
        drawn = torch.randint(len(self), (n,), generator=generator)
        oldest = max(0, self.added - self.slots) * T + self.stride * self._skipped()
        return drawn // starts * self.capacity + (oldest + drawn % starts * self.stride) % self.capacity

    def add(self) -> None:
        """Copy the latest rollout; the oldest one is dropped when the replay is full."""
        records = self._records()
        good = records["valid"].logical_and_(_all_finite(self.rollout))
        self.bad += good.numel() - good.sum()
        self._put(self.added, {name: _cleaned(x, math.inf if name.startswith("state") else 0.0) for name, x in records.items()})
        self._note_start(self.added)
        self.added += 1

    def take(self, rows: Tensor) -> Sequences:
        start, env = rows % self.capacity, rows // self.capacity
        step = (start[:, None] + self.offsets) % self.capacity + (env * self.capacity)[:, None]      # [B, L], into [N * C]
        slot = env * self.slots + start // self.rollout.shape[1]                                     # [B], into [N * slots]
        entry, later = (step, None) if self.whole else self._entries(step)                           # [B, L + 1]; whole: without the last
        obs = trees.apply(lambda name: self._observations(name, entry, later, slot), self._obs_names())
        before = entry - 1 + self.capacity * (entry % self.capacity == 0)
        action, reward = self._at("action", entry), self._at("reward", entry)
        if self.whole:                       # entry t + 1 follows entry t; what was before the first does not matter
            previous = torch.cat([torch.zeros_like(action[:, :1]), action], 1)
            paid = torch.cat([torch.zeros_like(reward[:, :1]), reward], 1)
            first = _extend(self._at("first", entry), False)
            valid = self._at("valid", entry)
        else:
            assert later is not None
            previous = trees.where(later, action, self._at("action", before))
            paid = torch.where(later, reward, self._at("reward", before))
            first = self._at("first", entry) & ~later
            valid = (self._at("valid", entry) & ~later)[:, :-1]
        L = self.length
        mask = None
        if "mask" in self.tensors:
            mask = self._at("mask", entry)
            if later is None:
                mask = _extend(mask, True)               # nothing is known of a final observation
            else:
                after = self._at("next_mask", entry) | self._at("done", entry)[..., None]
                mask = trees.where(later, after, mask)
        taken = self.to_env(previous).to(self.rollout.previous_action.dtype)
        return Sequences(
            obs=obs, first=first, previous_action=taken, previous_reward=paid, action=action[:, :L], reward=reward[:, :L],
            terminal=self._at("terminal", entry)[:, :L], valid=valid, state=self._states(slot), make_features=self.make_features, mask=mask,
            extras={name: self._at(f"extras.{name}", entry)[:, :L] for name in self.rollout.extras}, whole=self.whole,
        )

    # --- checkpoints: a chunk is some rollouts in a row, named by their numbers -----------------------------------------

    def chunk_names(self) -> list[str]:
        """The chunks that make up the replay now, oldest first. The last one may be short, and has another name when it has grown.

        Of the oldest one a part may be overwritten; that does no harm, since newer chunks are loaded after it.
        """
        size = self._chunk_size()
        first = max(0, self.added - self.slots) // size * size
        return [f"{i:08}-{min(i + size, self.added):08}" for i in range(first, self.added, size)]

    def read_chunk(self, name: str) -> dict[str, Tensor]:
        """Rollouts [n, N, T, ...] of a chunk."""
        first, end = map(int, name.split("-"))
        rows = torch.arange(first, end) % self.slots
        return {key: self._by_slot(key).index_select(1, rows.to(x.device)).transpose(0, 1) for key, x in self.tensors.items()}

    def load_chunks(self, chunks: Iterator[tuple[str, Mapping[str, Tensor]]]) -> None:
        """Restore the replay from its chunks, in the order of `chunk_names`."""
        self.added = 0
        for name, tensors in chunks:
            first, end = map(int, name.split("-"))
            for key in self.tensors:
                if key not in tensors or tensors[key].shape[1:] != self._by_slot(key)[:, 0].shape:
                    raise ValueError(f"chunk {name} of the replay does not fit: {key} is missing or has another shape; was it made with "
                                     "another env?")
            for i in range(first, end):
                for key, x in self.tensors.items():
                    self._by_slot(key)[:, i % self.slots] = tensors[key][i - first].to(x.device)
                self._note_start(i)
            self.added = end

    # --- internals -------------------------------------------------------------------------------------------------

    def _records(self) -> dict[str, Tensor]:
        """What is kept of a rollout, by name: tensors [N, T, ...], or [N, 1, ...] for what it has once."""
        r = self.rollout
        assert r.terminal is not None
        found = {"first": r.first, "action": r.action, "reward": r.reward, "terminal": r.terminal, "valid": torch.ones_like(r.first)}
        if not self.whole:
            found["done"] = r.done
        if r.mask is not None:
            found["mask"] = r.mask
            if not self.whole:
                assert r.next_mask is not None
                found["next_mask"] = torch.cat([r.mask[:, 1:], r.next_mask[:, None]], 1)
        found |= {f"extras.{name}": x for name, x in r.extras.items()}
        found |= {f"obs.{i}": x for i, x in enumerate(trees.leaves(r.obs))}
        found |= {f"next_obs.{i}": x for i, x in enumerate(trees.leaves(r.next_obs))}
        if self.keeps_state:                 # of whole episodes only counters are needed: the first step replaces the rest
            found |= {f"state.{i}": x[:, None] for i, x in enumerate(states.tensors(r.state))
                      if x.numel() and not (self.whole and (x.is_floating_point() or x.is_complex()))}
        return found

    def _places(self, name: str) -> int:
        """Entries per env of a tensor: one for every step, or one for every rollout."""
        once = name.startswith("state") or (self.whole and name.startswith("next_obs"))
        return self.slots if once else self.capacity

    def _by_slot(self, name: str) -> Tensor:
        """A tensor as [N, slots, T or 1, ...]."""
        x = self.tensors[name]
        return x.view(len(x), self.slots, -1, *x.shape[2:])

    def _put(self, number: int, records: Mapping[str, Tensor]) -> None:
        for name in self.tensors:
            self._by_slot(name)[:, number % self.slots] = records[name]

    def _chunk_size(self) -> int:
        """Rollouts in a chunk."""
        return max(1, min(CHUNK // self.rollout.reward.numel(), CHUNK_BYTES * self.slots // self.nbytes))

    def _skipped(self) -> bool:
        """Whether the oldest start is left out, because the action before it was overwritten or never known."""
        return not self.whole and (self.added > self.slots or self.begins_inside)

    def _note_start(self, number: int) -> None:
        """Called when a rollout was put in."""
        if number == 0:
            self.begins_inside = not bool(self._by_slot("first")[:, 0, 0].all())

    def _at(self, name: str, entry: Tensor) -> Tensor:
        """Steps of a tensor [N, C, ...], by flat index."""
        return self.tensors[name].flatten(0, 1)[entry]

    def _obs_names(self) -> Any:
        number = iter(range(len(trees.leaves(self.rollout.obs))))
        return trees.apply(lambda _: str(next(number)), self.rollout.obs)

    def _observations(self, leaf: str, entry: Tensor, later: Tensor | None, slot: Tensor) -> Tensor:
        obs = self._at(f"obs.{leaf}", entry)
        if later is None:
            return torch.cat([obs, self._at(f"next_obs.{leaf}", slot)[:, None]], 1)
        return trees.where(later, self._at(f"next_obs.{leaf}", entry), obs)

    def _states(self, slot: Tensor) -> Any:
        """The network's states at the start of sequences."""
        number = iter(range(len(states.tensors(self.template))))

        def state(x: Tensor) -> Tensor:
            name = f"state.{next(number)}"
            return self._at(name, slot) if name in self.tensors else x.expand(len(slot), *x.shape[1:])

        return states.apply(state, self.template)

    def _entries(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """Steps [B, L] with the observations after the ends of episodes put in: the step [B, L + 1] that each entry belongs to, and
        whether it is the observation after that step. Entries beyond L + 1 are left out.
        """
        B, L = step.shape
        done = self._at("done", step)
        done[:, :-1] |= self._at("first", step[:, 1:])                               # a foreign env that a resume started anew
        place = self.offsets + done.cumsum(1) - done.long()                          # of step t: one later for each end before it
        room = step.new_zeros(B, 2 * L + 1)
        entry = room.scatter(1, place + 1, step).scatter(1, place, step)             # the next step overwrites, if there was no end
        later = room.bool().scatter(1, place + 1, True).scatter(1, place, False)
        return entry[:, :L + 1], later[:, :L + 1]


def make_replay(rollout: Rollout, spec: ReplaySpec, inputs: Any, to_env: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Replay:
    """A replay for rollouts like this one. inputs: the run's `AgentInputs`. Raises a ValueError if it does not fit into memory."""
    return Replay(rollout, spec, functools.partial(_features, inputs, dtype), to_env).allocate()


def _features(inputs: Any, dtype: torch.dtype, obs: Any, previous_action: Tensor, first: Tensor, previous_reward: Tensor) -> Tensor:
    return inputs(obs, previous_action, first, previous_reward).to(dtype)


def rollout_tensors(rollout: Rollout) -> dict[str, Tensor]:
    """Every tensor of a rollout by name."""
    found: dict[str, Tensor] = {}
    _walk(rollout, lambda name, x: found.setdefault(name, x))
    return found


def _extend(x: Tensor, value: bool) -> Tensor:
    """Flags [B, L, ...] with one more entry."""
    return torch.cat([x, torch.full_like(x[:, :1], value)], 1)


def _cleaned(x: Tensor, infinity: float) -> Tensor:
    """Zeros for nan, and ±infinity for what is infinite: in a state that may mean something."""
    return torch.nan_to_num(x, 0.0, infinity, -infinity) if x.is_floating_point() or x.is_complex() else x


def _all_finite(rollout: Rollout) -> Tensor:
    """[N, T] bool: observation, action, reward and next observation are finite."""
    def finite(tree: Any) -> Tensor:
        flags = [torch.isfinite(x).reshape(*x.shape[:2], -1).all(-1) for x in trees.leaves(tree) if x.is_floating_point()]
        return torch.stack(flags).all(0) if flags else torch.ones_like(rollout.first)

    obs, after = finite(rollout.obs), finite(rollout.next_obs)
    if after.shape != obs.shape:             # only the final observation of each rollout was recorded
        after = torch.cat([obs[:, 1:], after], 1)
    return obs & after & finite((rollout.action, rollout.reward))


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
