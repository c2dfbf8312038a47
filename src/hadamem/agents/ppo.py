"""Proximal policy optimisation for networks with memory: the settings, the loss, and one iteration's updates, in reading order.

A rollout is [N envs, T steps] with the flags of first steps and the network's state before step 0; a minibatch is a set of envs. Nothing
is padded and no episode is cut anew: the network walks through the same steps it acted on, from the same state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .actions import Actions
from .network import ActorCritic, NetworkState
from .returns import compute_gae


@dataclass(frozen=True)
class PPOConfig:
    """The defaults are those of the POPGym protocol, with the gradient norm clipped."""

    discount: float = 0.99
    trace: float = 1.0                       # lambda of the advantages; 1: the whole return minus the value
    epochs: int = 30
    minibatches: int = 8                     # per epoch; each a set of envs
    reshuffle: bool = True                   # draw the sets anew in every epoch; else only their order changes
    clip: float = 0.3                        # of the probability ratio
    kl_coefficient: float = 0.2              # of the penalty KL(old || new) at the start; 0: no penalty
    kl_target: float = 0.01                  # the coefficient grows above twice this KL and shrinks below half of it; 0: it stays
    kl_floor: float = 0.0                    # the coefficient does not shrink below this: near 0, a solved task can be unlearnt at a stroke
    value_coefficient: float = 1.0
    value_clip: float | None = 10.0          # limit of the squared error of the value; None: none. For returns of about 1, as POPGym's
    value_clip_range: float | None = None    # limit of the value's change from the one while acting (as other PPOs have it); None: none
    normalize_values: bool = False           # count the value's error in units of the returns' size, which is followed as it changes
    entropy_coefficient: float = 0.0
    learning_rate: float = 5e-5
    schedule: str = "constant"               # of the learning rate: constant, or linear (to 0 at the end of training)
    adam_eps: float = 1e-8
    max_grad_norm: float | None = 0.5        # None: gradients are not clipped
    normalize_advantages: str = "batch"      # over what advantages get mean 0 and deviation 1: batch (a rollout), minibatch, or none

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, wanted: str) -> None:
            if not ok:
                raise ValueError(f"ppo.{name} must be {wanted}, got {getattr(self, name)!r}")

        for name in ("discount", "trace"):
            check(name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        for name in ("epochs", "minibatches"):
            check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("clip", "learning_rate", "adam_eps"):
            check(name, getattr(self, name) > 0, "above 0")
        for name in ("kl_coefficient", "kl_target", "kl_floor"):
            check(name, getattr(self, name) >= 0, "0 or more")
        for name in ("max_grad_norm", "value_clip", "value_clip_range"):
            check(name, getattr(self, name) is None or getattr(self, name) > 0, "above 0, or None")
        for name in ("value_coefficient", "entropy_coefficient"):
            check(name, math.isfinite(getattr(self, name)), "a number")
        check("schedule", self.schedule in ("constant", "linear"), "'constant' or 'linear'")
        check("normalize_advantages", self.normalize_advantages in ("batch", "minibatch", "none"), "'batch', 'minibatch' or 'none'")


class Rollout(NamedTuple):
    """What was seen and done; every tensor has the envs first."""

    features: Tensor                  # [N, T, F]
    reset: Tensor                     # [N, T] bool: the step opens an episode
    action: Tensor                    # [N, T, factors]
    dist: Tensor                      # [N, T, width]: the distribution it was drawn from
    value: Tensor                     # [N, T]
    reward: Tensor                    # [N, T]
    done: Tensor                      # [N, T] bool: the step ended its episode
    bootstrap: Tensor | None          # [N, T]: the value of the final observation of episodes that were cut short
    last_value: Tensor                # [N]: of the observation after the last step
    state: NetworkState               # before step 0
    mask: Tensor | None = None        # [N, T, A] bool: actions that were allowed
    weight: Tensor | None = None      # [N, T]: 0 for steps that must not count; None: all count


class Batch(NamedTuple):
    """A rollout with its advantages and value targets [N, T]."""

    rollout: Rollout
    advantage: Tensor
    target: Tensor


STATISTICS = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clipped", "grad_norm", "skipped")


def advantages(rollout: Rollout, config: PPOConfig) -> Batch:
    """Advantages and targets; advantages have mean 0 and deviation 1 over the rollout if the settings say so."""
    advantage = compute_gae(rollout.reward, rollout.value, rollout.done, rollout.bootstrap, rollout.last_value,
                            config.discount, config.trace)
    target = advantage + rollout.value
    if config.normalize_advantages == "batch":
        advantage = _standardise(advantage, rollout.weight)
    return Batch(rollout, advantage, target)


def ppo_loss(actions: Actions, dist: Tensor, value: Tensor, batch: Batch, config: PPOConfig, kl_coefficient: Tensor | float,
             value_scale: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of new distributions [n, T, width] and values [n, T] on a batch, and what it is made of. Means over steps that count.

    value_scale: the unit in which errors of the value are counted; None: 1.
    """
    old, weight = batch.rollout, batch.rollout.weight
    advantage = _standardise(batch.advantage, weight) if config.normalize_advantages == "minibatch" else batch.advantage
    ratio = torch.exp(actions.log_prob(dist, old.action) - actions.log_prob(old.dist, old.action))
    policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage)
    error = (value - batch.target).square()
    if config.value_clip_range is not None:
        near = old.value + (value - old.value).clamp(-config.value_clip_range, config.value_clip_range)
        error = torch.maximum(error, (near - batch.target).square())
    if value_scale is not None:
        error = error / value_scale.square()
    if config.value_clip is not None:
        error = error.clamp(max=config.value_clip)
    parts = {
        "policy_loss": _mean(policy, weight), "value_loss": _mean(error, weight), "entropy": _mean(actions.entropy(dist), weight),
        "kl": _mean(actions.kl(old.dist, dist), weight), "clipped": _mean(((ratio - 1).abs() > config.clip).to(ratio.dtype), weight),
    }
    loss = parts["policy_loss"] + config.value_coefficient * parts["value_loss"] - config.entropy_coefficient * parts["entropy"]
    if config.kl_coefficient > 0:
        loss = loss + kl_coefficient * parts["kl"]
    return loss, {"loss": loss, **parts}


