"""What an algorithm must provide: `Agent`. And what it is given to learn from: `Rollout`, or `Sequences` from a replay.

The trainer, the collector, checkpoints, policies, the progress view, the settings and the command line know agents by this file alone.
To add an algorithm, write a subclass of `Agent` with a settings dataclass and add one line to the table `AGENTS` of this package (or call
`register_agent`). In one iteration the trainer

1. steps N envs for T steps: `explore` chooses every action, and what it returns beside the action is recorded (`Rollout.extras`);
2. calls `learn` once: all gradient updates of the iteration, and their statistics.

Trained policies call `act`.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from gymnasium import spaces
from torch import Tensor, nn

from .. import states
from ..states import State
from .distributions import Actions
from .networks import Image, NetworkConfig


class AgentSpec(NamedTuple):
    """What an agent is built from."""

    input_size: int                      # width of a feature vector
    action_space: spaces.Space[Any]      # of a single env
    network: Any                         # an instance of the agent's `Network`
    config: Any                          # an instance of the agent's own `Config`
    images: tuple[Image, ...] = ()       # positions of images in the feature vector
    parts: Mapping[str, tuple[tuple[int, int], ...]] = {}      # (start, stop) ranges of its parts, see `AgentInputs.parts`
    numbers: tuple[tuple[int, int], ...] = ()                  # ranges of measured numbers in it, see `AgentInputs.numbers`


class ReplaySpec(NamedTuple):
    """The replay that an agent learns from: it asks for one by `Agent.replay`."""

    size: int                            # env steps to keep
    length: int | None = None            # steps of a sequence; None: whole episodes where each rollout is one, else `WINDOW` steps
    burn_in: int = 0                     # first steps of a sequence without loss; must be fewer than its length
    stored_state: bool = True            # sequences start where rollouts did, from the network's state then; False: anywhere, afresh


class Acted(NamedTuple):
    """What `Agent.act` returns."""

    action: Tensor                       # [N, K], in the units of the policy's distribution; `agent.actions.to_env` converts it
    state: State                         # after this step
    extras: dict[str, Tensor]            # [N, ...] by name, recorded for `learn`


@dataclass
class Rollout:
    """T steps of N envs, as recorded while acting. Every tensor has the envs first, so indexing dim 0 picks envs."""

    obs: Any                             # tensor, tuple or dict of [N, T, ...]: as the env gave them, images as uint8
    first: Tensor                        # [N, T] bool: the step opens an episode
    action: Tensor                       # [N, T, K], in the units of the policy's distribution
    reward: Tensor                       # [N, T]
    terminated: Tensor                   # [N, T] bool: the step ended its episode
    truncated: Tensor                    # [N, T] bool: the step cut its episode short
    state: State                         # of the network, before step 0
    previous_action: Tensor              # [N, ...]: the action before step 0, as the env took it
    make_features: Callable[..., Tensor]                    # see `features`
    mask: Tensor | None = None           # [N, T, A] bool: allowed actions
    extras: dict[str, Tensor] = field(default_factory=dict)     # [N, T, ...]: what `explore` returned beside the action
    final: dict[str, Tensor] = field(default_factory=dict)      # [N, T]: `bootstrap` of the final observation of truncated episodes, else 0
    last: dict[str, Tensor] = field(default_factory=dict)       # [N]: `bootstrap` of the observation after step T - 1
    next_mask: Tensor | None = None      # [N, A] bool: allowed actions after step T - 1
    previous_reward: Tensor | None = None      # [N]: the reward before step 0
    terminal: Tensor | None = None       # [N, T] bool, for a replay: nothing of value comes after the step, for the learner. The env's
    #                                      `info["terminal"]`, else `terminated`
    next_obs: Any = None                 # for a replay, like obs: the observation after each step, the final one where the episode
    #                                      ended; [N, 1, ...] if each row is one episode: its final observation
    whole: bool = False                  # every row is exactly one episode, from its first step to its last
    usual_reward: Tensor | None = None   # [N]: the largest magnitude of a reward so far, without outliers; the same for all envs. Without
    #                                      a replay

    @property
    def done(self) -> Tensor:
        """[N, T] bool: the step ended its episode, either way."""
        return self.terminated | self.truncated

    @property
    def shape(self) -> torch.Size:
        """N, T."""
        return self.reward.shape

    def features(self) -> Tensor:
        """The network's inputs [N, T, F]: observation, previous action and first-step flag, built by the code that acting uses."""
        return self.make_features(self.obs, self.previous_action, self.action, self.first, self.previous_reward, self.reward)


