"""A trained policy: observations in, actions out. What it remembers is in a state that the caller carries."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from .. import lookup, states
from ..agents import Agent, AgentSpec, Image, find_agent
from ..envs.features import AgentInputs
from ..envs.foreign.spaces import STORED, choices
from ..envs.foreign.spaces import leaves as adapted_leaves
from ..files import clip_text
from ..runs import checkpoint
from ..runs.files import CheckpointError
from ..runs.folder import BEST, CHECKPOINTS, find_run, is_run
from ..runs.spaces import build_space, describe_space
from ..states import State

if TYPE_CHECKING:
    from .export import Exported
    from .run import Run

NETWORK = "agent.network."      # prefix of the network's tensors in a checkpoint
README = "README.md"            # of a saved policy, for people


class PolicyState(NamedTuple):
    """What a policy carries from step to step. Every tensor has the envs first."""

    network: State
    action: Tensor            # the previous one, as the env took it


class Policy:
    """An agent that acts on observations as the env gives them; it needs no env.

    The previous action and the first-step flag, if it was trained with them, come from its state.
    """

    def __init__(self, agent: Agent, name: str, spec: AgentSpec, inputs: AgentInputs, seed: int = 0):
        """name, spec: what the agent was built from. seed: of the run that trained it; evaluations reuse it."""
        if spec.input_size != inputs.size:
            raise ValueError(f"the agent takes {spec.input_size} features, but inputs makes {inputs.size} of {inputs.observation_space}")
        self.agent, self.name, self.spec, self.seed = agent, name, spec, seed
        self.steps: int | None = None      # env steps that it was trained for, if it comes from a checkpoint
        self.source: Run | Path | None = None      # the run that it comes from, or its folder
        self.card: dict[str, Any] = {}     # what was known of its training when it was saved
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
    def sees_reward(self) -> bool:
        """Whether `act` needs the reward of the previous step."""
        return self.inputs.previous_reward

    @property
    def network(self) -> nn.Module:
        return self.agent.network

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def to(self, device: torch.device | str) -> Policy:
        """Move the policy; its states are made on its device."""
        self.network.to(device)
        self.inputs = self.inputs.to(self.device)
        return self

    def initial_state(self, n: int, generator: torch.Generator | None = None) -> PolicyState:
        """A fresh state for `n` envs. generator: for memories with random state; default: torch's own."""
        network = self.agent.initial_state(n, self.device, generator)
        shape = self.action_space.shape or ()
        return PolicyState(network, torch.zeros(n, *shape, dtype=self.inputs.action_dtype, device=self.device))

    @torch.no_grad()
    def act(self, obs: Any, state: PolicyState | None = None, reset: Any = None, deterministic: bool = False, *, mask: Any = None,
            reward: Any = None, generator: torch.Generator | None = None) -> tuple[Any, PolicyState]:
        """Actions for observations [N, ...], and the state to pass with the next ones.

        obs: tensors or arrays, or tuples and dicts of them, as in the observation space. A single env's observation, without the first
        axis, gives a single action (and a state with N = 1).
        state: None for a new episode. reset [N] bool: the observation opens a new episode; None: none does (all do if state is None).
        reward [N]: of the previous step; needed after the first if the policy was trained with the setting previous_reward.
        deterministic: the most likely action instead of one drawn with `generator` (default: torch's own).
        mask [N, A] bool: allowed actions, at least one; for MultiDiscrete the parts side by side, or a tuple of them. An entry
        `action_mask` of the observation is used without being passed.
        Returns tensors on the policy's device if obs are tensors, else arrays. Discrete actions count from 0.
        """
        tree, n, single, arrays = self._read(obs)
        begun = state is not None and reset is None      # no episode starts here
        if state is None:
            state = self.initial_state(n, generator)
            reset = True
        elif not isinstance(state, PolicyState):
            raise TypeError(f"state must be what act() or initial_state() returned, or None, got {type(state).__name__}")
        elif state.action.shape[0] != n:
            raise ValueError(f"state is of {state.action.shape[0]} envs, but obs of {n}; pass state=None or policy.initial_state({n})")
        first = self._flags("reset", False if reset is None else reset, n)
        if self.inputs.previous_reward and reward is None:      # the only case in which this is asked, since it may wait for a GPU
            begun = not bool(first.all())
        if mask is None and isinstance(obs, dict) and choices(self.action_space):
            mask = obs.get("action_mask")
        allowed = None if mask is None else self._allowed(mask, n)
        features = self.inputs(tree, state.action, first, self._paid(reward, n, begun)).to(next(self.network.parameters()).dtype)
        actions = self.agent.actions
        noise = None if deterministic else actions.noise(n, generator=generator, device=self.device).to(features.dtype)
        action, network, _ = self.agent.act(features, state.network, first, allowed, noise)
        taken = actions.to_env(action).to(self.inputs.action_dtype)
        shown = taken[0] if single else taken
        return (shown.cpu().numpy()[()] if arrays else shown), PolicyState(network, taken)

    def save(self, path: Path | str) -> Path:
        """Write the policy to a folder for `load_policy`, as safetensors and JSON, with a README. A policy that is there is replaced."""
        path = Path(path)
        if path.exists() and not (path / checkpoint.ABOUT).is_file() and (path.is_file() or any(path.iterdir())):
            raise ValueError(f"{path} exists and is not a saved policy; choose another name")
        from .card import make_card, write_readme

        card = make_card(self)
        tensors = {NETWORK + name: x for name, x in self.network.state_dict().items()}
        checkpoint.write(path, tensors, {"kind": "policy", "policy": self.describe(), "card": card, "env_steps": card.get("steps")},
                         {README: write_readme(self, card, path.name)})
        return path

    def export(self, path: Path | str, format: str | None = None, *, mask: bool = False, noise: bool = False) -> Exported:
        """Write a file that acts without hadamem: see `hadamem.training.export.export`.

        format: onnx, or torch for torch.export; None: by the ending of the name, .onnx or .pt2. mask: with an input for allowed actions.
        noise: with an input for random numbers, so that actions can be drawn.
        """
        from .export import export

        return export(self, path, format, mask=mask, noise=noise)

    def describe(self) -> dict[str, Any]:
        """Everything but the weights, as plain values, for `build`."""
        return {
            "observation_space": describe_space(self.observation_space), "action_space": describe_space(self.action_space),
            "previous_action": self.inputs.previous_action, "first_step": self.inputs.first_step, "scale_images": self.inputs.scale_images,
            "previous_reward": self.inputs.previous_reward, "joint_previous_action": self.inputs.joint_previous_action, "seed": self.seed,
            "images": [list(image) for image in self.spec.images], "network": dataclasses.asdict(self.spec.network),
            "agent": self.name, "settings": dataclasses.asdict(self.spec.config),
        }

    @classmethod
    def build(cls, described: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Policy:
        """Build a policy from what `describe` returned, and weights."""
        inputs = AgentInputs(build_space(described["observation_space"]), build_space(described["action_space"]),
                             previous_action=described["previous_action"], first_step=described["first_step"],
                             previous_reward=described.get("previous_reward", False), scale_images=described["scale_images"],
                             joint_previous_action=described.get("joint_previous_action", False))
        images = tuple(Image(offset, tuple(shape), first) for offset, shape, first in described["images"])
        kind = find_agent(described["agent"])
        network, config = kind.Network(**described["network"]), kind.Config(**described["settings"])
        spec = AgentSpec(inputs.size, inputs.action_space, network, config, images, inputs.parts, inputs.numbers)
        with torch.random.fork_rng(devices=[]):      # initial weights are drawn, and overwritten
            agent = kind(spec)
        agent.network.to(next(x.dtype for x in weights.values() if x.is_floating_point()))
        agent.load_network(dict(weights))
        bad = agent.not_finite()
        if bad:
            raise ValueError(f"the weights are not finite ({bad}): training diverged. Load the run's best checkpoint (its folder best/), "
                             "or resume it with a lower learning_rate")
        agent.network.eval()      # some memories have dropout
        return cls(agent, described["agent"], spec, inputs, described["seed"])

    @classmethod
    def of(cls, trainer: Any) -> Policy:
        """The policy that a `Trainer` trains. They share the agent."""
        return cls(trainer.agent, trainer.config.agent, trainer.spec, trainer.inputs, trainer.config.seed)

    # --- internals -------------------------------------------------------------------------------------------------

    def _read(self, obs: Any) -> tuple[Any, int, bool, bool]:
        """Observations as tensors [N, ...] on the policy's device, N, whether they are a single env's, and whether they came as arrays."""
        sizes: set[int] = set()
        kinds: set[tuple[bool, bool]] = set()      # of each leaf: (single env, array)

        def read(space: spaces.Space[Any], value: Any, where: str) -> Any:
            if isinstance(space, (spaces.Tuple, spaces.Dict)):
                entries = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
                try:
                    if isinstance(space, spaces.Tuple) and isinstance(value, (np.ndarray, Tensor)):
                        value = [value[..., i] for i in range(value.shape[-1])]      # our Gymnasium envs pack tuples of Discrete spaces
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
            if numbers is not None and leaf.device.type == "cpu" and leaf.dtype != torch.bfloat16:      # numpy has no bfloat16
                numbers.check(leaf.detach().numpy(), where)
            elif numbers is not None and leaf.is_floating_point():      # looking at values would wait for the GPU
                raise ValueError(f"{where} must hold whole numbers of {numbers}, got {leaf.dtype}; convert it")
            sizes.add(leaf.shape[0])
            kinds.add((single, not isinstance(value, Tensor)))
            return leaf.to(self.device)

        tree = read(self.observation_space, obs, "obs")
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"obs must hold the same number of envs everywhere, at least 1, got {sorted(sizes)}")
        return tree, sizes.pop(), all(single for single, _ in kinds), all(array for _, array in kinds)

    def _paid(self, reward: Any, n: int, begun: bool) -> Tensor | None:
        """The previous rewards [N], if the policy sees them. begun: no episode starts here."""
        if not self.inputs.previous_reward:
            return None
        if reward is None:
            if begun:
                raise ValueError("reward is missing: the policy was trained with previous_reward; pass the reward of the previous step")
            return torch.zeros(n, device=self.device)
        paid = torch.as_tensor(reward if isinstance(reward, Tensor) else np.asarray(reward, dtype=np.float32), device=self.device).float()
        if paid.numel() not in (1, n):
            raise ValueError(f"reward must have the shape [{n}], got {list(paid.shape)}")
        return paid.reshape(-1).expand(n)

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
                raise ValueError("another number of envs")
            flags = flags.reshape(1 if flags.ndim == 1 else n, total).expand(n, total)      # one for all; or [N, K, size]
        except (ValueError, RuntimeError, TypeError) as error:
            parts = "" if len(sizes) == 1 else f" (or a tuple of parts with {', '.join(map(str, sizes))} entries)"
            got = type(mask).__name__ if flags is None else str(list(flags.shape))
            raise ValueError(f"mask must have the shape [{n}, {total}]{parts}, or [{total}] for all envs, got {got}") from error
        if flags.device.type == "cpu":      # looking at it would wait for a GPU
            free = torch.stack([part.any(-1) for part in flags.split(sizes, -1)]).all(0)      # [N]
            if not free.all():
                raise ValueError(f"mask must allow an action{' in each part' if len(sizes) > 1 else ''}, but leaves env "
                                 f"{int(free.int().argmin())} none; after the end of an episode, allow all")
        return flags.to(self.device)

    def __repr__(self) -> str:
        return f"<Policy of {self.name} with {self.spec.network.memory} on {self.device}: {self.observation_space} -> {self.action_space}>"


