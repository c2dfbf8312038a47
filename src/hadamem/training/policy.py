"""A trained policy by itself: observations of an env in, actions out, with all memory in a state that the caller carries."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..agents.actions import make_actions
from ..agents.network import ActorCritic, Image, NetworkConfig, NetworkState
from ..envs.features import AgentInputs
from ..envs.foreign.spaces import STORED, choices
from ..envs.foreign.spaces import leaves as adapted_leaves
from . import checkpoint
from .checkpoint import CheckpointError
from .folder import CHECKPOINTS, find_run, is_run
from .spaces import build_space, describe_space

NETWORK = "network."      # how names of the network's tensors begin in a checkpoint


class PolicyState(NamedTuple):
    """What a policy carries from step to step; every tensor has the envs first."""

    network: NetworkState
    action: Tensor            # the last one, as the env took it


class Policy:
    """A network, and how observations become what it sees.

    `act` takes observations as the env gives them: the previous action and the first-step flag that it may have been trained with come
    from its own state. It needs no env.
    """

    def __init__(self, network: ActorCritic, inputs: AgentInputs, images: tuple[Image, ...] = (), seed: int = 0):
        """seed: of the run that trained it; what a seed decides once for all episodes of a task, an evaluation keeps."""
        if network.input_size != inputs.size:
            raise ValueError(f"network takes {network.input_size} features, but inputs makes {inputs.size} of {inputs.observation_space}")
        self.network, self.images, self.seed = network, images, seed
        self.steps: int | None = None      # env steps that it was trained for, where it comes from a checkpoint
        self.inputs = inputs.to(self.device)
        space = self.observation_space
        self._numbers = {name.replace("observation", "obs", 1): numbers for _, name, _, numbers in adapted_leaves(space, space)}

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Of a single env, as is `action_space`."""
        return self.inputs.observation_space

    @property
    def action_space(self) -> spaces.Space[Any]:
        return self.inputs.action_space

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def to(self, device: torch.device | str) -> Policy:
        """Move it; states are made where the policy is."""
        self.network.to(device)
        self.inputs = self.inputs.to(self.device)
        return self

    def initial_state(self, n: int, generator: torch.Generator | None = None) -> PolicyState:
        """A fresh state for `n` envs. generator: of the few memories that draw at random; default: torch's own."""
        network = self.network.initial_state(n, self.device, generator)
        shape = self.action_space.shape or ()
        return PolicyState(network, torch.zeros(n, *shape, dtype=self.inputs.action_dtype, device=self.device))

    @torch.no_grad()
    def act(self, obs: Any, state: PolicyState | None = None, reset: Any = None, deterministic: bool = False, *, mask: Any = None,
            generator: torch.Generator | None = None) -> tuple[Any, PolicyState]:
        """Actions for observations [N, ...], and the state to pass with the next ones.

        obs: tensors or arrays, or tuples and dicts of them, as the observation space has it. A single env's observation, without the
        first axis, gives a single action (its state is one of N = 1).
        state: None starts afresh. reset [N] bool: the observation opens a new episode; None: none does, but all do with a new state.
        deterministic: the most likely action instead of one drawn with `generator` (default: torch's own).
        mask [N, A] bool: actions that are allowed, at least one; for MultiDiscrete ones the parts side by side, or a tuple of them. An
        entry `action_mask` of the observation is used by itself.
        Actions are tensors on the policy's device for observations that are tensors, else arrays. They count from 0.
        """
        tree, n, single, arrays = self._read(obs)
        if state is None:
            state = self.initial_state(n, generator)
            reset = True
        elif state.action.shape[0] != n:
            raise ValueError(f"state is of {state.action.shape[0]} envs, but obs of {n}; pass state=None or policy.initial_state({n})")
        first = self._flags("reset", False if reset is None else reset, n)
        if mask is None and isinstance(obs, dict) and choices(self.action_space):
            mask = obs.get("action_mask")
        allowed = None if mask is None else self._allowed(mask, n)
        features = self.inputs(tree, state.action, first).to(next(self.network.parameters()).dtype)
        dist, _, network = self.network.step(features, state.network, first, allowed)
        actions = self.network.actions
        if deterministic:
            chosen = actions.mode(dist)
        else:
            chosen = actions.sample(dist, actions.noise(n, generator=generator, device=self.device).to(dist.dtype))
        taken = actions.to_env(chosen).to(self.inputs.action_dtype)
        shown = taken[0] if single else taken
        return (shown.cpu().numpy()[()] if arrays else shown), PolicyState(network, taken)

    def save(self, path: Path | str) -> Path:
        """Write the policy to a folder of its own, for `load_policy`: safetensors and JSON. An older one there is replaced."""
        path = Path(path)
        if path.exists() and not (path / checkpoint.ABOUT).is_file() and (path.is_file() or any(path.iterdir())):
            raise ValueError(f"{path} exists and holds no policy; choose another name")
        tensors = {NETWORK + name: x for name, x in self.network.state_dict().items()}
        checkpoint.write(path, tensors, {"kind": "policy", "policy": self.describe()})
        return path

    def describe(self) -> dict[str, Any]:
        """All but the weights, as plain values: `build` makes such a policy again."""
        return {
            "observation_space": describe_space(self.observation_space), "action_space": describe_space(self.action_space),
            "previous_action": self.inputs.previous_action, "first_step": self.inputs.first_step, "scale_images": self.inputs.scale_images,
            "seed": self.seed, "images": [list(image) for image in self.images], "network": dataclasses.asdict(self.network.config),
        }

    @classmethod
    def build(cls, described: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Policy:
        """The policy that `describe` described, with these weights."""
        inputs = AgentInputs(build_space(described["observation_space"]), build_space(described["action_space"]),
                             previous_action=described["previous_action"], first_step=described["first_step"],
                             scale_images=described["scale_images"])
        images = tuple(Image(offset, tuple(shape), first) for offset, shape, first in described["images"])
        with torch.random.fork_rng(devices=[]):      # first weights are drawn, and thrown away
            network = ActorCritic(inputs.size, make_actions(inputs.action_space), NetworkConfig(**described["network"]), images)
        network.to(next(x.dtype for x in weights.values() if x.is_floating_point())).load_state_dict(dict(weights))
        return cls(network, inputs, images, described["seed"])

    @classmethod
    def of(cls, trainer: Any) -> Policy:
        """The policy that a `Trainer` trains; they share the network."""
        config, source = trainer.config, trainer.source
        inputs = AgentInputs(source.single_observation_space, source.single_action_space, previous_action=config.previous_action,
                             first_step=config.first_step, scale_images=True)
        return cls(trainer.network, inputs, trainer.network.trunk.encoder.images, config.seed)

    # --- inner works -----------------------------------------------------------------------------------------------

    def _read(self, obs: Any) -> tuple[Any, int, bool, bool]:
        """Observations as tensors [N, ...] here, N, whether they are a single env's, and whether they came as arrays."""
        sizes: set[int] = set()
        kinds: set[tuple[bool, bool]] = set()      # of each leaf: without the axis of envs, an array

        def read(space: spaces.Space[Any], value: Any, where: str) -> Any:
            if isinstance(space, (spaces.Tuple, spaces.Dict)):
                entries = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
                try:
                    parts = {key: read(inner, value[key], f"{where}[{key!r}]") for key, inner in entries}
                except (KeyError, IndexError, TypeError) as error:
                    raise ValueError(f"{where} must be an observation of {space}, got {type(value).__name__}: {error!r}") from error
                return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
            leaf = value if isinstance(value, Tensor) else _tensor(value)
            shape = list(space.shape or ())
            single = list(leaf.shape) == shape
            leaf = leaf[None] if single else leaf
            if list(leaf.shape[1:]) != shape or leaf.ndim != len(shape) + 1:
                raise ValueError(f"{where} must have the shape [{', '.join(map(str, ['N', *shape]))}] for {space}, got {list(leaf.shape)}")
            numbers = self._numbers[where]
            if numbers is not None and leaf.device.type == "cpu" and leaf.dtype != torch.bfloat16:      # which numpy has not
                numbers.check(leaf.detach().numpy(), where)
            elif numbers is not None and leaf.is_floating_point():      # to look at its values would wait for the GPU
                raise ValueError(f"{where} must be of {numbers}, of whole numbers, got {leaf.dtype}; convert it")
            sizes.add(leaf.shape[0])
            kinds.add((single, not isinstance(value, Tensor)))
            return leaf.to(self.device)

        tree = read(self.observation_space, obs, "obs")
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"obs must hold the same number of envs everywhere, at least 1, got {sorted(sizes)}")
        return tree, sizes.pop(), all(single for single, _ in kinds), all(array for _, array in kinds)

    def _flags(self, name: str, value: Any, *shape: int) -> Tensor:
        flags = torch.as_tensor(value if isinstance(value, Tensor) else np.asarray(value), device=self.device) != 0
        if flags.ndim < len(shape):                     # one flag for all, or a single env's
            flags = flags.expand(shape)
        if tuple(flags.shape) != shape:
            raise ValueError(f"{name} must have the shape {list(shape)}, got {list(flags.shape)}")
        return flags

    def _allowed(self, mask: Any, n: int) -> Tensor:
        sizes = choices(self.action_space)
        if not sizes:
            raise ValueError(f"mask needs Discrete or MultiDiscrete actions, but those of the policy are {self.action_space}")
        total, flags = sum(sizes), None
        try:
            if isinstance(mask, (tuple, list)) and [np.shape(part)[-1:] for part in mask] == [(size,) for size in sizes]:
                flags = torch.cat([_given(part) for part in mask], -1) != 0
            else:
                flags = _given(mask) != 0
            if flags.ndim > 1 and n not in (1, flags.shape[0]):
                raise ValueError("of other envs")
            flags = flags.reshape(1 if flags.ndim == 1 else n, total).expand(n, total)      # one for all, or of each also [K, size]
        except (ValueError, RuntimeError, TypeError) as error:
            parts = "" if len(sizes) == 1 else f" (or a tuple of parts with {', '.join(map(str, sizes))} entries)"
            got = f"a {type(mask).__name__} that is none" if flags is None else str(list(flags.shape))
            raise ValueError(f"mask must have the shape [{n}, {total}]{parts}, or [{total}] for all envs, got {got}") from error
        if flags.device.type == "cpu":      # to look at it would wait for a GPU
            free = torch.stack([part.any(-1) for part in flags.split(sizes, -1)]).all(0)      # [N]
            if not free.all():
                raise ValueError(f"mask must allow an action{' in each part' if len(sizes) > 1 else ''}, but leaves env "
                                 f"{int(free.int().argmin())} none; where an episode is over, allow all")
        return flags.to(self.device)

    def __repr__(self) -> str:
        return f"<Policy with {self.network.config.memory} on {self.device}: {self.observation_space} -> {self.action_space}>"


