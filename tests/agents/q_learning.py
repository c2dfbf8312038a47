"""A small agent that learns from a replay: recurrent Q-learning with a target network, for tests of replays and their checkpoints."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from hadamem.agents import Acted, Agent, ReplaySpec, make_actions
from hadamem.agents.networks import Trunk
from hadamem.agents.optimizers import Adam


@dataclass(frozen=True)
class QConfig:
    learning_rate: float = 1e-3
    gamma: float = 0.9
    replay_size: int = 1024          # env steps
    sequence_length: int | None = None
    batch_size: int = 16             # sequences per update
    num_updates: int = 2             # per iteration
    epsilon: float = 0.1             # share of random actions


class QNetwork(nn.Module):
    def __init__(self, spec, actions):
        super().__init__()
        self.trunk = Trunk(spec.input_size, spec.images, spec.network)
        self.head = nn.Linear(spec.network.layer_size, actions.inputs)
        self.actions = actions

    def initial_state(self, n, device=None, generator=None):
        return self.trunk.initial_state(n, device, generator)


class QLearning(Agent):
    """Q-learning with a memory, from a replay of sequences."""

    Config = QConfig
    section = "q"
    shown = {"q": "Q"}      # noqa: RUF012
    saved = ("network", "target", "adam")

    def __init__(self, spec, device="cpu"):
        self.config, self.actions = spec.config, make_actions(spec.action_space)
        self.network = QNetwork(spec, self.actions).to(device)
        self.target = copy.deepcopy(self.network)
        self.adam = Adam(self.network, self.config.learning_rate)

    @property
    def replay(self):
        return ReplaySpec(self.config.replay_size, self.config.sequence_length)

    def act(self, features, state, first, mask=None, noise=None):
        y, state = self.network.trunk.step(features, state, first)
        return Acted(self.actions.mode(self.network.head(y)), state, {})

    def explore(self, features, state, first, mask, noise):
        greedy, state, _ = self.act(features, state, first)
        random = self.actions.mode(noise)                                         # the largest of equal noises
        return Acted(torch.where(torch.sigmoid(noise[:, :1]) < self.config.epsilon, random, greedy), state, {})

    def learn(self, source, progress, generator):
        if not len(source):      # fewer steps than a sequence has
            return {"q": torch.tensor(torch.nan), "loss": torch.tensor(torch.nan)}
        for _ in range(self.config.num_updates):
            batch = source.take(source.choose(self.config.batch_size, generator).to(self.adam.rate.device))
            features = batch.features()
            q = self.network.head(self.network.trunk(features, batch.state, batch.first)[0][:, :-1]).gather(-1, batch.action)[..., 0]
            with torch.no_grad():
                later = self.target.head(self.target.trunk(features, batch.state, batch.first)[0][:, 1:]).amax(-1)
                target = batch.reward + self.config.gamma * torch.where(batch.terminal, 0.0, later)
            loss = (q - target)[batch.valid].square().mean()
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
            for old, new in zip(self.target.parameters(), self.network.parameters(), strict=True):
                old.data.lerp_(new.data, 0.01)
        return {"q": q.mean(), "loss": loss}