class PPO:
    """The network's optimiser, its settings, and what adapts while it learns. All of it lives on the network's device."""

    def __init__(self, network: ActorCritic, config: PPOConfig):
        self.network, self.config = network, config
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        device = self.parameters[0].device
        self.learning_rate = torch.tensor(config.learning_rate, dtype=torch.float32, device=device)
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.learning_rate, eps=config.adam_eps, fused=True,
                                          capturable=device.type == "cuda")
        self.kl_coefficient = torch.tensor(config.kl_coefficient, dtype=torch.float32, device=device)
        self.value_square = torch.zeros((), device=device)             # running mean square of the value targets; 0: none yet
        self.totals = torch.zeros(len(STATISTICS), device=device)      # of the updates since `begin`
        self.bad = torch.zeros((), device=device)                      # 1: the last update was not finite and was skipped
        self.optimizer.found_inf = self.bad                            # type: ignore[attr-defined]  # where 1, Adam leaves everything as it is
        self.optimizer.grad_scale = None                               # type: ignore[attr-defined]

    def loss(self, batch: Batch, whole: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the network as it is now, and its parts. whole: every sequence is exactly one episode."""
        rollout = batch.rollout
        dist, value, _ = self.network(rollout.features, rollout.state, rollout.reset, rollout.mask,
                                      resets_only_at_start=whole, starts_fresh=whole)
        scale = self.network.value_scale if self.config.normalize_values else None
        return ppo_loss(self.network.actions, dist, value, batch, self.config, self.kl_coefficient, scale)

    @torch.no_grad()
    def follow_values(self, target: Tensor) -> None:
        """Before an iteration's updates: let the critic's scale follow the root mean square of the value targets."""
        if self.config.normalize_values:
            now = target.square().mean()
            now = torch.where(torch.isfinite(now), now, self.value_square)
            self.value_square.copy_(torch.where(self.value_square > 0, torch.lerp(self.value_square, now, 0.1), now))
            self.network.rescale_values(self.value_square.sqrt().clamp(min=1e-3))

    def update(self, batch: Batch, whole: bool = False) -> None:
        """One gradient step on a minibatch; statistics are added to `totals`. Waits for nothing, so it fits into a CUDA graph."""
        loss, parts = self.loss(batch, whole)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        limit = float("inf") if self.config.max_grad_norm is None else self.config.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.parameters, limit, foreach=True)
        self.bad.copy_(~torch.isfinite(norm + loss.detach()))
        self.optimizer.step()
        with torch.no_grad():
            values = torch.stack([*(parts[name].detach() for name in STATISTICS[:-2]), norm.detach(), self.bad])
            self.totals.add_(torch.where(self.bad > 0, torch.zeros_like(values), values))
            self.totals[-1].add_(self.bad)

    def begin(self, progress: float) -> None:
        """Before an iteration's updates; progress: share of the training that is over."""
        self.totals.zero_()
        if self.config.schedule == "linear":
            self.learning_rate.fill_(self.config.learning_rate * max(0.0, 1.0 - progress))

    @property
    def sums(self) -> Tensor:
        """What `end` needs to know, in one tensor."""
        return torch.cat([self.totals, self.kl_coefficient[None]])

    def end(self, updates: int, sums: list[float] | None = None) -> dict[str, float]:
        """After them: their mean statistics, and the KL penalty adapted as RLlib does. sums: `self.sums` as fetched by the caller."""
        *means, skipped, coefficient = self.sums.tolist() if sums is None else sums
        done, facts = updates - round(skipped), {"kl_coefficient": coefficient, "skipped": skipped}
        if done < 1:
            return facts                             # nothing was measured, and nothing to adapt to
        stats = dict(zip(STATISTICS[:-1], (x / done for x in means), strict=True))
        target = self.config.kl_target
        if target and stats["kl"] > 2 * target:
            self.kl_coefficient.mul_(1.5)
        elif target and stats["kl"] < 0.5 * target:
            self.kl_coefficient.mul_(0.5).clamp_(min=self.config.kl_floor)
        return {**stats, **facts}


def minibatches(envs: int, config: PPOConfig, generator: torch.Generator) -> Iterable[Tensor]:
    """The envs of every minibatch of an iteration, in order: `epochs` times `minibatches` index tensors of equal size."""
    if envs % config.minibatches:
        raise ValueError(f"the number of envs ({envs}) must be a multiple of minibatches ({config.minibatches})")
    sets = torch.arange(envs).view(config.minibatches, -1)
    for _ in range(config.epochs):
        if config.reshuffle:
            sets = torch.randperm(envs, generator=generator).view(config.minibatches, -1)
        yield from sets[torch.randperm(config.minibatches, generator=generator)]


def _mean(x: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return x.mean()
    return torch.where(weight > 0, x * weight, 0.0).sum() / weight.sum().clamp(min=1)


def _standardise(x: Tensor, weight: Tensor | None) -> Tensor:
    mean = _mean(x, weight)
    return (x - mean) / _mean((x - mean).square(), weight).sqrt().clamp(min=1e-4)