def load_policy(path: Path | str, *, trust: bool = False) -> Policy:
    """Load a policy onto the CPU: from a run's folder (its newest complete checkpoint), a checkpoint, or a folder of `Policy.save`.

    The best checkpoint of a run is in its folder best/. A run in runs/ is also found by its name.
    trust: import classes that the folder names as "package.module:Class", which runs their code. Without it, loading runs no code of the
    folder's author; docs/security.md says what that means.
    """
    path = Path(path)
    if not path.exists():
        path = find_run(path)
    if path.is_file():
        if path.name not in (checkpoint.ABOUT, checkpoint.TENSORS):
            raise ValueError(f"{path} is not a policy; pass the folder of a run, a checkpoint or a saved policy")
        path = path.parent
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}; pass the folder of a run, a checkpoint or a saved policy")
    if is_run(path) or (path / CHECKPOINTS).is_dir():
        damaged: list[str] = []
        found = checkpoint.Checkpoints(path / CHECKPOINTS).newest(damaged.append, NETWORK)
        if found is None:
            raise ValueError(f"the run in {path} has no complete checkpoint{''.join(f'; {text}' for text in damaged)}")
        for text in damaged:
            _warn(f"{text}; this is the policy of iteration {found.folder.name.lstrip('0') or 0} instead")
    elif (path / checkpoint.ABOUT).is_file():
        found = checkpoint.read(path, NETWORK)
    else:
        raise ValueError(f"{path} is not a run, checkpoint or saved policy: it has neither {CHECKPOINTS}/ nor {checkpoint.ABOUT}")
    try:
        with lookup.trusting(trust):
            policy = Policy.build(found.about["policy"], states.under(NETWORK, found.tensors))
    except KeyError as error:
        raise CheckpointError(f"{found.folder / checkpoint.ABOUT} lacks {error}") from error
    except (ValueError, MemoryError):      # it says what is wrong
        raise
    except Exception as error:             # whatever a file can lead to that somebody edited
        raise CheckpointError(f"{found.folder} does not describe a policy: {type(error).__name__}: {clip_text(error)}") from error
    policy.steps = found.about.get("env_steps")
    card = found.about.get("card")
    policy.card = card if isinstance(card, dict) else {}
    run = found.folder.parent if found.folder.name == BEST else found.folder.parent.parent
    policy.source = run if found.about.get("kind") != "policy" and is_run(run) else None
    return policy


def _warn(text: str) -> None:
    warnings.warn(f"hadamem: {text}", RuntimeWarning, stacklevel=3)


def _given(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def _tensor(value: Any) -> Tensor:
    """As the adapter of Gymnasium envs converts it."""
    array = np.array(value, order="C")      # a copy: torch takes neither read-only arrays nor negative strides
    return torch.from_numpy(array.astype(STORED[array.dtype.name]) if array.dtype.name in STORED else array)
