"""Networks that agents share: encoder, time encoding, memory (`Trunk`), and an actor and a critic on top of it (`ActorCritic`).

    x -> [images: CNN] -> Linear, LayerNorm -> time encoding -> frame stack -> Linear, ReLU -> memory -> Linear, [ReLU] -> actor, critic
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory import make_memory
from .distributions import Actions
from .normalization import Normalizer


class Image(NamedTuple):
    """Where an image lies in a feature vector: its offset and its shape (height, width, channels; or channels first)."""

    offset: int
    shape: tuple[int, ...]
    channels_first: bool


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes and choices of a network."""

    memory: str = "shm"                                  # a name of hm.list_memories(), or package.module:Class
    memory_size: int | None = None                       # width of the memory; None: its own default
    memory_output_size: int | None = None                # width of the memory's output; None: its own default
    memory_options: dict[str, Any] = field(default_factory=dict)
    encoder_size: int = 128                              # width of the encoded observation
    layer_size: int = 64                                 # width of the layers before and after the memory
    head_size: int = 64                                  # width of the hidden layer of actor and critic
    head_activation: str = "none"                        # after the heads' hidden layer: none, relu or tanh
    actor_init: float = 0.01                             # scale of the actor's last weights at the start; small: no action is preferred
    memory_activation: str = "relu"                      # after the layer behind the memory: relu or none
    time_encoding: str = "sine"                          # sine: mix sines of the steps since the episode began into the features; or none
    time_base: int = 1024                                # base of the sines' frequencies
    time_features: int = 0                               # sines of the steps since the episode began that the memory sees as they are
    separate_memories: bool = False                      # one for the actor and one for the critic, each with its own encoder
    frame_stack: int = 1                                 # the memory sees the encoded features of this many latest steps at once
    shortcut: bool = False                               # actor and critic also see the current features past the memory, faintly at first
    normalize_observations: bool = False                 # PPO: numbers in observations are scaled by their running mean and deviation

    def __post_init__(self) -> None:
        if self.time_encoding not in ("sine", "none"):
            raise ValueError(f"time_encoding must be 'sine' or 'none', got {self.time_encoding!r}")
        if self.head_activation not in ("none", "relu", "tanh"):
            raise ValueError(f"head_activation must be 'none', 'relu' or 'tanh', got {self.head_activation!r}")
        if self.memory_activation not in ("relu", "none"):
            raise ValueError(f"memory_activation must be 'relu' or 'none', got {self.memory_activation!r}")
        if not 0 <= self.actor_init < math.inf:
            raise ValueError(f"actor_init must be 0 or more, got {self.actor_init}; it is the scale of random weights")
        for name in ("encoder_size", "layer_size", "head_size", "time_base", "frame_stack"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.time_features < 0:
            raise ValueError(f"time_features must be 0 or more, got {self.time_features}")


class TrunkState(NamedTuple):
    """The state of a trunk: steps since the episode began [N], its memory's state, and latest encoded features [N, frame_stack - 1, E]."""

    time: Tensor
    memory: Any
    recent: Tensor | None = None      # the latest one last; None without frame stack


class NetworkState(NamedTuple):
    """The state of the actor's trunk and, with separate memories, of the critic's."""

    actor: TrunkState
    critic: TrunkState | None


class Folded(NamedTuple):
    """What steps share while the weights stay as they are: linear layers that follow each other, multiplied out."""

    read: Any                                   # of the memory's output, for `Memory.step_through`
    heads: tuple[Tensor, Tensor] | None         # weight and bias of actor and critic; None: `read` has them, too


class Outputs(NamedTuple):
    """What a network says of every step: [N, T, ...], or [N, ...] for a single one."""

    dist: Tensor                      # [..., D]: parameters of the distribution of actions
    value: Tensor                     # [...]
    state: NetworkState
    expected: Tensor | None = None    # [...]: what the baseline expects, with no gradient to the rest of the network; None without one


class Trunk(nn.Module):
    """From features to what actor and critic see: encoder, time encoding, memory."""

    def __init__(self, input_size: int, images: tuple[Image, ...], config: NetworkConfig):
        super().__init__()
        self.encoder = Encoder(input_size, images, config.encoder_size)
        self.time = TimeEncoding(config.encoder_size, config.time_base) if config.time_encoding == "sine" else None
        self.stack, self.width = config.frame_stack, config.encoder_size
        self.before = nn.Linear(config.encoder_size * config.frame_stack, config.layer_size)
        self.clock = Sines(config.time_features, config.time_base) if config.time_features else None
        size = {} if config.memory_size is None else {"memory_size": config.memory_size}
        width = config.layer_size + config.time_features
        self.memory = make_memory(config.memory, width, config.memory_output_size, **size, **config.memory_options)
        self.after = nn.Linear(self.memory.output_size, config.layer_size)
        self.past = nn.Linear(width, config.layer_size, bias=False) if config.shortcut else None
        self.bends = config.memory_activation == "relu"
        for layer in (self.before, self.after):
            nn.init.orthogonal_(layer.weight)
        if self.past is not None:
            nn.init.orthogonal_(self.past.weight, FIRST_SHORTCUT)

    def initial_state(self, n: int, device: Any = None, generator: torch.Generator | None = None) -> TrunkState:
        device = self.before.weight.device if device is None else device
        memory = self.memory.initial_state(n, device=device, generator=generator)
        recent = self.before.weight.new_zeros(n, self.stack - 1, self.width, device=device) if self.stack > 1 else None
        return TrunkState(torch.zeros(n, dtype=torch.int64, device=device), memory, recent)

    def forward(self, x: Tensor, state: TrunkState, reset: Tensor, **promises: bool) -> tuple[Tensor, TrunkState]:
        """x [N, T, F], reset [N, T] -> [N, T, layer_size]. promises: see `Memory.through`."""
        time, last = _times(state.time, reset)
        x, recent = self._embed(x, time, state.recent)
        y, memory = self.memory.through(self.after, x, state.memory, reset, **promises)
        return self._join(y, x), TrunkState(last, memory, recent)

    def step(self, x: Tensor, state: TrunkState, reset: Tensor, folded: Any = None) -> tuple[Tensor, TrunkState]:
        """x [N, F], reset [N] -> [N, layer_size]. folded: of `Memory.fold`, with the layer behind the memory or more."""
        time = state.time.masked_fill(reset, 0)
        x, recent = self._embed(x[:, None], time[:, None], state.recent)
        x = x[:, 0]
        if folded is None:
            y, memory = self.memory.step(x, state.memory, reset)
            y = self.after(y)
        else:
            y, memory = self.memory.step_through(folded, x, state.memory, reset)
        return self._join(y, x), TrunkState(time + 1, memory, recent)

    def _embed(self, x: Tensor, time: Tensor, recent: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the memory sees, [N, T, layer_size + time_features]; and `TrunkState.recent` after these steps."""
        seen = x = self.encoder(x)
        if self.time is not None:
            x = self.time(x, time)
        if recent is not None:
            x, recent = _stack(x, seen, time, recent)
        x = F.relu(self.before(x))
        return x if self.clock is None else torch.cat([x, self.clock(time).to(x.dtype)], -1), recent

    def _join(self, y: Tensor, x: Tensor) -> Tensor:
        y = y if self.past is None else y + self.past(x)
        return F.relu(y) if self.bends else y


class ActorCritic(nn.Module):
    """Policy and value with a memory. `forward` takes sequences, `step` single steps; the two agree."""

    value_scale: Tensor

    def __init__(self, input_size: int, actions: Actions, config: NetworkConfig, images: tuple[Image, ...] = (),
                 numbers: tuple[tuple[int, int], ...] = (), baseline: bool = False):
        """numbers: (start, stop) ranges of the features that `normalize_observations` is about. baseline: see `Outputs.expected`."""
        super().__init__()
        self.config, self.actions, self.input_size = config, actions, input_size
        self.normalizer = Normalizer(input_size, numbers) if config.normalize_observations and numbers else None
        self.trunk = Trunk(input_size, images, config)
        self.critic_trunk = Trunk(input_size, images, config) if config.separate_memories else None
        self.actor = _head(config, actions.inputs, config.actor_init)
        self.critic = _head(config, 1)
        self.register_buffer("value_scale", torch.ones(()))      # scale of the critic's output
        self.baseline = nn.Linear(config.layer_size, 1) if baseline else None
        if self.baseline is not None:
            nn.init.zeros_(self.baseline.weight)
            nn.init.zeros_(self.baseline.bias)
        self.folded: Folded | None = None

    def initial_state(self, n: int, device: Any = None, generator: torch.Generator | None = None) -> NetworkState:
        critic = None if self.critic_trunk is None else self.critic_trunk.initial_state(n, device, generator)
        return NetworkState(self.trunk.initial_state(n, device, generator), critic)

    def forward(self, x: Tensor, state: NetworkState, reset: Tensor, mask: Tensor | None = None,
                **promises: bool) -> Outputs:
        """x [N, T, F], reset [N, T] bool, mask [N, T, A] of allowed actions -> distributions [N, T, D], values [N, T] and so on.

        promises: `resets_only_at_start` and `starts_fresh`, see `Memory.through`.
        """
        x = x if self.normalizer is None else self.normalizer(x)
        y, actor = self.trunk(x, state.actor, reset, **promises)
        z, critic = (y, None) if self.critic_trunk is None else self.critic_trunk(x, state.critic, reset, **promises)
        if z is y and self.config.head_activation == "none":
            weight, bias = _multiplied(self.actor, self.critic)                      # linear heads: one product for both
            logits, value = F.linear(y, weight, bias).split([self.actions.inputs, 1], -1)
        else:
            logits, value = self.actor(y), self.critic(z)
        return Outputs(self.actions.parameters_of(logits, mask), value[..., 0] * self.value_scale, NetworkState(actor, critic),
                       self._expect(y))

    @torch.no_grad()
    def rescale_values(self, scale: Tensor) -> None:
        """Change `value_scale`, and the critic's last layer with it, so that no value changes."""
        ratio = self.value_scale / scale
        for parameter in self.critic[-1].parameters():
            parameter.mul_(ratio)
        self.value_scale.copy_(scale)

    @contextlib.contextmanager
    def steady(self) -> Iterator[None]:
        """Within a `with` block, in which no weight may change, `step` takes a shorter way on a GPU. For steps without gradients."""
        device = self.value_scale.device.type
        if device in FOLDS and self.config.head_activation == "none" and self.critic_trunk is None:
            with torch.no_grad():
                self.folded = self._fold()
        try:
            yield
        finally:
            self.folded = None

    def _fold(self) -> Folded:
        weight, bias = _multiplied(self.actor, self.critic)
        after, memory = self.trunk.after, self.trunk.memory
        if self.trunk.bends or self.trunk.past is not None or self.baseline is not None:
            return Folded(memory.fold(after.weight, after.bias), (weight, bias))
        return Folded(memory.fold(weight @ after.weight, F.linear(after.bias, weight, bias)), None)

    def step(self, x: Tensor, state: NetworkState, reset: Tensor, mask: Tensor | None = None) -> Outputs:
        """The same for one step: x [N, F], reset [N]."""
        x = x if self.normalizer is None else self.normalizer(x)
        if self.folded is not None:
            y, actor = self.trunk.step(x, state.actor, reset, self.folded.read)
            outputs = y if self.folded.heads is None else F.linear(y, *self.folded.heads)
            logits, value = outputs.split([self.actions.inputs, 1], -1)
            return Outputs(self.actions.parameters_of(logits, mask), value[..., 0] * self.value_scale, NetworkState(actor, None),
                           self._expect(y))
        y, actor = self.trunk.step(x, state.actor, reset)
        z, critic = (y, None) if self.critic_trunk is None or state.critic is None else self.critic_trunk.step(x, state.critic, reset)
        value = self.critic(z)[..., 0] * self.value_scale
        return Outputs(self.actions.parameters_of(self.actor(y), mask), value, NetworkState(actor, critic), self._expect(y))

    def _expect(self, y: Tensor) -> Tensor | None:
        return None if self.baseline is None else self.baseline(y.detach())[..., 0]


class Encoder(nn.Module):
    """Features [..., F] -> [..., width]: images through a small CNN, then a linear layer and a layer norm on everything."""

    def __init__(self, input_size: int, images: tuple[Image, ...], width: int):
        super().__init__()
        self.images = images
        self.nets = nn.ModuleList(small_cnn(image) for image in images)
        covered = sorted((image.offset, image.offset + _count(image.shape)) for image in images)
        self.plain = [(a, b) for a, b in zip([0, *(e for _, e in covered)], [*(s for s, _ in covered), input_size], strict=True) if b > a]
        size = sum(b - a for a, b in self.plain) + IMAGE_FEATURES * len(images)
        self.linear, self.width = nn.Linear(size, width), width
        nn.init.orthogonal_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.images:
            parts = [x[..., a:b] for a, b in self.plain]
            parts += [encode_image(net, image, x) for image, net in zip(self.images, self.nets, strict=True)]
            x = torch.cat(parts, -1)
        return F.layer_norm(self.linear(x), (self.width,))


class Sines(nn.Module):
    """Sines of the steps since the episode began. The slowest has a period of about 2 pi `base`. Steps past LONGEST look like the last."""

    table: Tensor

    def __init__(self, width: int, base: int):
        super().__init__()
        i = torch.arange((width + 1) // 2, dtype=torch.float64)
        angle = torch.arange(LONGEST, dtype=torch.float64)[:, None] * base ** (-2 * i / width)
        self.register_buffer("table", torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :width].float(), persistent=False)

    def forward(self, time: Tensor) -> Tensor:
        return F.embedding(time.clamp(max=LONGEST - 1), self.table)


class TimeEncoding(nn.Module):
    """Mixes these sines into features: (1 - s) x + s sines, with s learned, between 0 and 1."""

    def __init__(self, width: int, base: int):
        super().__init__()
        self.sines = Sines(width, base)
        self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        share = self.share.clamp(0, 1)
        return x * (1 - share) + self.sines(time).to(x.dtype) * share


FOLDS = ("cuda",)        # devices on which `ActorCritic.steady` multiplies out; elsewhere it acts bit for bit as a trained policy does
FIRST_SHORTCUT = 0.1     # scale of the shortcut's first weights: at 1 the memory is drowned out, and recall is learned late or not at all
LONGEST = 8192           # steps of an episode that the time encoding can tell apart
IMAGE_FEATURES = 100     # outputs of the CNN
MOST_DENSE = 1 << 17     # entries of a convolution written as a matrix


def encode_image(net: nn.Module, image: Image, x: Tensor) -> Tensor:
    """The CNN's features [..., IMAGE_FEATURES] of an image among features [..., F]."""
    flat = x[..., image.offset:image.offset + _count(image.shape)].reshape(-1, *image.shape)
    return net(flat if image.channels_first else flat.permute(0, 3, 1, 2)).view(*x.shape[:-1], IMAGE_FEATURES)


class TinyConv(nn.Conv2d):
    """A convolution of stride 1 without padding. On a GPU it is one matrix product per image batch: for images of a few pixels, cuDNN takes
    ten times as long, above all for the gradient of the weights.
    """

    places: Tensor

    def __init__(self, channels: int, depth: int, kernel: int, height: int, width: int):
        super().__init__(channels, depth, kernel)
        rows, columns = height - kernel + 1, width - kernel + 1
        self.sizes = height * width, rows, columns
        self.dense = height * width * rows * columns * channels * depth <= MOST_DENSE
        if not self.dense:
            return
        place = torch.zeros(kernel, kernel, height, width, rows, columns)      # 1 where a weight joins an input and an output pixel
        i, j, r, c = torch.meshgrid(*(torch.arange(n) for n in (kernel, kernel, rows, columns)), indexing="ij")
        place[i, j, r + i, c + j, r, c] = 1.0
        self.register_buffer("places", place.view(kernel * kernel, height * width * rows * columns), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        pixels, rows, columns = self.sizes
        if not (x.is_cuda and self.dense):
            return super().forward(x)
        weight = self.weight.view(self.out_channels * self.in_channels, -1) @ self.places
        weight = weight.view(self.out_channels, self.in_channels, pixels, -1).permute(1, 2, 0, 3)
        weight = weight.reshape(self.in_channels * pixels, -1)                                       # [inputs, outputs]
        assert self.bias is not None
        y = torch.addmm(self.bias.repeat_interleave(rows * columns), x.flatten(1), weight)
        return y.view(-1, self.out_channels, rows, columns)


def small_cnn(image: Image) -> nn.Module:
    """Two 2 x 2 convolutions for tiny images; larger ones are halved by strided convolutions first."""
    channels, height, width = image.shape if image.channels_first else (image.shape[2], *image.shape[:2])
    layers: list[nn.Module] = []
    depth = 16
    while min(height, width) > 12:
        layers += [nn.Conv2d(channels, depth, 3, stride=2, padding=1), nn.ReLU()]
        channels, depth, height, width = depth, min(2 * depth, 64), (height + 1) // 2, (width + 1) // 2
    for depth in (8, 16) if not layers else (64,):
        kernel = min(2, height, width)
        layers += [TinyConv(channels, depth, kernel, height, width), nn.ReLU()]
        channels, height, width = depth, height - kernel + 1, width - kernel + 1
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, IMAGE_FEATURES))


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _multiplied(*heads: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of linear heads of two layers each, multiplied out and side by side."""
    weights = [last.weight @ first.weight for first, last in heads]
    biases = [F.linear(first.bias, last.weight, last.bias) for first, last in heads]
    return torch.cat(weights), torch.cat(biases)


def _head(config: NetworkConfig, outputs: int, scale: float = 0.01) -> nn.Sequential:
    first, last = nn.Linear(config.layer_size, config.head_size), nn.Linear(config.head_size, outputs)
    nn.init.orthogonal_(first.weight)
    nn.init.normal_(last.weight, 0.0, scale)
    if config.head_activation == "none":
        return nn.Sequential(first, last)
    return nn.Sequential(first, nn.ReLU() if config.head_activation == "relu" else nn.Tanh(), last)


def _stack(x: Tensor, seen: Tensor, time: Tensor, recent: Tensor) -> tuple[Tensor, Tensor]:
    """x [N, T, E] beside earlier steps of `seen` [N, T, E] in the same episode, zero where there are none; and the latest of `seen`."""
    before, T = recent.shape[1], x.shape[1]
    past = torch.cat([recent.to(seen.dtype), seen], 1)
    lags = [torch.where((time >= lag)[..., None], past[:, before - lag:before - lag + T], 0.0) for lag in range(1, before + 1)]
    age = torch.arange(before - 1, -1, -1, device=time.device)                  # of the latest ones, at the last step
    latest = torch.where((time[:, -1:] >= age)[..., None], past[:, T:], 0.0)
    return torch.cat([x, *lags], -1), latest.detach()


def _times(start: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
    """Steps since the episode began, for every step [N, T], and the count after the last [N]."""
    i = torch.arange(reset.shape[1], device=reset.device)
    begun = torch.where(reset, i, -1).cummax(1).values                       # index of the latest reset so far, or -1
    time = torch.where(begun >= 0, i - begun, start[:, None] + i)
    return time, time[:, -1] + 1