@dataclass
class Sequences:
    """B sequences of L steps from a replay, each followed by one more observation: L + 1 entries.

    Entry t + 1 is always what came after entry t. So where an episode ended within a sequence, its final observation has an entry of its
    own, without action or reward (`valid` is false), and the entry after it opens the next episode.
    """

    obs: Any                             # tensor, tuple or dict of [B, L + 1, ...]
    first: Tensor                        # [B, L + 1] bool: the entry opens an episode
    previous_action: Tensor              # [B, L + 1, ...]: the action that led to the entry, as the env took it
    previous_reward: Tensor              # [B, L + 1]
    action: Tensor                       # [B, L, K]
    reward: Tensor                       # [B, L]
    terminal: Tensor                     # [B, L] bool: see `Rollout.terminal`
    valid: Tensor                        # [B, L] bool: a step to learn from
    state: State                         # of the network, before entry 0
    make_features: Callable[..., Tensor]
    mask: Tensor | None = None           # [B, L + 1, A] bool: allowed actions
    extras: dict[str, Tensor] = field(default_factory=dict)     # [B, L, ...]: what `explore` returned beside the action
    whole: bool = False                  # every sequence is exactly one episode

    def features(self) -> Tensor:
        """The network's inputs [B, L + 1, F]."""
        return self.make_features(self.obs, self.previous_action, self.first, self.previous_reward)


class Progress(NamedTuple):
    """How far the training is."""

    env_steps: int                       # before this iteration
    total_steps: int

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return self.env_steps / self.total_steps


class Source(Protocol):
    """Where `learn` takes experience from: the latest rollout, or a replay of earlier ones too."""

    rollout: Rollout                     # the latest one; its tensors are overwritten by the next iteration

    def __len__(self) -> int:
        """Sequences to choose from."""

    def choose(self, n: int, generator: torch.Generator) -> Tensor:
        """Row numbers [n] of random sequences, on the CPU. The latest rollout: without replacement. A replay: with replacement."""

    def take(self, rows: Tensor) -> Any:
        """The sequences with these row numbers: a `Rollout` of some envs; from a replay, `Sequences`.

        Gathers from tensors that stay in place, so it can be part of a CUDA graph.
        """


class ReplaySource(Source, Protocol):
    """A replay, as agents see it."""

    steps: int                           # env steps that it holds
    full: bool                           # new steps replace the oldest
    length: int                          # L, the steps of a sequence

    def take(self, rows: Tensor) -> Sequences: ...


