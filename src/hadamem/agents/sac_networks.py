"""The networks of SAC: an actor and two critics, each pair of heads behind a memory of its own or behind a shared one.

    observation, previous action, previous reward -> embeddings -> memory -> [memory output, observation] -> heads

Images go through a small CNN, the rest of an observation through a linear layer and ReLU. The heads see the current observation past the
memory as well (`shortcut`). Without a memory (`memory: none`) the heads see the features as they are: that is plain SAC.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory import make_memory
from ..states import State
from .agent import AgentSpec
from .distributions import Actions
from .networks import IMAGE_FEATURES, Image, encode_image, small_cnn

NONE, SAME = "none", "same"      # the memory that remembers nothing; the critics' memory


@dataclass(frozen=True)
class SACNetworkConfig:
    """Sizes and choices of SAC's networks."""

    memory: str = "shm"                                  # a name of hm.list_memories(), or package.module:Class; none: plain SAC
    memory_size: int | None = None                       # width of the memory; None: its own default
    memory_output_size: int | None = None                # width of the memory's output; None: its own default
    memory_options: dict[str, Any] = field(default_factory=dict)
    actor_memory: str = "same"                           # another memory for the actor; same: as the critics'
    actor_memory_size: int | None = None                 # of that other memory
    actor_memory_output_size: int | None = None          # of that other memory
    actor_memory_options: dict[str, Any] = field(default_factory=dict)
    shared_memory: bool = False                          # one memory for actor and critics
    shortcut: bool = True                                # actor and critics also see the current observation past the memory
    obs_embedding: int = 32                              # width of the embedded observation; images have 100 features each
    action_embedding: int = 8                            # width of the embedded previous action
    reward_embedding: int = 8                            # width of the embedded previous reward
    hidden_sizes: tuple[int, ...] = (128, 128)           # hidden layers of actor and critics
    released_init: bool = False                          # initial weights of the published code: orthogonal memory, small heads

    def __post_init__(self) -> None:
        for name in ("obs_embedding", "action_embedding", "reward_embedding"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(f"hidden_sizes must be widths of at least 1, got {self.hidden_sizes}")
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        if self.actor_memory == SAME and (self.actor_memory_size or self.actor_memory_output_size or self.actor_memory_options):
            raise ValueError("actor_memory must be named where its size or options are given; set actor_memory, or leave them out")
        if self.shared_memory and self.actor_memory != SAME:
            raise ValueError(f"actor_memory must be 'same' with shared_memory, got {self.actor_memory!r}; leave one of them out")

    @property
    def actor(self) -> tuple[str, dict[str, Any]]:
        """Name and options of the actor's memory."""
        if self.actor_memory == SAME:
            return self.critic
        return self.actor_memory, _options(self.actor_memory_size, self.actor_memory_output_size, self.actor_memory_options)

    @property
    def critic(self) -> tuple[str, dict[str, Any]]:
        return self.memory, _options(self.memory_size, self.memory_output_size, self.memory_options)


def _options(size: int | None, output: int | None, options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "output_size": output, **({} if size is None else {"memory_size": size})}


class SACState(NamedTuple):
    """States of the actor's and the critics' memories; a shared one is the actor's."""

    actor: State
    critic: State | None


class Seen(NamedTuple):
    """What a body hands on to heads: [..., width] each."""

    memory: Tensor            # the memory's output; without a memory, features that are not images
    images: list[Tensor]      # embedded images
    plain: Tensor             # the rest of the observation, as it is


class Body(nn.Module):
    """Embeddings and memory. `forward` takes sequences, `step` single steps; the two agree."""

    def __init__(self, spec: AgentSpec, memory: tuple[str, dict[str, Any]], config: SACNetworkConfig):
        super().__init__()
        self.images: tuple[Image, ...] = spec.images
        self.nets = nn.ModuleList(small_cnn(image) for image in spec.images)
        parts = spec.parts or {"observation": ((0, spec.input_size),)}
        self.plain = _plain_ranges(parts["observation"], spec.images)
        self.others = {name: ranges for name, ranges in parts.items() if name != "observation"}
        self.plain_size = _total(self.plain)
        name, options = memory
        if name == NONE:
            self.memory, self.embeddings = None, None
            self.output_size = self.plain_size + sum(map(_total, self.others.values()))
            return
        widths = {"observation": config.obs_embedding, "prev_action": config.action_embedding, "prev_reward": config.reward_embedding}
        sizes = {"observation": self.plain_size, **{name: _total(ranges) for name, ranges in self.others.items()}}
        self.embeddings = nn.ModuleDict({name: nn.Linear(size, widths[name]) for name, size in sizes.items() if size and name in widths})
        width = sum(widths.get(name, size) for name, size in sizes.items() if size) + IMAGE_FEATURES * len(self.images)
        output_size = options.pop("output_size")
        self.memory = make_memory(name, width, output_size, **options)
        self.output_size = self.memory.output_size
        if config.released_init:
            _make_orthogonal(self.memory)

    def initial_state(self, n: int, device: Any = None, generator: torch.Generator | None = None) -> State:
        if self.memory is None:
            return Nothing(torch.empty(n, 0, device=device))
        return self.memory.initial_state(n, device=device, generator=generator)

    def forward(self, x: Tensor, state: State, reset: Tensor, whole: bool = False) -> tuple[Seen, State]:
        """x [N, T, F], reset [N, T]. whole: every row is exactly one episode."""
        images, plain, inputs = self._embed(x)
        if self.memory is None:
            return Seen(inputs, images, plain), state
        y, state = self.memory(inputs, state, reset, **self.memory.hints(whole, whole))
        return Seen(y, images, plain), state

    def step(self, x: Tensor, state: State, reset: Tensor) -> tuple[Seen, State]:
        """x [N, F], reset [N]."""
        images, plain, inputs = self._embed(x)
        if self.memory is None:
            return Seen(inputs, images, plain), state
        y, state = self.memory.step(inputs, state, reset)
        return Seen(y, images, plain), state

    def _embed(self, x: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """Embedded images, the plain part of the observation, and the input of the memory."""
        images = [encode_image(net, image, x) for net, image in zip(self.nets, self.images, strict=True)]
        plain = _pick(x, self.plain)
        parts = {"observation": plain, **{name: _pick(x, ranges) for name, ranges in self.others.items()}}
        if self.embeddings is None:
            return images, plain, torch.cat(list(parts.values()), -1)
        embedded = [F.relu(self.embeddings[name](part)) if name in self.embeddings else part for name, part in parts.items()]
        return images, plain, torch.cat([*embedded, *images], -1)


class Nothing(NamedTuple):
    """The state of no memory."""

    empty: Tensor   # [N, 0]


class Heads(nn.Module):
    """`copies` equal networks side by side on what a body has seen, and on an action if `action_size` is not 0: [..., outputs] each."""

    def __init__(self, body: Body, config: SACNetworkConfig, copies: int, outputs: int, action_size: int = 0, scale: float = 1e-3):
        super().__init__()
        images = IMAGE_FEATURES * len(body.images)
        self.shortcut = config.shortcut and body.memory is not None
        self.sees_images = config.shortcut or body.memory is None
        self.joined: nn.Linear | None = None             # embeds the current observation, and the action with it
        size, width = 0, 0
        if body.memory is not None:
            size = (body.plain_size if self.shortcut else 0) + action_size
            width = (config.obs_embedding if self.shortcut and body.plain_size else 0) + (config.action_embedding if action_size else 0)
        if size:
            self.joined = nn.Linear(size, width)
        total = body.output_size + (images if self.sees_images else 0) + (width if size else action_size)
        sizes = [total, *config.hidden_sizes, outputs]
        self.copies = copies
        self.layers = nn.ModuleList(Layers(copies, a, b) for a, b in itertools.pairwise(sizes))
        if config.released_init:
            for weight, bias in (layer.parameters() for layer in self.layers):
                limit = 1 / math.sqrt(weight.shape[-1])
                nn.init.uniform_(weight, -limit, limit)
                nn.init.constant_(bias, 0.1)
            for parameter in self.layers[-1].parameters():
                nn.init.uniform_(parameter, -scale, scale)

    def forward(self, seen: Seen, action: Tensor | None = None, frozen: bool = False) -> Tensor:
        """-> [copies, ..., outputs]. frozen: parameters get no gradient."""
        parts = [seen.memory, *(seen.images if self.sees_images else [])]
        beside = [*([seen.plain] if self.shortcut else []), *([] if action is None else [action])]
        if self.joined is not None:
            weight, bias = (p.detach() if frozen else p for p in (self.joined.weight, self.joined.bias))
            beside = [F.relu(F.linear(torch.cat(beside, -1), weight, bias))]
        x = torch.cat([*parts, *beside], -1)
        y = self.layers[0](x.reshape(1, -1, x.shape[-1]), frozen)
        for layer in self.layers[1:]:
            y = layer(F.relu(y), frozen)
        return y.view(-1, *x.shape[:-1], y.shape[-1])


class Layers(nn.Module):
    """Linear layers side by side: [copies, M, a] -> [copies, M, b]. They start as `nn.Linear` does."""

    def __init__(self, copies: int, a: int, b: int):
        super().__init__()
        limit = 1 / math.sqrt(a)
        self.weight = nn.Parameter(torch.empty(copies, a, b).uniform_(-limit, limit))
        self.bias = nn.Parameter(torch.empty(copies, 1, b).uniform_(-limit, limit))

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """x may be [1, M, a]: the same for all copies."""
        weight, bias = (p.detach() if frozen else p for p in (self.weight, self.bias))
        copies, a, b = weight.shape
        if not x.is_cuda:
            return torch.baddbmm(bias, x.expand(copies, -1, -1), weight)
        if len(x) == copies:
            return _Product.apply(x, weight, bias)
        y = _Product.apply(x, weight.transpose(0, 1).reshape(1, a, copies * b), bias.view(1, 1, copies * b))      # one wide layer
        return y.view(-1, copies, b).transpose(0, 1)


class _Product(torch.autograd.Function):
    """x weight + bias, with the weights' gradient summed in pieces: over thousands of steps a single product takes ten times as long on a
    GPU. Adding the bias apart lets torch.compile join it to what follows; in `baddbmm` it is a pass over the result of its own.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight) + bias

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        copies, M, a = x.shape
        dx = torch.bmm(g, weight.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return dx, None, None
        pieces = next((n for n in (64, 32, 16, 8, 4, 2) if M % n == 0 and 16 * n <= M), 1)
        left = x.reshape(copies * pieces, M // pieces, a).transpose(1, 2)
        products = torch.bmm(left, g.reshape(copies * pieces, M // pieces, -1))
        return dx, products.view(copies, pieces, a, -1).sum(1), g.sum(1, keepdim=True)


class Critic(nn.Module):
    """Two Q networks on one body; `body` is None where they use the actor's."""

    def __init__(self, body: Body | None, heads: Heads):
        super().__init__()
        self.body, self.heads = body, heads


class SACNetwork(nn.Module):
    """Actor and critics. `make_target` makes the copy of the critics that follows them slowly."""

    def __init__(self, spec: AgentSpec, actions: Actions, q_outputs: int, action_size: int):
        """q_outputs: values per state, 1 or one for each action. action_size: width of the action that the critics see, or 0."""
        super().__init__()
        config: SACNetworkConfig = spec.network
        self.actions = actions
        self.body = Body(spec, config.actor, config)
        self.actor = Heads(self.body, config, 1, actions.inputs)
        own = None if config.shared_memory else Body(spec, config.critic, config)
        self.critic = Critic(own, Heads(own or self.body, config, 2, q_outputs, action_size, scale=3e-3))

    def initial_state(self, n: int, device: Any = None, generator: torch.Generator | None = None) -> SACState:
        device = next(self.actor.parameters()).device if device is None else device
        actor = self.body.initial_state(n, device, generator)
        return SACState(actor, None if self.critic.body is None else self.critic.body.initial_state(n, device, generator))

    def policy(self, seen: Seen, mask: Tensor | None = None) -> Tensor:
        """Parameters of the distribution of actions."""
        return self.actions.parameters_of(self.actor(seen)[0], mask)

    def make_target(self) -> Critic:
        return copy.deepcopy(self.critic).requires_grad_(False)


def _pick(x: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    """Ranges of the last axis, side by side."""
    pieces = [x[..., a:b] for a, b in ranges]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1) if pieces else x[..., :0]


def _plain_ranges(observation: tuple[tuple[int, int], ...], images: tuple[Image, ...]) -> tuple[tuple[int, int], ...]:
    """The ranges of an observation that are not images."""
    starts = {image.offset for image in images}
    return tuple((a, b) for a, b in observation if a not in starts)


def _total(ranges: tuple[tuple[int, int], ...]) -> int:
    return sum(b - a for a, b in ranges)


def _make_orthogonal(memory: nn.Module) -> None:
    """Orthogonal matrices and zero biases, except in layers of normalisation."""
    for module in memory.modules():
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if "weight" in name and parameter.ndim == 2:
                nn.init.orthogonal_(parameter)
            elif "bias" in name:
                nn.init.zeros_(parameter)
