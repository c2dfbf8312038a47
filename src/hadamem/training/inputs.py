"""From observations to the network's inputs, in acting and in learning alike: `make_inputs` and `sequence_features`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..agents import Actions, Image
from ..envs.features import AgentInputs


def make_inputs(env: Any, previous_action: bool, first_step: bool) -> tuple[AgentInputs, tuple[Image, ...]]:
    """How observations of a batched env become feature vectors, and where images lie in these."""
    inputs = AgentInputs(env.single_observation_space, env.single_action_space, previous_action=previous_action, first_step=first_step,
                         scale_images=True, device=env.device)
    return inputs, tuple(Image(*image) for image in inputs.images(getattr(env.unwrapped, "image_shape", None)))


def sequence_features(inputs: AgentInputs, actions: Actions, dtype: torch.dtype, obs: Any, previous_action: Tensor, action: Tensor,
                      first: Tensor) -> Tensor:
    """Features [N, T, F] of a sequence: what acting computed one step at a time.

    obs: tree of [N, T, ...]; previous_action [N, ...]: before step 0, as the env took it; action [N, T, K]; first [N, T].
    """
    taken = actions.to_env(action[:, :-1]).to(previous_action.dtype)
    return inputs(obs, torch.cat([previous_action[:, None], taken], 1), first).to(dtype)