def load_policy(path: Path | str) -> Policy:
    """A policy from the folder of a run (its newest good checkpoint), of a checkpoint, or one that `Policy.save` wrote; on the CPU.

    A run in runs/ is also found by its name alone, where there is nothing else of that name.
    """
    path = Path(path)
    if not path.exists():
        path = find_run(path)
    if path.is_file():
        path = path.parent
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}; pass that of a run, of a checkpoint or of a saved policy")
    if is_run(path) or (path / CHECKPOINTS).is_dir():
        found = checkpoint.Checkpoints(path / CHECKPOINTS).newest(_warn, NETWORK)
        if found is None:
            raise ValueError(f"the run in {path} has no usable checkpoint")
    elif (path / checkpoint.ABOUT).is_file():
        found = checkpoint.read(path, NETWORK)
    else:
        raise ValueError(f"{path} is no run, checkpoint or saved policy: it has neither {CHECKPOINTS}/ nor {checkpoint.ABOUT}")
    try:
        policy = Policy.build(found.about["policy"], {name[len(NETWORK):]: x for name, x in found.tensors.items()})
    except KeyError as error:
        raise CheckpointError(f"{found.folder / checkpoint.ABOUT} lacks {error}") from error
    policy.steps = found.about.get("env_steps")
    return policy


def _warn(text: str) -> None:
    warnings.warn(f"hadamem: {text}", RuntimeWarning, stacklevel=4)


def _given(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def _tensor(value: Any) -> Tensor:
    """What the adapter of Gymnasium envs would make of it."""
    array = np.array(value, order="C")      # a copy: torch takes neither arrays that are read-only nor backward ones
    return torch.from_numpy(array.astype(STORED[array.dtype.name]) if array.dtype.name in STORED else array)
