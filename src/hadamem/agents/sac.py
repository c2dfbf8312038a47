"""Soft actor-critic (SAC) with memory, for continuous actions, in the order in which things happen: settings, acting, losses, updates.

One iteration: N envs are stepped T times with the current policy, and the steps go into a replay. Then `updates_per_step` x N x T times, a
batch of sequences is drawn, and critics, actor, target critics and temperature take one step each. The networks run over whole sequences
from the state they had while acting, with resets where episodes begin.

Setting names are those of Stable-Baselines3, where it has them. `batch_size` counts sequences, not steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from ..cuda_graphs import Branch
from ..ranges import check_floats
from .agent import Acted, Agent, AgentSpec, Progress, ReplaySource, ReplaySpec, Sequences, Source
from .distributions import TanhGaussian, make_actions
from .optimizers import Adam, Flat
from .sac_networks import Critic, SACNetwork, SACNetworkConfig, SACState, Seen


@dataclass(frozen=True)
class SACConfig:
    """Settings of SAC."""

    learning_rate: float = 3e-4              # of Adam, for critics, actor and temperature
    gamma: float = 0.99                      # discount factor
    tau: float = 0.005                       # share of the critics that the target critics take over in an update
    replay_size: int = 1_000_000             # env steps to keep
    batch_size: int = 32                     # sequences per update
    sequence_length: int | None = None       # steps of a sequence; None: an episode if all have one length that fits a rollout, else 64
    burn_in: int = 0                         # first steps of a window that only warm up the memory, unless its episode began there
    stored_state: bool = True                # sequences start from the memory they had while acting; False: anywhere, from a fresh one
    updates_per_step: float = 0.25           # gradient updates per env step
    learning_starts: int = 1000              # env steps of random actions before learning begins
    catch_up: bool = False                   # make the updates of those steps, too, once learning begins
    random_scale: float = 1.0                # reach of the random actions, as a share of the action space; for boxes
    ent_coef: float | None = None            # weight of the entropy, the temperature; None: learned
    initial_ent_coef: float = 1.0            # where a learned temperature starts
    target_entropy: float | None = None      # aim of a learned temperature; None: minus the number of actions, or half of the largest
    max_grad_norm: float | None = None       # of critics and actor, each; None: gradients are not clipped
    actor_trains_memory: bool = True         # with a shared memory: the actor's loss trains it, too
    adam_eps: float = 1e-8                   # epsilon of Adam

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, wanted: str) -> None:
            if not ok:
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)!r}")

        check_floats(self)
        check("gamma", 0 <= self.gamma <= 1, "between 0 and 1")
        check("tau", 0 < self.tau <= 1, "above 0 and at most 1")
        for name in ("learning_rate", "adam_eps", "initial_ent_coef"):
            check(name, getattr(self, name) > 0, "above 0")
        for name in ("replay_size", "batch_size"):
            check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("learning_starts", "burn_in"):
            check(name, getattr(self, name) >= 0, "0 or more")
        check("updates_per_step", self.updates_per_step > 0, "above 0: updates per env step, such as 0.25")
        check("random_scale", 0 < self.random_scale <= 1, "above 0 and at most 1")
        check("ent_coef", self.ent_coef is None or self.ent_coef >= 0, "0 or more, or None to learn it")
        check("max_grad_norm", self.max_grad_norm is None or self.max_grad_norm > 0, "above 0, or None")
        check("sequence_length", self.sequence_length is None or self.sequence_length >= 1, "at least 1, or None")
        if self.sequence_length is not None and self.burn_in >= self.sequence_length:
            raise ValueError(f"burn_in must be less than sequence_length ({self.sequence_length}), got {self.burn_in}; lower it, or raise "
                             "sequence_length")


class Temperature(nn.Module):
    """The weight of the entropy, as its logarithm."""

    def __init__(self, start: float):
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(start)))


STATISTICS = ("critic_loss", "actor_loss", "q", "entropy", "grad_norm", "actor_grad_norm")      # means over an iteration's updates
CHUNK = 64         # updates whose random numbers are drawn at once


class SAC(Agent):
    """SAC for networks with memory. Subclasses with other actions replace `make_actions`, `critic_loss` and `actor_loss`."""

    Config = SACConfig
    Network = SACNetworkConfig
    section = "sac"
    shown: ClassVar = {"q": "Q", "ent_coef": "temperature", "entropy": "entropy"}
    rollout_steps = 16
    changeable = ("learning_rate", "gamma", "tau", "updates_per_step", "target_entropy", "max_grad_norm")
    graphs = ("update",)
    compiled = ("sample", "policy_of", "target_sees", "critic_sees", "critic_loss", "actor_loss")
    saved: tuple[str, ...] = ("network", "target", "temperature", "critic_adam", "actor_adam", "temperature_adam", "owed", "exploring")

    network: SACNetwork

    def __init__(self, spec: AgentSpec, device: torch.device | str = "cpu"):
        self.config: SACConfig = spec.config
        self.network = self.make_network(spec).to(device)
        self.actions: Any = self.network.actions
        self.shared = spec.network.shared_memory
        self.target: Critic = self.network.make_target()
        fixed = self.config.ent_coef is not None
        self.temperature = Temperature(self.config.initial_ent_coef).to(device)
        self.target_entropy = self.usual_entropy() if self.config.target_entropy is None else self.config.target_entropy
        rate, eps = self.config.learning_rate, self.config.adam_eps
        critics: nn.Module = self.network if self.shared else self.network.critic
        actor = nn.ModuleDict({"body": self.network.body, "heads": self.network.actor})
        self.critic_adam = Adam(critics, rate, eps)      # of everything, with a shared memory
        self.actor_adam = None if self.shared else Adam(actor, rate, eps)
        self.temperature_adam = None if fixed else Adam(self.temperature, rate, eps)
        if fixed:
            self.fixed_ent_coef = torch.tensor(float(self.config.ent_coef or 0.0), device=device)
        self.saved = tuple(name for name in type(self).saved if getattr(self, name, self) is not None)
        device = self.critic_adam.rate.device
        self.pairs: tuple[list[Tensor], list[Tensor]] = (list(self.target.parameters()), list(self.network.critic.parameters()))
        same = len(self.pairs[1]) == len(self.critic_adam.parameters)            # not with a shared memory, or parameters that are fixed
        self.flat_target = Flat(self.pairs[0]) if same and self.critic_adam.flat is not None else None
        self.owed = torch.zeros((), dtype=torch.float64)                        # updates that are due, with their fraction
        self.exploring = torch.tensor(self.config.learning_starts > 0, device=device)      # actions are random
        self.sums = torch.zeros(len(STATISTICS), device=device)                 # of STATISTICS, over the updates of this iteration
        self.skipped = torch.zeros((), device=device)                           # updates of this iteration that were not finite
        self.beside = Branch(device), Branch(device)

    def make_network(self, spec: AgentSpec) -> SACNetwork:
        if not isinstance(spec.action_space, spaces.Box):
            discrete = isinstance(spec.action_space, (spaces.Discrete, spaces.MultiDiscrete))
            raise ValueError(f"agent 'sac' needs continuous actions (a Box), but those of the env are {spec.action_space}; "
                             + ("use agent 'sac-discrete'" if discrete else "convert them in a wrapper of the env"))
        actions = make_actions(spec.action_space, squashed=True)
        assert isinstance(actions, TanhGaussian)
        if not actions.bounded:
            raise ValueError(f"agent 'sac' needs actions with bounds, but those of the env are {spec.action_space}; give its action space "
                             "finite bounds, or use agent 'ppo'")
        return SACNetwork(spec, actions, q_outputs=1, action_size=actions.factors)

    def usual_entropy(self) -> float:
        """The target entropy by default."""
        return -float(self.actions.factors)

    @property
    def replay(self) -> ReplaySpec:
        return ReplaySpec(self.config.replay_size, self.config.sequence_length, self.config.burn_in, self.config.stored_state)

    @property
    def ent_coef(self) -> Tensor:
        """The temperature, without gradient."""
        return self.temperature.log.detach().exp() if self.config.ent_coef is None else self.fixed_ent_coef

    # --- acting ----------------------------------------------------------------------------------------------------

    def act(self, features: Tensor, state: SACState, first: Tensor, mask: Tensor | None = None, noise: Tensor | None = None) -> Acted:
        seen, actor = self.network.body.step(features, state.actor, first)
        dist = self.network.policy(seen, mask)
        action = self.actions.mode(dist) if noise is None else self.actions.sample(dist, noise)
        return Acted(action, SACState(actor, state.critic), {"dist": dist})

    def explore(self, features: Tensor, state: SACState, first: Tensor, mask: Tensor | None, noise: Tensor) -> Acted:
        """At first, random actions. The critics' memory goes along, so that sequences can start from its state."""
        action, after, _ = self.act(features, state, first, mask, noise)
        random = self.random_action(noise, mask)
        critic = state.critic
        if self.network.critic.body is not None and self.network.critic.body.memory is not None:
            critic = self.network.critic.body.step(features, critic, first)[1]
        return Acted(torch.where(self.exploring, random, action), SACState(after.actor, critic), {})

    def random_action(self, noise: Tensor, mask: Tensor | None) -> Tensor:
        return self.config.random_scale * self.actions.uniform(noise, mask)

    # --- losses ----------------------------------------------------------------------------------------------------

    def policy_of(self, features: Tensor, batch: Sequences) -> tuple[Seen, Tensor]:
        """What the actor's body has seen in the sequences, and the distributions of actions [B, L + 1, D]."""
        seen, _ = self.network.body(features, batch.state.actor, batch.first, batch.whole)
        policy = seen if self.config.actor_trains_memory or not self.shared else detached(seen)
        return seen, self.network.policy(policy, batch.mask)

    @torch.no_grad()
    def target_sees(self, features: Tensor, batch: Sequences) -> Seen:
        """What the target critics' body has seen, where they have one of their own."""
        return see(self.target, features, batch)

    def critic_sees(self, features: Tensor, batch: Sequences) -> Seen:
        """What the critics' body has seen, where they have one of their own."""
        return see(self.network.critic, features, batch)

    def critic_loss(self, batch: Sequences, now: Seen, later: Seen, dist: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Both critics' squared errors, and the mean Q.

        now, later: from `critic_sees` and `target_sees`, or from `policy_of` with a shared memory; dist: from `policy_of`. The target of
        step t is r + gamma (1 - d) (min Q' - alpha log pi) of entry t + 1.
        """
        with torch.no_grad():
            action, log_prob = self.actions.sample_with_log_prob(dist[:, 1:], noise[:, 1:])
            value = self.target.heads(entries(later, 1, None), action)[..., 0].amin(0) - self.ent_coef * log_prob      # [B, L]
            target = self._target(batch, value)
        q = self.network.critic.heads(entries(now, 0, -1), batch.action)[..., 0]                                        # [2, B, L]
        return self._errors(q, target, batch)

    def actor_loss(self, features: Tensor, batch: Sequences, seen: Seen, dist: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """alpha log pi - min Q for the policy's actions, and the mean log pi."""
        action, log_prob = self.actions.sample_with_log_prob(dist[:, :-1], noise[:, :-1])
        with torch.no_grad():                            # the memory depends on earlier actions only, which are those of the replay
            now = seen if self.shared else see(self.network.critic, features, batch)
        q = self.network.critic.heads(detached(entries(now, 0, -1)), action, frozen=True)[..., 0].amin(0)
        weight = self._weight(batch)
        return mean_over(self.ent_coef * log_prob - q, weight), mean_over(log_prob.detach(), weight)

    def _target(self, batch: Sequences, value: Tensor) -> Tensor:
        return batch.reward + self.config.gamma * torch.where(batch.terminal, 0.0, value)

    def _errors(self, q: Tensor, target: Tensor, batch: Sequences) -> tuple[Tensor, Tensor]:
        weight = self._weight(batch)
        loss = mean_over((q - target).square().sum(0), weight)
        return 0.5 * loss if self.shared else loss, mean_over(q.detach().mean(0), weight)

    def _weight(self, batch: Sequences) -> Tensor:
        """[B, L]: 1 for steps that count."""
        valid = batch.valid
        if self.config.burn_in and not batch.whole:      # a memory that started afresh within the sequence needs no warming up
            warm = batch.first[:, :-1].cummax(1).values
            warm = warm | (torch.arange(valid.shape[1], device=valid.device) >= self.config.burn_in)
            valid = valid & warm
        return valid.to(batch.reward.dtype)

    # --- updates ---------------------------------------------------------------------------------------------------

    def attach(self, source: Source) -> None:
        replay = cast(ReplaySource, source)      # `self.replay` asked for one
        self.source, device = replay, self.sums.device
        self.rows = torch.zeros(CHUNK, self.config.batch_size, dtype=torch.int64, device=device)
        self.noise = self.draw_noise(CHUNK, torch.Generator(device))
        self.number = torch.zeros(1, dtype=torch.int64, device=device)          # of the update within its chunk

    def draw_noise(self, updates: int, generator: torch.Generator) -> Tensor:
        """Noise [updates, B, L + 1, K] of the policy's actions."""
        shape = updates, self.config.batch_size, self.source.length + 1
        return self.actions.noise(*shape, generator=generator, device=generator.device)

    def learn(self, source: Source, progress: Progress, generator: torch.Generator) -> dict[str, Tensor]:
        new = source.rollout.reward.numel()
        done, starts = progress.env_steps, self.config.learning_starts
        self.exploring.fill_(done + new < starts)
        ready = done >= starts and (self.source.steps >= starts or self.source.full) and len(source) > 0
        if ready or (done < starts and self.config.catch_up):
            self.owed += new * self.config.updates_per_step
        updates = int(self.owed + 1e-6) if ready else 0      # five times 19.2 is one less than 96 in floating point
        self.owed -= updates
        for adam in (self.critic_adam, self.actor_adam, self.temperature_adam):
            if adam is not None:
                adam.rate.fill_(self.config.learning_rate)
        self.sums.zero_()
        self.skipped.zero_()
        for begin in range(0, updates, CHUNK):
            count = min(CHUNK, updates - begin)
            self.rows[:count] = source.choose(count * self.config.batch_size, generator).view(count, -1).to(self.rows.device)
            draws = torch.Generator(self.rows.device).manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
            self.noise[:count] = self.draw_noise(count, draws)
            self.number.zero_()
            for _ in range(count):
                self.update()
        means = self.sums.double() / (updates - self.skipped)              # nan if there were none
        return {**dict(zip(STATISTICS, means, strict=True)), "ent_coef": self.ent_coef,
                "updates": torch.full_like(self.skipped, updates), "skipped": self.skipped}

    def update(self) -> None:
        """One step of everything, on the next sequences of `rows`. What is not finite is skipped."""
        limit = self.config.max_grad_norm
        batch, features, noise = self.sample()
        seen, dist, now, later = self.bodies(features, batch)
        loss, q = self.critic_loss(batch, now, later, dist, noise)
        if self.actor_adam is None:
            actor_loss, log_prob = self.actor_loss(features, batch, seen, dist, noise)
            norm = actor_norm = self.critic_adam.update(loss + actor_loss, limit)
            skipped = self.critic_adam.skip
        else:
            norm = self.critic_adam.update(loss, limit)
            actor_loss, log_prob = self.actor_loss(features, batch, seen, dist, noise)
            actor_norm = self.actor_adam.update(actor_loss, limit, self.critic_adam.skip)
            skipped = self.actor_adam.skip
        self.follow(self.config.tau * (1 - skipped))
        if self.temperature_adam is not None:
            off = torch.where(skipped > 0, 0.0, log_prob + self.target_entropy)
            self.temperature_adam.update(-self.temperature.log.exp() * off, None, skipped)
        with torch.no_grad():
            values = torch.stack([loss, actor_loss, q, -log_prob, norm, actor_norm])
            self.sums.add_(torch.where(skipped > 0, torch.zeros_like(values), values))
            self.skipped.add_(skipped)
            self.number.add_(1)

    def bodies(self, features: Tensor, batch: Sequences) -> tuple[Seen, Tensor, Seen, Seen]:
        """`policy_of`, and what critics and target critics have seen. On a GPU, actor and targets run beside the critics."""
        if self.shared:
            seen, dist = self.policy_of(features, batch)
            return seen, dist, seen, seen
        with self.beside[0]:
            seen, dist = self.policy_of(features, batch)
        with self.beside[1]:
            later = self.target_sees(features, batch)
        now = self.critic_sees(features, batch)
        for branch in self.beside:
            branch.join()
        return seen, dist, now, later

    @torch.no_grad()
    def follow(self, share: Tensor) -> None:
        """Move the target critics by a share of their distance to the critics."""
        if self.flat_target is not None and self.critic_adam.flat is not None:
            self.flat_target.vector.lerp_(self.critic_adam.flat.vector, share)
        else:
            target, critic = self.pairs
            torch._foreach_add_(target, torch._foreach_mul(torch._foreach_sub(critic, target), share))

    @torch.no_grad()
    def sample(self) -> tuple[Sequences, Tensor, Tensor]:
        """The sequences of this update, their features, and the noise of the policy's actions."""
        batch = self.source.take(self.rows.index_select(0, self.number)[0])
        return batch, batch.features(), self.noise.index_select(0, self.number)[0]


def see(critic: Critic, features: Tensor, batch: Sequences) -> Seen:
    """What the critics' own body has seen in the sequences."""
    assert critic.body is not None
    return critic.body(features, batch.state.critic, batch.first, batch.whole)[0]


def mean_over(x: Tensor, weight: Tensor) -> Tensor:
    """The mean over steps that count; those that do not may hold anything."""
    return torch.where(weight > 0, x, 0.0).sum() / weight.sum().clamp(min=1)


def entries(seen: Seen, begin: int, end: int | None) -> Seen:
    """Entries begin .. end of sequences [B, L + 1, ...]."""
    return Seen(seen.memory[:, begin:end], [x[:, begin:end] for x in seen.images], seen.plain[:, begin:end])


def detached(seen: Seen) -> Seen:
    return Seen(seen.memory.detach(), [x.detach() for x in seen.images], seen.plain)
