"""From observations to the vectors that a network sees, given the spaces alone: used by the wrappers of envs and by trained policies."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from . import trees
from .spaces import Image, action_dtype, appended_space, find_images, leaves, null_action

PREVIOUS_ACTION = "prev_action"    # names in dict observations, as in POPGym
FIRST_STEP = "is_t0"
PREVIOUS_REWARD = "prev_reward"
OBSERVATION = "observation"        # name of a part, see `AgentInputs.parts`
SCATTERS = ("cpu",)                # devices that write the ones of codes; others compare, which is more work, but a single compiled kernel
MOST_COMPARED = 1024               # features, all of codes: comparing takes eight bytes for each


class FeatureMap:
    """Observations [*lead, ...] of a space -> one float32 vector [*lead, F], with the order and values of `gymnasium.spaces.utils.flatten`.

    Any number of leading axes will do: [N] for a step of N envs, [N, T] for sequences. Discrete and MultiDiscrete entries become one-hot
    codes; boxes and bits keep their values. scale_images: divide uint8 boxes by 255. `space` is the space of the vectors.
    """

    def __init__(self, space: gymnasium.Space[Any], scale_images: bool = False, device: torch.device | str = "cpu"):
        self.leaves = leaves(space)
        self.axes = len(self.leaves[0][1].shape or ()) if self.leaves else 0       # of the first leaf, without leading ones
        codes: list[np.ndarray] = []                      # for each whole number: the offset to its feature, its first and last feature
        low, high = [], []
        owners: list[int] = []                            # for each feature: which whole number it is of the code of; any, if of none
        self.size, self.device = 0, torch.device(device)
        self.plan: list[tuple[int, int, float] | None] = []       # for each leaf: features start:stop and their scale; None: one-hot
        self.ranges: list[tuple[int, int]] = []           # of each leaf's features
        for _, leaf in self.leaves:
            size = spaces.utils.flatdim(leaf)
            self.ranges.append((self.size, self.size + size))
            scale = 1 / 255 if scale_images and leaf.dtype == np.uint8 and isinstance(leaf, spaces.Box) else 1.0
            if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
                sizes = np.reshape(leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec, -1).astype(np.int64)
                first = self.size + np.cumsum(sizes) - sizes
                before = sum(code.shape[1] for code in codes)
                owners += np.repeat(np.arange(before, before + len(sizes)), sizes).tolist()
                codes.append(np.stack([first - np.reshape(leaf.start, -1), first, first + sizes - 1]))
                self.plan.append(None)
            else:
                owners += [0] * size
                self.plan.append((self.size, self.size + size, scale))
            flat = spaces.utils.flatten_space(leaf)
            assert isinstance(flat, spaces.Box)
            with np.errstate(over="ignore"):
                low.append(flat.low.astype(np.float32) * np.float32(scale))
                high.append(flat.high.astype(np.float32) * np.float32(scale))
            self.size += size
        self.codes = torch.as_tensor(np.concatenate(codes, 1), device=self.device).unbind() if codes else None      # 3 times [K]
        self.owners = torch.tensor(owners, device=self.device)
        self.places = torch.arange(self.size, device=self.device)
        self.compares = self.device.type not in SCATTERS and self.size <= MOST_COMPARED and not any(self.plan)
        self.space = spaces.Box(np.concatenate(low), np.concatenate(high), dtype=np.float32)

    def __call__(self, obs: Any) -> Tensor:
        found = []
        for path, _ in self.leaves:
            leaf = obs
            for key in path:
                leaf = leaf[key]
            found.append(leaf)
        lead = found[0].shape[:found[0].ndim - self.axes]
        found = [leaf.reshape(*lead, -1) for leaf in found]
        if self.codes is None:
            out = torch.zeros(*lead, self.size, device=self.device)
        else:
            numbers = [leaf.long() for leaf, plan in zip(found, self.plan, strict=True) if plan is None]
            ones = numbers[0] if len(numbers) == 1 else torch.cat(numbers, -1)      # [*lead, K]
            offset, low, high = self.codes
            ones = (ones + offset).clamp_(low, high)                                # no index out of range, whatever an env shows
            if self.compares:
                out = (ones.index_select(-1, self.owners) == self.places).float()
            else:
                out = torch.zeros(*lead, self.size, device=self.device).scatter_(-1, ones, 1.0)
        for leaf, plan in zip(found, self.plan, strict=True):
            if plan is not None:
                start, stop, scale = plan
                out[..., start:stop] = leaf if scale == 1.0 else leaf * scale
        return out


class AgentInputs:
    """The features that `wrap(env)` makes, without an env: the caller gives the previous action, the first-step flag and, with
    previous_reward, the reward of the previous step.

    joint_previous_action: a MultiDiscrete previous action is one code among all its combinations, instead of one code for each part.
    Otherwise this does the same as the wrappers `PreviousAction`, `FirstStep` and `Features`, bit for bit, except that numbers that are not
    finite become 0, and keeps no state between calls. Plain tensor ops that never wait for a GPU, so calls can be captured in CUDA graphs.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], *, previous_action: bool = True,
                 first_step: bool = True, previous_reward: bool = False, scale_images: bool = False,
                 joint_previous_action: bool = False, device: torch.device | str = "cpu"):
        self.observation_space, self.action_space = observation_space, action_space
        self.previous_action, self.first_step, self.scale_images = previous_action, first_step, scale_images
        self.previous_reward = previous_reward
        self.joint_previous_action = joint_previous_action and isinstance(action_space, spaces.MultiDiscrete)
        self.action_dtype = action_dtype(action_space)
        space = observation_space
        if previous_action:
            self.null = torch.as_tensor(null_action(action_space), dtype=self.action_dtype, device=device)
            shown = action_space
            if self.joint_previous_action:
                assert isinstance(action_space, spaces.MultiDiscrete)
                sizes = [int(n) for n in action_space.nvec.reshape(-1)]
                self.start = torch.as_tensor(action_space.start, device=device).reshape(-1)
                places = [math.prod(sizes[i + 1:]) for i in range(len(sizes))]      # the last part counts fastest
                self.places = torch.tensor(places, device=device)
                shown = spaces.Discrete(math.prod(sizes))
            space = appended_space(space, shown, PREVIOUS_ACTION)
        if first_step:
            space = appended_space(space, spaces.Discrete(2), FIRST_STEP)
        if previous_reward:
            space = appended_space(space, spaces.Box(-np.inf, np.inf, (1,), np.float32), PREVIOUS_REWARD)
        self.joint_space = space       # observation, previous action, flag and previous reward, before they are flattened
        self.features = FeatureMap(space, scale_images, device)
        self._has_numbers = bool(self.numbers)

    @property
    def size(self) -> int:
        """F, the number of features."""
        return self.features.size

    @property
    def parts(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """(start, stop) ranges of the features that belong to the observation, the previous action, the flag and the previous reward."""
        given = {PREVIOUS_ACTION: self.previous_action, FIRST_STEP: self.first_step, PREVIOUS_REWARD: self.previous_reward}
        added = [name for name, is_there in given.items() if is_there]
        space = self.observation_space
        if not isinstance(space, spaces.Dict):      # they follow the observation's own entries
            own = len(space.spaces) if isinstance(space, spaces.Tuple) else 1
            added_at: dict[Any, str] = {own + i: name for i, name in enumerate(added)}
        else:
            added_at = {name: name for name in added}
        found: dict[str, list[tuple[int, int]]] = {OBSERVATION: [], **{name: [] for name in added}}
        for (path, _), place in zip(self.features.leaves, self.features.ranges, strict=True):
            found[added_at.get(path[0], OBSERVATION) if path else OBSERVATION].append(place)
        return {name: tuple(places) for name, places in found.items()}

    @property
    def numbers(self) -> tuple[tuple[int, int], ...]:
        """(start, stop) ranges of the features that are numbers of any scale: boxes of the observation without images, and the reward."""
        measured = {place for name, places in self.parts.items() if name in (OBSERVATION, PREVIOUS_REWARD) for place in places}
        found = []
        for (_, leaf), place in zip(self.features.leaves, self.features.ranges, strict=True):
            if place in measured and isinstance(leaf, spaces.Box) and leaf.dtype != np.uint8:
                found.append(place)
        return tuple(found)

    @property
    def device(self) -> torch.device:
        return self.features.device

    def to(self, device: torch.device | str) -> AgentInputs:
        """The same on another device."""
        return AgentInputs(self.observation_space, self.action_space, previous_action=self.previous_action, first_step=self.first_step,
                           previous_reward=self.previous_reward, scale_images=self.scale_images,
                           joint_previous_action=self.joint_previous_action, device=device)

    def images(self, image_shape: tuple[int, ...] | None = None) -> tuple[Image, ...]:
        """Where images are among the features; see `find_images`."""
        return find_images(self.joint_space, image_shape)

    def __call__(self, obs: Any, action: Tensor, first: Tensor, reward: Tensor | None = None) -> Tensor:
        """Observations [*lead, ...], the actions that led to them, and whether they start an episode [*lead] bool -> [*lead, F].

        reward [*lead]: of those actions; needed with previous_reward. Where `first` is true action and reward are ignored. For the last
        observation of an episode pass False.
        """
        if self.previous_action:
            action = action.to(self.action_dtype)
            action = trees.where(first, self.null.expand_as(action), action)
            if self.joint_previous_action:
                action = ((action.flatten(first.ndim) - self.start) * self.places).sum(-1)
            obs = trees.append(obs, action, PREVIOUS_ACTION)
        if self.first_step:
            obs = trees.append(obs, first.long(), FIRST_STEP)
        if self.previous_reward:
            assert reward is not None
            obs = trees.append(obs, torch.where(first, 0.0, reward)[..., None], PREVIOUS_REWARD)
        found = self.features(obs)
        return found.nan_to_num(0.0, 0.0, 0.0) if self._has_numbers else found      # or one step would spoil a memory for a whole episode
