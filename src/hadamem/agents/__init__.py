"""Agents with memory: networks, action distributions, and the algorithms that train them."""

from __future__ import annotations

from .actions import Actions, make_actions
from .network import ActorCritic, Image, NetworkConfig, NetworkState
from .ppo import PPO, Batch, PPOConfig, Rollout

__all__ = ["PPO", "Actions", "ActorCritic", "Batch", "Image", "NetworkConfig", "NetworkState", "PPOConfig", "Rollout", "make_actions"]
