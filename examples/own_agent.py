"""Your own algorithm: REINFORCE with a memory, from the class to a trained agent.

    python examples/own_agent.py                     # trains for about half a minute on one core

All that hadamem needs is a subclass of `Agent`: settings, how it acts, and how it learns from a rollout. Collection, checkpoints, resuming,
evaluation, the progress view and the command line work with it as they do with PPO. In this folder:

    hadamem train --agent own_agent:Reinforce --env popgym/RepeatPreviousEasy --memory gru --gamma 0 --steps 400_000 --name mine
    hadamem train --resume --name mine --steps 500_000 --trust      # the run's files name own_agent:Reinforce, and may be imported
    hadamem eval mine --trust
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import hadamem as hm
from hadamem.agents import Acted, Agent, make_actions
from hadamem.agents.networks import Trunk
from hadamem.agents.optimizers import Adam
from hadamem.agents.returns import compute_gae


@dataclass(frozen=True)
class ReinforceConfig:
    learning_rate: float = 3e-3
    gamma: float = 0.99              # discount factor
    ent_coef: float = 0.01           # weight of the entropy bonus


class Policy(nn.Module):
    def __init__(self, spec, actions):
        super().__init__()
        self.trunk = Trunk(spec.input_size, spec.images, spec.network)      # encoder, time encoding, memory
        self.head = nn.Linear(spec.network.layer_size, actions.inputs)
        self.actions = actions                                              # may have parameters: a standard deviation, for a Box

    def initial_state(self, n, device=None, generator=None):
        return self.trunk.initial_state(n, device, generator)


class Reinforce(Agent):
    """REINFORCE with a memory: one gradient step per rollout, on returns minus their mean."""

    Config = ReinforceConfig
    shown = {"loss": "loss", "entropy": "entropy"}      # noqa: RUF012
    saved = ("network", "adam")

    def __init__(self, spec, device="cpu"):
        self.config, self.actions = spec.config, make_actions(spec.action_space)
        self.network = Policy(spec, self.actions).to(device)
        self.adam = Adam(self.network, self.config.learning_rate)

    def act(self, features, state, first, mask=None, noise=None):
        y, state = self.network.trunk.step(features, state, first)
        dist = self.actions.parameters_of(self.network.head(y), mask)
        return Acted(self.actions.mode(dist) if noise is None else self.actions.sample(dist, noise), state, {})

    def learn(self, source, progress, generator):
        r = source.rollout
        zero = torch.zeros_like(r.reward)
        returns = compute_gae(r.reward, zero, r.done, None, zero[:, 0], self.config.gamma, 1.0)
        weight = (returns - returns.mean()) / returns.std().clamp(min=1e-3)
        y, _ = self.network.trunk(r.features(), r.state, r.first)                # the same steps, from the same state
        dist = self.actions.parameters_of(self.network.head(y), r.mask)
        entropy = self.actions.entropy(dist).mean()
        loss = -(self.actions.log_prob(dist, r.action) * weight).mean() - self.config.ent_coef * entropy
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.adam.parameters, 0.5)
        self.adam.step()
        return {"loss": loss, "entropy": entropy}


if __name__ == "__main__":
    hm.agents.register_agent("reinforce", Reinforce)
    for memory in ("gru", "none"):      # each reward depends on one action: gamma is 0
        run = hm.train("popgym/RepeatPreviousEasy", memory, agent="reinforce", total_steps=400_000, num_envs=32, memory_size=32, gamma=0.0)
        print(f"{memory}: return {run.summary()['return']:.2f}")      # 0.99 with memory, -0.5 without
