"""What the network sees of an env: the wrapped env, and where images lie in its features."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from ..agents.network import Image
from ..envs import wrap
from ..envs.features import leaves

CHANNELS = (1, 3, 4)      # grey, colour, and with opacity or four frames


def agent_env(env: Any, previous_action: bool, first_step: bool) -> tuple[Any, tuple[Image, ...]]:
    """The env with float features [N, F] for an agent, and the images among them."""
    shaped = wrap(env, previous_action=previous_action, first_step=first_step, features=False)
    return wrap(shaped, previous_action=False, first_step=False, scale_images=True), find_images(shaped)


def find_images(env: Any) -> tuple[Image, ...]:
    """Boxes of bytes with three axes, or the flat observation of an env that says what its `image_shape` is."""
    found: list[Image] = []
    flat = getattr(env.unwrapped, "image_shape", None)
    offset = 0
    for _, space in leaves(env.single_observation_space):
        size = spaces.utils.flatdim(space)
        shape: tuple[int, ...] | None = None
        if isinstance(space, spaces.Box) and space.dtype == np.uint8:
            if len(space.shape) == 3:
                shape = space.shape
            elif flat is not None and size == int(np.prod(flat)):
                shape = tuple(flat)
        if shape is not None:
            found.append(Image(offset, tuple(int(n) for n in shape), channels_first(shape)))
        offset += size
    return tuple(found)


def channels_first(shape: tuple[int, ...]) -> bool:
    """Which axis of a picture holds its channels: the one beside two that are equal, else one of 1, 3 or 4, else the shorter one.

    Where both would do, they are last, as Gymnasium has it.
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return middle == last
    if (first in CHANNELS) != (last in CHANNELS):
        return first in CHANNELS
    return first < last and last not in CHANNELS
