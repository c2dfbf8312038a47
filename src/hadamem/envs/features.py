"""From observations to the vectors that a network sees, given spaces alone: shared by the wrappers of envs and by trained policies."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from . import trees

PREVIOUS_ACTION = "prev_action"    # names in dict observations, those of POPGym
FIRST_STEP = "is_t0"


class FeatureMap:
    """Observations of a space -> one float32 vector [N, F], in the order and with the values of `gymnasium.spaces.utils.flatten`.

    Discrete and MultiDiscrete entries are one-hot, boxes and bits are their numbers. scale_images: divide uint8 boxes by 255.
    `space` is that of the vectors.
    """

    def __init__(self, space: gymnasium.Space[Any], scale_images: bool = False, device: torch.device | str = "cpu"):
        self.leaves = leaves(space)
        codes: list[np.ndarray] = []                      # of every whole number: the feature that stands for its 0, and its own features
        low, high = [], []
        self.size, self.device = 0, torch.device(device)
        self.plan: list[tuple[int, int, float] | None] = []       # of each leaf that is no code: its features, and their scale
        for _, leaf in self.leaves:
            size = spaces.utils.flatdim(leaf)
            scale = 1 / 255 if scale_images and leaf.dtype == np.uint8 and isinstance(leaf, spaces.Box) else 1.0
            if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
                sizes = np.reshape(leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec, -1).astype(np.int64)
                first = self.size + np.cumsum(sizes) - sizes
                codes.append(np.stack([first - np.reshape(leaf.start, -1), first, first + sizes - 1]))
                self.plan.append(None)
            else:
                self.plan.append((self.size, self.size + size, scale))
            flat = spaces.utils.flatten_space(leaf)
            assert isinstance(flat, spaces.Box)
            with np.errstate(over="ignore"):
                low.append(flat.low.astype(np.float32) * np.float32(scale))
                high.append(flat.high.astype(np.float32) * np.float32(scale))
            self.size += size
        self.codes = torch.as_tensor(np.concatenate(codes, 1), device=self.device).unbind() if codes else None      # 3 times [K]
        self.space = spaces.Box(np.concatenate(low), np.concatenate(high), dtype=np.float32)

    def __call__(self, obs: Any) -> Tensor:
        out: Tensor | None = None
        numbers = []
        for (path, _), plan in zip(self.leaves, self.plan, strict=True):
            leaf = obs
            for key in path:
                leaf = leaf[key]
            if out is None:
                out = torch.zeros(leaf.shape[0], self.size, device=self.device)
            leaf = leaf.reshape(leaf.shape[0], -1)
            if plan is None:
                numbers.append(leaf if leaf.dtype == torch.int64 else leaf.long())
            else:
                start, stop, scale = plan
                out[:, start:stop] = leaf if scale == 1.0 else leaf * scale
        assert out is not None
        if self.codes is not None:
            ones = numbers[0] if len(numbers) == 1 else torch.cat(numbers, 1)      # [N, K]
            zero, low, high = self.codes
            ones = (ones + zero).clamp_(low, high)                                 # whatever an env shows, no index goes astray
            out.scatter_(1, ones, 1.0)
        return out


class AgentInputs:
    """What `wrap(env)` makes of observations, without an env: the last action and the first-step flag are given by the caller.

    The very steps of the wrappers `PreviousAction`, `FirstStep` and `Features`, in their order; nothing is kept between calls.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], *, previous_action: bool = True,
                 first_step: bool = True, scale_images: bool = False, device: torch.device | str = "cpu"):
        self.observation_space, self.action_space = observation_space, action_space
        self.previous_action, self.first_step, self.scale_images = previous_action, first_step, scale_images
        self.action_dtype = action_dtype(action_space)
        space = observation_space
        if previous_action:
            self.null = torch.as_tensor(null_action(action_space), dtype=self.action_dtype, device=device)
            space = appended_space(space, action_space, PREVIOUS_ACTION)
        if first_step:
            space = appended_space(space, spaces.Discrete(2), FIRST_STEP)
        self.features = FeatureMap(space, scale_images, device)

    @property
    def size(self) -> int:
        return self.features.size

    @property
    def device(self) -> torch.device:
        return self.features.device

    def to(self, device: torch.device | str) -> AgentInputs:
        """The same on another device."""
        return AgentInputs(self.observation_space, self.action_space, previous_action=self.previous_action, first_step=self.first_step,
                           scale_images=self.scale_images, device=device)

    def __call__(self, obs: Any, action: Tensor, first: Tensor) -> Tensor:
        """Observations [N, ...], the actions that led to them, and where they open an episode [N] bool -> [N, F]."""
        if self.previous_action:
            obs = appended(obs, trees.where(first, self.null.expand_as(action), action.to(self.action_dtype)), PREVIOUS_ACTION)
        if self.first_step:
            obs = appended(obs, first.long(), FIRST_STEP)
        return self.features(obs)


def null_action(space: gymnasium.Space[Any]) -> np.ndarray:
    """Zero if the space allows it, else its lowest action."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(0 if space.contains(0) else int(space.start))
    if not isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"there is no null action for {space}; pass null_action")
    zero = np.zeros(space.shape, space.dtype)
    if space.contains(zero):
        return zero
    return np.asarray(space.low if isinstance(space, spaces.Box) else space.start)  # type: ignore[union-attr]


def action_dtype(space: gymnasium.Space[Any]) -> torch.dtype:
    """Of actions as tensors: the space's own for boxes, else int64."""
    return torch.as_tensor(np.zeros((), space.dtype)).dtype if isinstance(space, spaces.Box) else torch.int64


def leaves(space: gymnasium.Space[Any], path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], gymnasium.Space[Any]]]:
    """(path, space) of each leaf, in the order of `gymnasium.spaces.utils.flatten`."""
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [leaf for name, inner in entries for leaf in leaves(inner, (*path, name))]
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"cannot make features of {space}; use Box, Discrete, MultiDiscrete, MultiBinary, and tuples and dicts of them")
    return [(path, space)]


def appended_space(space: gymnasium.Space[Any], extra: gymnasium.Space[Any], name: str) -> gymnasium.Space[Any]:
    """The space with one more entry. Tuples and dicts grow, anything else becomes a pair."""
    if isinstance(space, spaces.Dict):
        if name in space.spaces:
            raise ValueError(f"observations have an entry {name!r} already")
        return spaces.Dict({**space.spaces, name: extra})
    return spaces.Tuple((*space.spaces, extra) if isinstance(space, spaces.Tuple) else (space, extra))


def appended(obs: Any, value: Tensor, name: str) -> Any:
    """The same for an observation."""
    if isinstance(obs, dict):
        return {**obs, name: value}
    return (*obs, value) if isinstance(obs, tuple) else (obs, value)
