"""What the adapter needs to know about spaces: storage types, allowed integers, sizes of action masks.

Worker processes load this file without the rest of hadamem: it imports numpy and Gymnasium only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

# torch has no full support for unsigned integers above 8 bits, and no floats above 64 bits
STORED = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "float128": "float64", "longdouble": "float64"}
FLAT = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Leaf(NamedTuple):
    """One array of a tree of observations."""

    path: tuple[Any, ...]           # keys from the root
    name: str                       # in error messages
    array: Any
    integers: Integers | None       # the values it may hold; None: floats, which are not checked


def leaves(space: Space[Any], tree: Any, path: tuple[Any, ...] = ()) -> list[Leaf]:
    """The leaves of `tree`, which has the structure of `space`."""
    if isinstance(space, spaces.Dict):
        return [leaf for name, inner in space.spaces.items() for leaf in leaves(inner, tree[name], (*path, name))]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, inner in enumerate(space.spaces) for leaf in leaves(inner, tree[i], (*path, i))]
    return [Leaf(path, "observation" + "".join(f"[{key!r}]" for key in path), tree, Integers.of(space))]


class Integers:
    """The integers that a leaf of observations may hold: those of its space, or for a Box those of its dtype.

    Without this check, other values would silently change when they are stored. Floats may leave the bounds of their Box, as many envs
    do that: `of` returns None for them.
    """

    def __init__(self, space: Space[Any], low: Any, high: Any):
        self.space, self.low, self.high = space, low, high
        self.dtype = np.dtype(space.dtype) if isinstance(space, spaces.Box) else None      # every value of this dtype is allowed
        self.shape = space.shape or ()
        self.few: list[list[int]] | None = None
        if self.dtype is None and np.prod(self.shape) <= 64:      # low and high as lists: for few entries 10 times as fast as numpy
            self.few = [np.broadcast_to(limit, self.shape).ravel().tolist() for limit in (low, high)]

    @classmethod
    def of(cls, space: Space[Any]) -> Integers | None:
        if isinstance(space, spaces.Discrete):
            return cls(space, int(space.start), int(space.start + space.n) - 1)
        if isinstance(space, spaces.MultiDiscrete):
            return cls(space, space.start, space.start + space.nvec - 1)
        dtype = np.dtype(space.dtype)
        if isinstance(space, spaces.MultiBinary) or dtype.kind == "b":
            return cls(space, 0, 1)
        return cls(space, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) if dtype.kind in "iu" else None

    def check(self, value: np.ndarray, name: str) -> None:
        """Raise ValueError unless all values are allowed. value: of one env, or of a batch [N, ...]."""
        dtype = value.dtype
        if self.dtype is not None and (dtype == self.dtype or np.can_cast(dtype, self.dtype)):
            return
        if dtype.kind not in "biuf":
            raise ValueError(f"{name} must be of {self}, got {str(value)[:40]!r} of type {dtype}")
        if not self._all_fit(value):
            at = tuple(np.argwhere(~self._fit(value))[0])
            low, high = (np.broadcast_to(limit, value.shape)[at] for limit in (self.low, self.high))
            raise ValueError(f"{name} must be of {self}, here a whole number from {low} to {high}, got {value[at]} ({dtype}); "
                             f"{self._fix(value)}")

    def _all_fit(self, value: np.ndarray) -> bool:
        if self.few is None or value.shape != self.shape or value.dtype.kind == "f":
            return bool(self._fit(value).all())
        if not self.shape:
            return bool(self.low <= value.item() <= self.high)
        for x, low, high in zip(value.ravel().tolist(), *self.few, strict=True):  # noqa: SIM110  # `all` is half as fast
            if not low <= x <= high:
                return False
        return True

    def _fit(self, value: np.ndarray) -> np.ndarray:
        fits = (value >= self.low) & (value <= self.high)      # false for nan
        return np.asarray(fits & (value == np.floor(value)) if value.dtype.kind == "f" else fits)

    def _fix(self, value: np.ndarray) -> str:
        if self.dtype == np.uint8 and value.dtype.kind == "f" and bool(((value >= 0) & (value <= 1)).all()):
            return "for an image from 0 to 1 return (255 * x).astype(np.uint8), or use a float32 observation_space"
        return "correct the observation, or the observation_space"

    def __str__(self) -> str:
        if isinstance(self.space, spaces.MultiDiscrete):      # its str would list every size
            return f"a MultiDiscrete of shape {list(self.shape)}"
        return str(self.space) if self.dtype is None else f"a Box of {self.dtype}"


def choices(space: Space[Any]) -> list[int]:
    """Sizes of the parts of an action mask: [n] for Discrete, nvec for MultiDiscrete, [] for actions that cannot be masked."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return [int(n) for n in space.nvec.flat] if isinstance(space, spaces.MultiDiscrete) else []


