"""Helpers on Gymnasium spaces: their leaves, one more entry, actions as tensors, images, and a short description."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces

CHANNELS = (1, 3, 4)      # numbers of channels: grey, RGB, RGBA or four grey frames


class Image(NamedTuple):
    """An image among flat features: features[offset:offset + prod(shape)] are its pixels."""

    offset: int
    shape: tuple[int, ...]
    channels_first: bool


def leaves(space: Space[Any], path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Space[Any]]]:
    """(path, space) of each leaf, in the order of `gymnasium.spaces.utils.flatten`."""
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [leaf for name, inner in entries for leaf in leaves(inner, (*path, name))]
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"cannot make features of {space}; use Box, Discrete, MultiDiscrete, MultiBinary, and tuples and dicts of them")
    return [(path, space)]


def appended_space(space: Space[Any], extra: Space[Any], name: str) -> Space[Any]:
    """The space with one more entry. Tuples and dicts get another entry, anything else becomes a pair."""
    if isinstance(space, spaces.Dict):
        if name in space.spaces:
            raise ValueError(f"observations have an entry {name!r} already")
        return spaces.Dict({**space.spaces, name: extra})
    return spaces.Tuple((*space.spaces, extra) if isinstance(space, spaces.Tuple) else (space, extra))



def null_action(space: Space[Any]) -> np.ndarray:
    """Zero if the space allows it, else its lowest action."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(0 if space.contains(0) else int(space.start))
    if not isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"there is no null action for {space}; pass null_action")
    zero = np.zeros(space.shape, space.dtype)
    if space.contains(zero):
        return zero
    return np.asarray(space.low if isinstance(space, spaces.Box) else space.start)  # type: ignore[union-attr]


def action_dtype(space: Space[Any]) -> torch.dtype:
    """The dtype of actions as tensors: that of the space for boxes, else int64."""
    return torch.as_tensor(np.zeros((), space.dtype)).dtype if isinstance(space, spaces.Box) else torch.int64


def find_images(observation_space: Space[Any], image_shape: tuple[int, ...] | None = None) -> tuple[Image, ...]:
    """Where images are among the features that `FeatureMap` makes of a space: uint8 boxes with three axes.

    image_shape: the shape of images that the space holds as flat uint8 boxes (an env's `image_shape`).
    """
    found: list[Image] = []
    offset = 0
    for _, space in leaves(observation_space):
        size = spaces.utils.flatdim(space)
        shape: tuple[int, ...] | None = None
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            if len(space.shape) == 3:
                shape = space.shape
            elif image_shape is not None and size == int(np.prod(image_shape)):
                shape = tuple(image_shape)
        if shape is not None:
            found.append(Image(offset, tuple(int(n) for n in shape), channels_first(shape)))
        offset += size
    return tuple(found)


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the channels of an image are its first axis rather than its last.

    They are the axis next to two equal ones, else the one with 1, 3 or 4 entries, else the shorter one. If that leaves both possible, they
    are last, as usual in Gymnasium.
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return middle == last
    if (first in CHANNELS) != (last in CHANNELS):
        return first in CHANNELS
    return first < last and last not in CHANNELS


def describe(space: Space[Any]) -> str:
    """A space as a short text: "Discrete 4", "MultiDiscrete 52 of 3", "Box 2", "Box 3 x 5 x 5 uint8"."""
    if isinstance(space, spaces.Tuple):
        return ", ".join(describe(inner) for inner in space.spaces)
    if isinstance(space, spaces.Dict):
        return ", ".join(f"{name}: {describe(inner)}" for name, inner in space.spaces.items())
    if isinstance(space, spaces.Discrete):
        return f"Discrete {space.n}"
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1).tolist()
        same = len(set(sizes)) == 1 and len(sizes) > 3
        return f"MultiDiscrete {len(sizes)} of {sizes[0]}" if same else f"MultiDiscrete {', '.join(map(str, sizes))}"
    shape = " x ".join(map(str, space.shape or ()))
    kind = "" if str(space.dtype) in ("float32", "int8") else f" {space.dtype}"
    return f"{type(space).__name__} {shape}{kind}"
