"""What the network sees of an env: the wrapped env, and where images lie in its features."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from ..agents.network import Image
from ..envs import wrap


def agent_env(env: Any, previous_action: bool, first_step: bool) -> tuple[Any, tuple[Image, ...]]:
    """The env with float features [N, F] for an agent, and the images among them."""
    shaped = wrap(env, previous_action=previous_action, first_step=first_step, features=False)
    return wrap(shaped, previous_action=False, first_step=False, scale_images=True), find_images(shaped)


def find_images(env: Any) -> tuple[Image, ...]:
    """Boxes of bytes with three axes, or the flat observation of an env that says what its `image_shape` is."""
    found: list[Image] = []
    flat = getattr(env.unwrapped, "image_shape", None)
    offset = 0
    for space in _leaves(env.single_observation_space):
        size = spaces.utils.flatdim(space)
        shape: tuple[int, ...] | None = None
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            if len(space.shape) == 3:
                shape = space.shape
            elif flat is not None and size == int(np.prod(flat)):
                shape = tuple(flat)
        if shape is not None:
            found.append(Image(offset, tuple(int(n) for n in shape), channels_first=shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4)))
        offset += size
    return tuple(found)


def _leaves(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    if isinstance(space, spaces.Tuple):
        return [leaf for inner in space.spaces for leaf in _leaves(inner)]
    if isinstance(space, spaces.Dict):
        return [leaf for inner in space.spaces.values() for leaf in _leaves(inner)]
    return [space]
