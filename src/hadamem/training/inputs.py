"""What the network sees of an env: the wrapped env, and where images lie in its features."""

from __future__ import annotations

from typing import Any

from ..agents.network import Image
from ..envs import spaces, wrap


def agent_env(env: Any, previous_action: bool, first_step: bool) -> tuple[Any, tuple[Image, ...]]:
    """The env with float features [N, F] for an agent, and the images among them."""
    shaped = wrap(env, previous_action=previous_action, first_step=first_step, features=False)
    return wrap(shaped, previous_action=False, first_step=False, scale_images=True), find_images(shaped)


def find_images(env: Any) -> tuple[Image, ...]:
    """Boxes of bytes with three axes, or the flat observation of an env that says what its `image_shape` is."""
    return tuple(Image(*image) for image in spaces.find_images(env.single_observation_space, getattr(env.unwrapped, "image_shape", None)))


channels_first = spaces.channels_first
