"""What `AdaptedEnv` steps: the interface of a backend, and envs in this process."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from .group import Group, create
from .spaces import check_spaces


class Backend(ABC):
    """N envs of one kind. `reset` and `step` write their results to attributes: numpy arrays [N, ...] or trees of them.

    obs: the current observations. final: the last observation of each episode that ended in this step (same-step mode only).
    started [N] bool: obs is the first of its episode. action_mask [N, A] bool: valid where has_mask [N].
    """

    num_envs: int
    mode: AutoresetMode
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    episode_steps: int | None = None
    render_mode: str | None = None
    closed = False
    name = ""
    restarted = 0                          # workers that were started again, in all
    notify: Callable[[str], None]          # called with messages for the user

    obs: Any
    final: Any
    reward: Any
    terminated: Any
    truncated: Any
    started: Any
    has_mask: Any
    action_mask: Any

    def __init__(self) -> None:
        self.notify = _warn

    @abstractmethod
    def reset(self, seed: int | list[int] | None, options: dict[str, Any] | None, mask: np.ndarray | None) -> None:
        """Start new episodes, only in the envs of mask [N] if given. seed: env i gets seed + i, or one seed for each env."""

    @abstractmethod
    def step(self, action: np.ndarray) -> dict[int, dict[str, Any]]:
        """Step all envs. Returns the last info of each episode that ended: {index of env: info}."""

    @abstractmethod
    def limit(self, steps: int | None) -> None:
        """Truncate episodes after this many steps; None: no limit."""

    @abstractmethod
    def render(self, i: int) -> Any:
        """What env i renders."""

    @abstractmethod
    def close(self) -> None:
        """Close all envs."""

    def waiting_for(self) -> str:
        """The envs that the current call waits for."""
        return self.name

    def __repr__(self) -> str:
        return f"{self.name} x {self.num_envs}"


class GroupBackend(Backend):
    """Envs in groups (see `group.Group`), which write to arrays made by `group.create`."""

    def configure(self, described: dict[str, Any]) -> None:
        """Take over what `Group.describe` returned."""
        for name, value in described.items():
            setattr(self, name, value)
        check_spaces(self.observation_space, self.action_space)

    def attach(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays
        for name, value in arrays.items():
            if name not in ("action", "limit"):
                setattr(self, name, value)

    def limit(self, steps: int | None) -> None:
        self.arrays["limit"][0] = steps or 0


class InProcess(GroupBackend):
    """Envs in this process, one after the other."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], num_envs: int, mode: AutoresetMode):
        super().__init__()
        self.num_envs, self.mode = num_envs, mode
        self.group = Group([make] * num_envs, 0, mode.name.lower())
        try:
            self.configure(self.group.describe())
            self.attach(create(self.observation_space, self.action_space, num_envs)[0])
            self.group.attach(self.arrays)
        except BaseException:
            self.group.close()
            raise

    def reset(self, seed: int | list[int] | None, options: dict[str, Any] | None, mask: np.ndarray | None) -> None:
        self.group.reset(seeds_of(seed, self.num_envs), options, None if mask is None else mask.tolist())

    def step(self, action: np.ndarray) -> dict[int, dict[str, Any]]:
        self.arrays["action"][:] = action
        return self.group.step()

    def render(self, i: int) -> Any:
        return self.group.render(i)

    def waiting_for(self) -> str:
        return f"env {self.group.current}"

    def close(self) -> None:
        self.closed = True
        self.group.close()


def seeds_of(seed: int | list[int] | None, num_envs: int) -> list[int | None]:
    """One seed for each env. An int gives seed, seed + 1, ... as in Gymnasium."""
    if seed is None or isinstance(seed, int):
        return [None if seed is None else seed + i for i in range(num_envs)]
    return list(seed)


def _warn(text: str) -> None:
    warnings.warn(f"hadamem: {text}", RuntimeWarning, stacklevel=5)
