"""Partially observable tasks, batched in torch: thousands of copies on one device. `hm.envs.make("popgym/AutoencodeEasy", num_envs=64)`."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("gymnasium") is None:
    raise ImportError("hm.envs needs gymnasium: pip install 'hadamem[envs]'", name="gymnasium")

from . import render
from .base import BatchedEnv
from .foreign import AdaptedEnv, EnvError, adapt
from .gymnasium import TaskEnv, TaskVectorEnv
from .registry import gymnasium_id, list_envs, make, register_env
from .wrappers import DiscreteAction, Features, FirstStep, PreviousAction, TimeLimit, Wrapper, wrap

__all__ = ["AdaptedEnv", "BatchedEnv", "DiscreteAction", "EnvError", "Features", "FirstStep", "PreviousAction", "TaskEnv", "TaskVectorEnv",
           "TimeLimit", "Wrapper", "adapt", "gymnasium_id", "list_envs", "make", "register_env", "render", "wrap"]
