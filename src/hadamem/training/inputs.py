"""What the network sees of an env: the wrapped env, and where images lie in its features."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from ..agents.network import Image
from ..envs import wrap
from ..envs.features import leaves


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
            found.append(Image(offset, tuple(int(n) for n in shape), channels_first=shape[0] < shape[2]))
        offset += size
    return tuple(found)
