"""One acting step of a policy as a function of named tensors alone, for programs that run elsewhere: see `export`.

Everything that the policy carries from step to step lies in one tensor, `state` [N, S]: floats first, then integers, each as four 16-bit
pieces that a float holds exactly. It starts as zeros, with `reset` true at the first step: a reset brings the memory's own initial state,
whatever the state was. Only the counter that draws SHM's random rows keeps running, and 0 is as good a start for it as any other number.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import states
from ..envs.foreign.spaces import STORED, choices
from ..envs.spaces import describe, leaves
from .policy import Policy, PolicyState

PIECES = (0, 16, 32, 48)      # shifts of the pieces of an integer


class Port(NamedTuple):
    """An input or output of a step. Every one has the envs, N, as its first axis."""

    name: str
    shape: tuple[int, ...]        # without N
    dtype: torch.dtype
    meaning: str

    @property
    def kind(self) -> str:
        """The dtype's name, as numpy has it."""
        return str(self.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        return f"{self.name} [{', '.join(['N', *map(str, self.shape)])}] {self.kind}"


class Step(nn.Module):
    """Called with a dict of tensors by name, `inputs`; returns the next state, the action and what it was chosen from, `outputs`.

    mask: with an input for allowed actions. noise: with one for random numbers, so that actions can be drawn; zeros give the most likely.
    """

    def __init__(self, policy: Policy, *, mask: bool = False, noise: bool = False):
        super().__init__()
        self.network = policy.network
        self.policy = policy
        self.layout = Layout(policy)
        space, actions = policy.observation_space, policy.agent.actions
        sizes = choices(policy.action_space)
        if mask and not sizes:
            raise ValueError("mask needs Discrete or MultiDiscrete actions, but those of the policy are "
                             f"{policy.action_space}; leave it out")
        ports = []
        self.paths: dict[str, tuple[Any, ...]] = {}      # of observations, by input
        for path, leaf in leaves(space):
            name = ".".join(["obs", *map(str, path)])
            self.paths[name] = path
            dtype = np.dtype(leaf.dtype).name
            stored = torch.as_tensor(np.zeros((), STORED.get(dtype, dtype))).dtype
            ports.append(Port(name, tuple(leaf.shape or ()), stored, f"the observation, {describe(leaf)}"))
        self.masks = [name for name, path in self.paths.items() if sizes and path[:1] == ("action_mask",)] or (["mask"] if mask else [])
        ports.append(Port("reset", (), torch.bool, "true: the observation opens a new episode"))
        if policy.sees_reward:
            ports.append(Port("reward", (), torch.float32, "the reward of the previous step"))
        if self.masks == ["mask"]:
            ports.append(Port("mask", (sum(sizes),), torch.bool, "true: the action is allowed; at least one must be"))
        if noise:
            random = actions.noise(1)[0]
            kind = "Gumbel" if sizes else "normal"
            ports.append(Port("noise", tuple(random.shape), random.dtype, f"{kind} random numbers; zeros give the most likely action"))
        ports.append(Port("state", (self.layout.size,), self.layout.dtype, "what the policy remembers; zeros at the start"))
        self.inputs = ports
        with torch.no_grad():
            found = self({port.name: example(port, 1) for port in ports})
        self.outputs = [Port(name, tuple(x.shape[1:]), x.dtype, MEANINGS.get(name, "")) for name, x in found.items()]

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        policy, n = self.policy, given["reset"].shape[0]
        for name, x in given.items():      # torch.export learns from this that all of them have the same N
            if x.shape[0] != n:
                raise ValueError(f"{name} must have {n} rows like reset, got {list(x.shape)}")
        state, first = self.layout.unpack(given["state"]), given["reset"]
        obs = _tree(policy.observation_space, {path: given[name] for name, path in self.paths.items()})
        mask = torch.cat([given[name].flatten(1) for name in self.masks], 1) != 0 if self.masks else None
        features = policy.inputs(obs, state.action, first, given.get("reward"))
        features = features.to(next(self.network.parameters()).dtype)
        actions, noise = policy.agent.actions, given.get("noise")
        noise = noise if noise is None else noise.to(features.dtype)
        action, network, extras = policy.agent.act(features, state.network, first, mask, noise)
        taken = actions.to_env(action).to(policy.inputs.action_dtype)
        more = {name: x for name, x in extras.items() if name != "dist"}
        dist = actions.named(extras["dist"]) if "dist" in extras else {}
        return {"action": taken, **dist, **more, "next_state": self.layout.pack(PolicyState(network, taken))}


MEANINGS = {
    "action": "for the env, as policy.act returns it",
    "logits": "log-probabilities of the actions", "mean": "of the normal distribution, in the units of the policy",
    "log_std": "logarithm of its standard deviation", "value": "the critic's estimate of the return",
    "next_state": "`state` of the next step",
}


class Layout:
    """How a policy's states lie in a vector. Parts that acting never changes are left out, such as the memory of SAC's critics."""

    def __init__(self, policy: Policy):
        self.like = policy.initial_state(1)
        after = _after_a_step(policy, self.like)
        parts = states.tensors(self.like)
        self.kept = [old is not new and old.numel() > 0 for old, new in zip(parts, states.tensors(after), strict=True)]
        kept = [x for x, is_kept in zip(parts, self.kept, strict=True) if is_kept]
        self.dtype = torch.float64 if any(x.dtype in (torch.float64, torch.complex128) for x in kept) else torch.float32
        self.floats, self.integers = _sorted(kept)
        self.sizes = [x[0].numel() * (2 if x.is_complex() else 1) for x in self.floats]
        self.counts = [x[0].numel() for x in self.integers]
        self.size = sum(self.sizes) + len(PIECES) * sum(self.counts)

    def pack(self, state: PolicyState) -> Tensor:
        """state -> [N, S]."""
        floats, integers = _sorted([x for x, kept in zip(states.tensors(state), self.kept, strict=True) if kept])
        floats = [torch.view_as_real(x) if x.is_complex() else x for x in floats]
        found = [x.reshape(x.shape[0], size).to(self.dtype) for x, size in zip(floats, self.sizes, strict=True)]
        if integers:
            words = torch.cat([x.reshape(x.shape[0], -1).to(torch.int64) for x in integers], dim=1)[..., None]
            pieces = torch.bitwise_right_shift(words, torch.tensor(PIECES, device=words.device)) & 0xFFFF
            found.append(pieces.flatten(1).to(self.dtype))
        return torch.cat(found, dim=1)

    def unpack(self, vector: Tensor) -> PolicyState:
        """The inverse of `pack`."""
        n, split = vector.shape[0], sum(self.sizes)
        floats = iter([_shaped(x, like) for x, like in zip(_cut(vector, self.sizes), self.floats, strict=True)])
        integers: Any = iter(())
        if self.integers:
            pieces = vector[:, split:].unflatten(1, (sum(self.counts), len(PIECES))).to(torch.int64)
            words = torch.bitwise_left_shift(pieces, torch.tensor(PIECES, device=vector.device)).sum(-1)      # of disjoint bits
            integers = iter([_shaped(x, like) for x, like in zip(_cut(words, self.counts), self.integers, strict=True)])
        kept = iter(self.kept)

        def part(like: Tensor) -> Tensor:
            if not next(kept):
                return like.expand(n, *like.shape[1:])
            return next(floats if _is_float(like) else integers)

        return states.apply(part, self.like)


def example(port: Port, n: int) -> Tensor:
    """An input of zeros, or of all true."""
    return torch.full((n, *port.shape), port.dtype == torch.bool, dtype=port.dtype)


def _is_float(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _sorted(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Those of floats, and those of integers."""
    return [x for x in tensors if _is_float(x)], [x for x in tensors if not _is_float(x)]


def _cut(x: Tensor, sizes: list[int]) -> list[Tensor]:
    """Columns of x, `sizes` of them each, from the first on. torch.export cannot load a split into no parts."""
    return [x[:, end - size:end] for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]


def _shaped(x: Tensor, like: Tensor) -> Tensor:
    if like.is_complex():
        return torch.view_as_complex(x.to(states.REAL[like.dtype]).reshape(x.shape[0], *like.shape[1:], 2))
    return x.to(like.dtype).reshape(x.shape[0], *like.shape[1:])


@torch.no_grad()
def _after_a_step(policy: Policy, state: PolicyState) -> PolicyState:
    """The state after some step: what acting never changes is the very same tensor."""
    n = state.action.shape[0]
    features = torch.zeros(n, policy.inputs.size, dtype=next(policy.network.parameters()).dtype, device=policy.device)
    first = torch.zeros(n, dtype=torch.bool, device=policy.device)
    acted = policy.agent.act(features, state.network, first)
    return PolicyState(acted.state, policy.agent.actions.to_env(acted.action).to(policy.inputs.action_dtype))


def _tree(space: Any, found: dict[tuple[Any, ...], Tensor], path: tuple[Any, ...] = ()) -> Any:
    """Leaves by path -> an observation of the space."""
    if path in found:
        return found[path]
    inner = getattr(space, "spaces", {})
    if isinstance(inner, tuple | list):
        return tuple(_tree(x, found, (*path, i)) for i, x in enumerate(inner))
    return {name: _tree(x, found, (*path, name)) for name, x in inner.items()}
