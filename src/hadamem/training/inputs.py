"""From observations to the network's inputs, in acting and in learning alike: `make_inputs` and `sequence_features`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..agents import Actions, Image
from ..envs import trees
from ..envs.features import AgentInputs

CHANNELS = (1, 3, 4)      # grey, colour, and with opacity or four frames


def make_inputs(env: Any, previous_action: bool, first_step: bool) -> tuple[AgentInputs, tuple[Image, ...]]:
    """How observations of a batched env become feature vectors, and where images lie in these."""
    inputs = AgentInputs(env.single_observation_space, env.single_action_space, previous_action=previous_action, first_step=first_step,
                         scale_images=True, device=env.device)
    return inputs, find_images(inputs, getattr(env.unwrapped, "image_shape", None))


def sequence_features(inputs: AgentInputs, actions: Actions, dtype: torch.dtype, obs: Any, previous_action: Tensor, action: Tensor,
                      first: Tensor) -> Tensor:
    """Features [N, T, F] of a sequence: what acting computed one step at a time.

    obs: tree of [N, T, ...]; previous_action [N, ...]: before step 0, as the env took it; action [N, T, K]; first [N, T].
    """
    N, T = first.shape
    taken = actions.to_env(action[:, :-1]).to(previous_action.dtype)
    before = torch.cat([previous_action[:, None], taken], 1)
    features = inputs(trees.apply(lambda x: x.flatten(0, 1), obs), before.flatten(0, 1), first.flatten())
    return features.view(N, T, -1).to(dtype)


def find_images(inputs: AgentInputs, image_shape: tuple[int, ...] | None = None) -> tuple[Image, ...]:
    """Boxes of bytes with three axes. image_shape: of flat observations that are images all the same."""
    found: list[Image] = []
    offset = 0
    for _, space in inputs.features.leaves:
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
    """Whether the channels of an image are its first axis: the one beside two equal axes, else one of size 1, 3 or 4, else the shorter.

    If in doubt they are last, as is usual in Gymnasium.
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return middle == last
    if (first in CHANNELS) != (last in CHANNELS):
        return first in CHANNELS
    return first < last and last not in CHANNELS
