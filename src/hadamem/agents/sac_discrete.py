"""SAC for discrete actions: expectations over all actions take the place of samples. The rest is in `sac`."""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import Tensor

from .agent import AgentSpec, Sequences
from .distributions import make_actions
from .sac import SAC, detached, entries, mean_over, see
from .sac_networks import SACNetwork, Seen

LEAST = -100.0      # log-probability of actions that a mask forbids: their share of any mean is 0


class SACDiscrete(SAC):
    """SAC with a value for each action. MultiDiscrete actions are one choice among all combinations."""

    def make_network(self, spec: AgentSpec) -> SACNetwork:
        if not isinstance(spec.action_space, (spaces.Discrete, spaces.MultiDiscrete)):
            fix = "use agent 'sac'" if isinstance(spec.action_space, spaces.Box) else "convert them in a wrapper of the env"
            raise ValueError(f"agent 'sac-discrete' needs Discrete or MultiDiscrete actions, but those of the env are "
                             f"{spec.action_space}; {fix}")
        actions = make_actions(spec.action_space, joint=True)
        return SACNetwork(spec, actions, q_outputs=actions.inputs, action_size=0)

    def usual_entropy(self) -> float:
        return 0.5 * math.log(max(2, self.actions.width))

    def random_action(self, noise: Tensor, mask: Tensor | None) -> Tensor:
        return self.actions.uniform(noise, mask)

    def critic_loss(self, batch: Sequences, now: Seen, later: Seen, dist: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """As in SAC, with the value of entry t + 1 as the mean of min Q' - alpha log pi over all actions."""
        with torch.no_grad():
            q_later = self.target.heads(entries(later, 1, None)).amin(0)                        # [B, L, A]
            log_pi = dist[:, 1:].clamp(min=LEAST)
            value = (log_pi.exp() * (q_later - self.ent_coef * log_pi)).sum(-1)
            target = self._target(batch, value)
        q = self.network.critic.heads(entries(now, 0, -1))                                      # [2, B, L, A]
        taken = q.gather(-1, batch.action.expand(2, *batch.action.shape))[..., 0]
        return self._errors(taken, target, batch)

    def actor_loss(self, features: Tensor, batch: Sequences, seen: Seen, dist: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of alpha log pi - min Q over all actions, and of log pi."""
        with torch.no_grad():
            now = seen if self.shared else see(self.network.critic, features, batch)
            q = self.network.critic.heads(detached(entries(now, 0, -1))).amin(0)               # [B, L, A]
        log_pi = dist[:, :-1].clamp(min=LEAST)
        pi, weight = log_pi.exp(), self._weight(batch)
        loss = mean_over((pi * (self.ent_coef * log_pi - q)).sum(-1), weight)
        return loss, mean_over((pi * log_pi).sum(-1).detach(), weight)

    def draw_noise(self, updates: int, generator: torch.Generator) -> Tensor:
        """None is needed."""
        return torch.zeros(updates, 1, device=generator.device)