def flat_mask(mask: Any, sizes: list[int], over: bool = False) -> np.ndarray:
    """One env's action mask as [sum(sizes)] bool. mask: an array, or a tuple or list with one array for each part of the action.

    Each part must allow an action, except after the end of an episode (`over`), where everything is allowed instead.
    """
    flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, (tuple, list)) else np.ravel(mask)
    if len(flat) != sum(sizes):
        raise ValueError(f"action_mask must have {sum(sizes)} entries, got {len(flat)}")
    flat = flat != 0
    if not (flat.any() if len(sizes) == 1 else np.logical_or.reduceat(flat, np.cumsum([0, *sizes[:-1]])).all()):
        if not over:
            raise ValueError(f"action_mask must allow an action{' in each part' if len(sizes) > 1 else ''}, got {flat.astype(int)}; "
                             "allow one that does nothing, or end the episode")
        flat = np.ones_like(flat)
    return flat


def env_action(space: Space[Any], action: np.ndarray) -> Any:
    """Convert an action that counts from 0 to one of `space`: add its start, or clip to its Box."""
    if isinstance(space, spaces.Discrete):
        return np.int64(action + space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return (action + space.start).astype(space.dtype)
    if isinstance(space, spaces.Box):
        return np.clip(action, space.low, space.high).astype(space.dtype, copy=False)
    return action.astype(space.dtype)


def check_spaces(observations: Space[Any], actions: Space[Any]) -> None:
    """Raise TypeError for spaces whose values cannot be tensors."""
    def check(space: Space[Any]) -> None:
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            for inner in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
                check(inner)
        elif not isinstance(space, FLAT):
            raise TypeError(f"observations of {space} cannot be tensors; wrap the env so that it has Box, Discrete, MultiDiscrete or "
                            "MultiBinary observations, or tuples and dicts of them")

    check(observations)
    if not isinstance(actions, FLAT):
        raise TypeError(f"actions of {actions} cannot be tensors; wrap the env so that it takes Box, Discrete or MultiDiscrete "
                        "actions")


def check_same_spaces(i: int, obs: Space[Any], act: Space[Any], j: int, other_obs: Space[Any], other_act: Space[Any]) -> None:
    """Raise ValueError unless envs i and j have the same spaces."""
    for what, a, b in (("observation", obs, other_obs), ("action", act, other_act)):
        if a != b:
            raise ValueError(f"all envs must have the same {what} space, but env {i} has {a} and env {j} has {b}")


def read_reward(value: Any) -> float:
    """The reward of a step: a number, or an array or tensor of one. numpy would read None as nan, and text as the number in it."""
    found = _single(value)
    if type(found) not in (float, int, bool):
        raise TypeError(f"reward must be a number, got {value!r}")
    return float(found)


def read_flag(value: Any, name: str) -> bool:
    """`terminated` or `truncated` of a step: a boolean, or an array or tensor of one."""
    found = _single(value)
    if type(found) is not bool:
        raise TypeError(f"{name} must be True or False, got {value!r}; wrap it in bool()")
    return found


def _single(value: Any) -> Any:
    """The Python value of an array or tensor with one entry, on any device; others as they are."""
    if type(value) in (float, bool, int) or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except (TypeError, ValueError, RuntimeError):      # several entries
        return value
