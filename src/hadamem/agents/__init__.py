"""Agents with memory: the algorithms, and the networks and action distributions they share.

`AGENTS` maps names to algorithms. `agent.py` says what an algorithm must provide.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import lookup
from ..names import did_you_mean
from .agent import Acted, Agent, AgentSpec, Progress, ReplaySource, ReplaySpec, Rollout, Sequences, Source
from .distributions import Actions, make_actions
from .networks import ActorCritic, Image, NetworkConfig, NetworkState
from .ppo import PPO, PPOConfig
from .sac import SAC, SACConfig
from .sac_discrete import SACDiscrete
from .sac_networks import SACNetworkConfig

AGENTS: dict[str, type[Agent]] = {
    "ppo": PPO,
    "sac": SAC,
    "sac-discrete": SACDiscrete,
}
DEFAULT_AGENT = "ppo"


def find_agent(name: str) -> type[Agent]:
    """The class behind a name of `AGENTS`, or behind "package.module:Class"."""
    if not isinstance(name, str):
        raise ValueError(f"agent must be a name such as 'ppo', got {name!r}")
    if name in AGENTS:
        return AGENTS[name]
    if ":" in name:
        found = lookup.load(name)
        _check(name, found)
        lookup.require(name, found, (Agent,), "hadamem.agents.Agent")
        return found
    raise ValueError(f"unknown agent {name!r};{did_you_mean(name, AGENTS)} choose from {', '.join(AGENTS)}; your own is "
                     "package.module:Class, or a name passed to hadamem.agents.register_agent")


def register_agent(name: str, agent: type[Agent]) -> None:
    """Register an algorithm under a name: `hm.train(env, agent="mine")`, `hadamem train --agent mine`."""
    _check(name, agent)
    if AGENTS.get(name, agent).__qualname__ != agent.__qualname__:      # a notebook may run a cell twice
        raise ValueError(f"agent {name!r} is {AGENTS[name].__qualname__} already; choose another name")
    AGENTS[name] = agent


def section_of(name: str) -> str:
    """The section of a run's settings that belongs to an agent: "ppo" for PPO."""
    agent = find_agent(name)
    return agent.section or agent.__name__.lower()


def _check(name: str, agent: Any) -> None:
    if not (isinstance(agent, type) and issubclass(agent, Agent)):
        raise TypeError(f"agent {name!r} must be a subclass of hadamem.agents.Agent, got {agent!r}")
    missing = sorted(agent.__abstractmethods__)
    if missing:
        raise TypeError(f"agent {name!r} must define {', '.join(missing)}; hadamem/agents/agent.py says what each does")
    if not dataclasses.is_dataclass(getattr(agent, "Config", None)):
        raise TypeError(f"agent {name!r} needs a dataclass with its settings: set {agent.__name__}.Config")


__all__ = ["AGENTS", "DEFAULT_AGENT", "PPO", "SAC", "Acted", "Actions", "ActorCritic", "Agent", "AgentSpec", "Image", "NetworkConfig",
           "NetworkState", "PPOConfig", "Progress", "ReplaySource", "ReplaySpec", "Rollout", "SACConfig", "SACDiscrete", "SACNetworkConfig",
           "Sequences", "Source", "find_agent", "make_actions", "register_agent", "section_of"]
