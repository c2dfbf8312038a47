"""Checks of what callers pass to an env. Errors name the argument, what came, and what is possible."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor


def positive(name: str, value: Any) -> int:
    """Check that `value` is a whole number >= 1, and return it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed must be a whole number, got {type(seed).__name__}")
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed must be in 0 .. 2**63 - 1, got {seed}")
    return int(seed)


def checked_mode(mode: str | AutoresetMode) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    known = {m.name.lower(): m for m in AutoresetMode}
    key = str(mode).lower().replace("-", "_")
    key = {"nextstep": "next_step", "samestep": "same_step"}.get(key, key)
    if key not in known:
        raise ValueError(f"unknown autoreset_mode {mode!r}; choose from {', '.join(known)}")
    return known[key]


def checked_action(action: Any, space: gymnasium.Space[Any], num_envs: int, device: torch.device, validate: bool) -> Tensor:
    """The actions of all envs as a tensor on their device. validate: also check the range of each, which waits for a GPU."""
    if not isinstance(action, Tensor):
        action = torch.as_tensor(np.asarray(action))
    action = action.detach()             # the state must not hold an autograd graph
    shape = (num_envs, *(space.shape or ()))
    if action.shape != shape:
        raise ValueError(f"action must have shape {list(shape)}, got {list(action.shape)}")
    whole = not isinstance(space, gymnasium.spaces.Box)
    if whole and (action.is_floating_point() or action.dtype == torch.bool):
        raise TypeError(f"action must hold whole numbers for {space}, got {action.dtype}")
    action = action.to(device, torch.int64 if whole else None)      # gather and scatter need int64
    if validate:
        _check_range(action, space)
    return action


def _check_range(action: Tensor, space: gymnasium.Space[Any]) -> None:
    if isinstance(space, gymnasium.spaces.Box):
        bad = ~torch.isfinite(action)
    else:
        sizes = space.nvec if isinstance(space, gymnasium.spaces.MultiDiscrete) else getattr(space, "n", 2)
        n = torch.as_tensor(2 if isinstance(space, gymnasium.spaces.MultiBinary) else sizes, device=action.device)
        low = torch.as_tensor(getattr(space, "start", 0), device=action.device)
        bad = (action < low) | (action >= low + n)
    if bool(bad.any()):
        where = int(bad.reshape(len(action), -1).any(1).nonzero()[0])
        raise ValueError(f"action of env {where} is {action[where].tolist()}, outside {space}")