class Agent(ABC):
    """An algorithm. Subclasses set the class attributes and `network` and `actions`, and define `act` and `learn`.

    All tensors live on the network's device, and acting does not wait for the GPU: the trainer captures it in a CUDA graph.
    """

    Config: ClassVar[type[Any]]                          # a frozen dataclass: the agent's section of a run's settings
    section: ClassVar[str] = ""                          # name of that section; "": the class name in lower case
    Network: ClassVar[type[Any]] = NetworkConfig         # a frozen dataclass: the section `network`
    shown: ClassVar[Mapping[str, str]] = {}              # statistics for the progress view: name -> label
    envs_divisible_by: ClassVar[str | None] = None       # a field of Config: num_envs must be a multiple of it
    rollout_steps: ClassVar[int | None] = None           # steps per rollout if episodes differ in length; None: an episode's, or 128
    graphs: ClassVar[tuple[str, ...]] = ()               # argument-free methods that the trainer captures as CUDA graphs
    compiled: ClassVar[tuple[str, ...]] = ()             # methods that the trainer compiles with torch.compile (setting `compile`)
    changeable: ClassVar[tuple[str, ...]] = ()           # fields of Config that a resumed run may change; `learn` must follow them
    saved: tuple[str, ...] = ("network",)                # attributes in a checkpoint: modules, optimizers (`Adam`) and tensors

    network: Any                                         # an nn.Module with initial_state(n, device, generator); saved with policies
    actions: Actions                                     # a submodule of network, so that it is trained, saved and moved with it

    @abstractmethod
    def __init__(self, spec: AgentSpec, device: torch.device | str = "cpu"):
        """Draws initial weights from torch's default CPU generator, whatever the device."""

    @property
    def replay(self) -> ReplaySpec | None:
        """The replay to learn from. None: learn from the latest rollout alone."""
        return None

    # --- acting ----------------------------------------------------------------------------------------------------

    def initial_state(self, n: int, device: torch.device | str | None = None, generator: torch.Generator | None = None) -> State:
        """A fresh state for n envs."""
        return self.network.initial_state(n, device, generator)

    @abstractmethod
    def act(self, features: Tensor, state: State, first: Tensor, mask: Tensor | None = None, noise: Tensor | None = None) -> Acted:
        """Choose actions for features [N, F]; first [N]: the step opens an episode; mask [N, A]: allowed actions.

        noise: from `actions.noise(N)`, so that a rollout can be repeated. None: the most likely action.
        """

    def explore(self, features: Tensor, state: State, first: Tensor, mask: Tensor | None, noise: Tensor) -> Acted:
        """Choose actions while collecting. The same as `act`, unless the algorithm explores in another way."""
        return self.act(features, state, first, mask, noise)

    def steady(self) -> contextlib.AbstractContextManager[None]:
        """Many steps of acting stand in a `with` block of this, in which no weight changes: what they share can be computed once."""
        return contextlib.nullcontext()

    def bootstrap(self, features: Tensor, state: State, first: Tensor) -> dict[str, Tensor]:
        """Extra outputs for an observation after which no action is taken, such as its value; see `Rollout.final` and `Rollout.last`."""
        return {}

    # --- learning --------------------------------------------------------------------------------------------------

    def attach(self, source: Source) -> None:      # noqa: B027  # an optional hook
        """Called once, before the first `learn` and before CUDA graphs are captured. `source` is the same in every iteration."""

    @abstractmethod
    def learn(self, source: Source, progress: Progress, generator: torch.Generator) -> dict[str, Tensor]:
        """All updates of one iteration. generator: for random choices, on the CPU.

        Returns statistics as scalar tensors. "updates" and "skipped" (of them, for a loss or gradient that was not finite) are counted by
        the training loop, which ends a run that only skips.
        """

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor that the next `act` or `learn` depends on, by name: those of the attributes `saved`."""
        found: dict[str, Tensor] = {}
        for name in self.saved:
            part = getattr(self, name)
            if isinstance(part, Tensor):
                found[name] = part
            else:
                tensors = part.state_dict() if isinstance(part, nn.Module) else part.state_tensors()
                found |= {f"{name}.{key}": x for key, x in tensors.items()}
        return found

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`, in place: captured CUDA graphs refer to these tensors."""
        for name in self.saved:
            part = getattr(self, name)
            if isinstance(part, Tensor):
                part.copy_(state[name])
            elif isinstance(part, nn.Module):
                part.load_state_dict(states.under(f"{name}.", state))
            else:
                part.load_state_tensors(states.under(f"{name}.", state))

    def load_network(self, weights: Mapping[str, Tensor]) -> None:
        """Restore the network alone, which is all that acting needs."""
        self.network.load_state_dict(weights)

    def not_finite(self, state: Mapping[str, Tensor] | None = None) -> str:
        """Says which tensors of a state (default: its own) are not finite; "" if all are. Buffers and plain tensors may be infinite."""
        modules = {name: part for name in self.saved if isinstance(part := getattr(self, name), nn.Module)}
        others = {f"{name}.{key}" for name, part in modules.items() for key, _ in part.named_buffers()}
        others |= {name for name in self.saved if isinstance(getattr(self, name), Tensor)}
        found = {name: x for name, x in (self.state_dict() if state is None else state).items() if x.is_floating_point()}
        bad = [(torch.isnan(x) if name in others else ~torch.isfinite(x)).any() for name, x in found.items()]
        flags = torch.stack([flag.to(bad[0].device) for flag in bad]).tolist() if bad else []      # one wait for a GPU
        names = [name for name, flag in zip(found, flags, strict=True) if flag]
        return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
