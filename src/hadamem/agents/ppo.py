"""Proximal policy optimisation (PPO) with memory, in the order in which things happen: settings, acting, advantages, loss, updates.

One iteration: N envs are stepped T times with the current policy. Advantages are computed once, by GAE. Then `num_epochs` times, the envs
are split into `num_minibatches` sets, and each set is one gradient step. The network runs over the same T steps it acted on, from the same
recurrent state, with resets where episodes begin: nothing is padded, and no episode is split.

Setting names are those of Stable-Baselines3 (`num_` where it has `n_`). Two things differ from its PPO: `target_kl` does not stop an
iteration but steers a KL penalty (RLlib's, as in the POPGym experiments), and `vf_loss_clip` limits the value loss (RLlib's as well).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from .. import states
from ..ranges import check_floats
from ..states import State
from .agent import Acted, Agent, AgentSpec, Progress, Rollout, Source
from .distributions import Actions, make_actions
from .networks import ActorCritic
from .optimizers import Adam
from .returns import compute_gae, lengths_differ, reward_density, rising_gamma

OUTLIER = 30.0       # an advantage counts at most this many times the usual size of returns, or the largest reward
DECIDED = 0.05       # share of the training after which gamma_schedule "auto" has made its choice
BASELINE = 0.01      # weight of the baseline's error: little beside other gradients where they are clipped, and no matter to Adam
JOINT: dict[str, bool | str] = {"never": False, "always": True, "auto": "auto"}      # joint_actions, as `make_actions` takes it


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO. The defaults are those of the POPGym experiments, with clipped gradients."""

    learning_rate: float = 5e-5              # of Adam
    lr_schedule: str = "constant"            # constant, or linear: falls to 0 at the end of training
    gamma: float = 0.99                      # discount factor
    gamma_schedule: str = "constant"         # rising: from 0.9 to gamma; auto: rising where rewards differ and episodes are equally long
    gae_lambda: float = 1.0                  # 1: the whole return minus the value
    actor_gamma: float | None = None         # the actor learns from rewards alone, discounted by this; None: from GAE, with the critic
    actor_baseline: str = "mean"             # with actor_gamma, subtracted from rewards: mean, or learned: what a linear layer expects
    num_epochs: int = 30                     # passes over a rollout
    num_minibatches: int = 8                 # gradient steps per epoch; each uses num_envs / num_minibatches envs
    reshuffle: bool = True                   # new random minibatches in every epoch; False: only their order changes
    clip_range: float = 0.3                  # clip range of the probability ratio
    kl_coef: float = 0.2                     # weight of the penalty KL(old || new) at the start; 0: no penalty
    target_kl: float = 0.01                  # kl_coef grows above twice this KL and shrinks below half of it; 0: kl_coef is fixed
    min_kl_coef: float = 0.0                 # kl_coef does not shrink below this; near 0, a solved policy can collapse
    vf_coef: float = 1.0                     # weight of the value loss
    vf_loss_clip: float | None = 10.0        # upper limit of a step's squared value error; suited to returns of about 1, as in POPGym
    clip_range_vf: float | None = None       # limit of the value's change since acting, as in other PPOs
    normalize_values: bool = False           # measure value errors in units of the returns' running root mean square
    ent_coef: float = 0.0                    # weight of the entropy bonus
    normalize_advantage: str = "batch"       # to mean 0 and standard deviation 1 over: batch (the rollout), minibatch, or none
    advantage_floor: float = 0.0             # advantages are not scaled up to less than this share of the returns' running size
    max_grad_norm: float | None = 0.5        # None: gradients are not clipped
    adam_eps: float = 1e-8                   # epsilon of Adam
    joint_actions: str = "never"             # a MultiDiscrete action is one choice: never, always, or auto (up to 1024 combinations)

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, wanted: str) -> None:
            if not ok:
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)!r}")

        check_floats(self)
        for name in ("gamma", "gae_lambda"):
            check(name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        check("actor_gamma", self.actor_gamma is None or 0 <= self.actor_gamma <= 1, "None or between 0 and 1")
        for name in ("num_epochs", "num_minibatches"):
            check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("clip_range", "learning_rate", "adam_eps"):
            check(name, getattr(self, name) > 0, "above 0")
        for name in ("kl_coef", "target_kl", "min_kl_coef", "advantage_floor", "vf_coef", "ent_coef"):
            check(name, getattr(self, name) >= 0, "0 or more")
        for name in ("max_grad_norm", "vf_loss_clip", "clip_range_vf"):
            check(name, getattr(self, name) is None or getattr(self, name) > 0, "above 0, or None")
        check("actor_baseline", self.actor_baseline in ("mean", "learned"), "'mean' or 'learned'")
        check("gamma_schedule", self.gamma_schedule in ("constant", "rising", "auto"), "'constant', 'rising' or 'auto'")
        check("lr_schedule", self.lr_schedule in ("constant", "linear"), "'constant' or 'linear'")
        check("joint_actions", self.joint_actions in JOINT, "'never', 'always' or 'auto' (up to 1024 combinations)")
        check("normalize_advantage", self.normalize_advantage in ("batch", "minibatch", "none"), "'batch', 'minibatch' or 'none'")


class Batch(NamedTuple):
    """What the loss is computed from: a rollout with its advantages, or some envs of it."""

    features: Tensor                  # [N, T, F]
    first: Tensor                     # [N, T] bool: the step opens an episode
    state: State                      # of the network, before step 0
    action: Tensor                    # [N, T, K]
    dist: Tensor                      # [N, T, D]: parameters of the distribution that the action was drawn from
    advantage: Tensor                 # [N, T]
    target: Tensor                    # [N, T]: of the value
    value: Tensor | None = None       # [N, T]: while acting; for clip_range_vf alone
    mask: Tensor | None = None        # [N, T, A] bool: allowed actions
    wanted: Tensor | None = None      # [N, T]: what the baseline should have expected, in units of its size; None: there is none
    weight: Tensor | None = None      # [N, T]: 0 for steps that must not count; None: all count

    def select(self, envs: Tensor) -> Batch:
        """The rows `envs` of every tensor."""
        tensors: dict[str, Any] = {name: x for name, x in self._asdict().items() if name != "state"}
        for name, x in tensors.items():
            tensors[name] = None if x is None else x.index_select(0, envs)
        return Batch(**tensors, state=states.select(self.state, envs))


STATISTICS = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm")      # means over an iteration's updates


class PPO(Agent):
    """PPO for a network with memory."""

    Config = PPOConfig
    shown: ClassVar = {"entropy": "entropy", "kl": "KL", "value_loss": "value loss"}
    envs_divisible_by = "num_minibatches"
    graphs = ("prepare", "update")
    compiled = ("chosen_loss", "tally")
    changeable = ("learning_rate", "lr_schedule", "gamma", "gae_lambda", "actor_gamma", "num_epochs", "clip_range", "target_kl",
                  "min_kl_coef", "vf_coef", "vf_loss_clip", "ent_coef", "advantage_floor", "max_grad_norm")
    saved: tuple[str, ...] = ("network", "adam", "kl_coef", "value_square")

    network: ActorCritic

    def __init__(self, spec: AgentSpec, device: torch.device | str = "cpu"):
        self.config: PPOConfig = spec.config
        self.actions = make_actions(spec.action_space, joint=JOINT[self.config.joint_actions])
        baseline = self.config.actor_baseline == "learned"
        self.network = ActorCritic(spec.input_size, self.actions, spec.network, spec.images, spec.numbers, baseline).to(device)
        self.adam = Adam(self.network, self.config.learning_rate, self.config.adam_eps)
        device = self.adam.rate.device
        self.kl_coef = torch.tensor(self.config.kl_coef, dtype=torch.float32, device=device)
        self.gamma = torch.tensor(self.config.gamma, dtype=torch.float32, device=device)      # of this iteration
        self.dense = torch.zeros((), device=device)                      # 1: such are the first rollouts that "auto" has the discount rise
        if self.config.gamma_schedule == "auto":
            self.saved = (*self.saved, "dense")
        self.value_square = torch.zeros((), device=device)               # running mean square of the value targets; 0: none yet
        self.actor_square = torch.zeros((), device=device)               # the same of the rewards that the actor learns from
        if baseline:
            self.saved = (*self.saved, "actor_square")
        self.sums = torch.zeros(len(STATISTICS), device=device)          # of STATISTICS, over the updates of this iteration
        self.skipped = torch.zeros((), device=device)                    # updates of this iteration that were not finite

    # --- acting: every step of a rollout -----------------------------------------------------------------------------

    def act(self, features: Tensor, state: State, first: Tensor, mask: Tensor | None = None, noise: Tensor | None = None) -> Acted:
        dist, value, state, expected = self.network.step(features, state, first, mask)
        action = self.actions.mode(dist) if noise is None else self.actions.sample(dist, noise)
        return Acted(action, state, {"dist": dist, "value": value, **({} if expected is None else {"expected": expected})})

    def steady(self) -> contextlib.AbstractContextManager[None]:
        return self.network.steady()

    def bootstrap(self, features: Tensor, state: State, first: Tensor) -> dict[str, Tensor]:
        """The value of a truncated episode's final observation, and of the observation after a rollout."""
        return {"value": self.network.step(features, state, first).value}

    # --- learning: once per iteration --------------------------------------------------------------------------------

    def attach(self, source: Source) -> None:
        rollout = self.rollout = source.rollout
        self.chosen = torch.zeros(len(rollout.reward) // self.config.num_minibatches, dtype=torch.int64, device=rollout.reward.device)
        self.batch = make_batch(rollout, self.config)       # allocates it; `prepare` writes features, advantages and targets

    def learn(self, source: Source, progress: Progress, generator: torch.Generator) -> dict[str, Tensor]:
        """num_epochs x num_minibatches gradient steps on the latest rollout."""
        falling = self.config.lr_schedule == "linear"
        self.adam.rate.fill_(self.config.learning_rate * (max(0.0, 1.0 - progress.fraction) if falling else 1.0))
        self.set_gamma(progress)
        self.sums.zero_()
        self.skipped.zero_()
        self.prepare()
        if progress.env_steps == 0:      # the policy is still almost uniform, so that it matters little that it acted on other features
            self.observe(first=True)
        sets = torch.stack(list(minibatches(len(self.rollout.reward), self.config, generator))).to(self.chosen.device)
        for chosen in sets:
            self.chosen.copy_(chosen)
            self.update()
        if progress.env_steps > 0:       # from now on, act and learn with the same statistics
            self.observe()
        return self.finish(len(sets))

    def set_gamma(self, progress: Progress) -> None:
        """Choose this iteration's discount factor.

        "auto": where most rewards differ from the usual one, each is an answer to recent actions, and a short horizon at first learns much
        sooner. But where an agent can end its episodes, it has to see their end coming.
        """
        config = self.config
        if config.gamma_schedule == "rising":
            self.gamma.fill_(rising_gamma(config.gamma, progress.fraction))
        elif config.gamma_schedule == "auto":
            rollout = self.rollout
            if progress.env_steps == 0:
                self.dense.copy_(reward_density(rollout.reward) > 0.5)
            if progress.fraction <= DECIDED:      # the first rollouts may be shorter than an episode
                self.dense.mul_(~lengths_differ(rollout.first, rollout.terminated | rollout.truncated))
            self.gamma.copy_(torch.where(self.dense > 0, rising_gamma(config.gamma, progress.fraction), config.gamma))

    def observe(self, first: bool = False) -> None:
        """Add the features of the rollout to the statistics that scale them."""
        if self.network.normalizer is not None:
            self.network.normalizer.update(self.batch.features, first)

    @torch.no_grad()
    def prepare(self) -> None:
        """Features, advantages, value targets and what the baseline should expect of the rollout, into `self.batch`."""
        gamma = None if self.config.gamma_schedule == "constant" else self.gamma
        new = make_batch(self.rollout, self.config, gamma, self.value_square.sqrt(), self.actor_square.sqrt())
        for mine, theirs in ((self.batch.features, new.features), (self.batch.advantage, new.advantage), (self.batch.target, new.target)):
            mine.copy_(theirs)
        if self.batch.wanted is not None and new.wanted is not None:
            _follow(self.actor_square, new.wanted)
            self.batch.wanted.copy_(new.wanted / self.actor_square.sqrt().clamp(min=1e-6))
        if self.config.normalize_values or self.config.advantage_floor:
            self.rescale_values(new.target)

    def rescale_values(self, target: Tensor) -> None:
        """Update the running mean square of the value targets, and the scale of the critic's output to its root. Values stay the same."""
        _follow(self.value_square, target)
        if self.config.normalize_values:
            self.network.rescale_values(self.value_square.sqrt().clamp(min=1e-3))

    def update(self) -> None:
        """One gradient step on the envs `self.chosen`: backward, clip, Adam. Skipped if loss or gradient are not finite."""
        loss, parts = self.chosen_loss()
        self.tally(parts, self.adam.update(loss, self.config.max_grad_norm), self.adam.skip)

    def chosen_loss(self) -> tuple[Tensor, list[Tensor]]:
        """The loss on the envs `self.chosen`, and STATISTICS without the last. Compiled as one: what is picked is read where it is used."""
        loss, parts = self.loss(self.batch.select(self.chosen), self.rollout.whole)
        return loss, [parts[name].detach() for name in STATISTICS[:-1]]

    @torch.no_grad()
    def tally(self, parts: list[Tensor], norm: Tensor, skip: Tensor) -> None:
        """Add the statistics of an update to those of the iteration."""
        self.sums.add_(torch.where(skip > 0, 0.0, torch.stack([*parts, norm])))
        self.skipped.add_(skip)

    def loss(self, batch: Batch, whole: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the current network, and its parts. whole: every row is exactly one episode."""
        out = self.network(batch.features, batch.state, batch.first, batch.mask, resets_only_at_start=whole, starts_fresh=whole)
        scale = self.network.value_scale if self.config.normalize_values else None
        loss, parts = ppo_loss(self.actions, out.dist, out.value, batch, self.config, self.kl_coef, scale)
        if batch.wanted is not None and out.expected is not None:
            loss = loss + BASELINE * _mean((out.expected - batch.wanted).square(), batch.weight)
        return loss, parts

    def finish(self, updates: int) -> dict[str, Tensor]:
        """Statistics of the iteration, as means over the updates that were not skipped; and `kl_coef` adapted to the mean KL."""
        means = self.sums.double() / (updates - self.skipped)              # nan if all were skipped
        found = dict(zip(STATISTICS, means, strict=True))
        found |= {"kl_coef": self.kl_coef.clone(), "updates": torch.full_like(self.skipped, updates), "skipped": self.skipped}
        if self.config.target_kl:
            kl, coef = found["kl"], self.kl_coef
            lower = torch.where(kl < 0.5 * self.config.target_kl, (0.5 * coef).clamp(min=self.config.min_kl_coef), coef)
            coef.copy_(torch.where(kl > 2 * self.config.target_kl, 1.5 * coef, lower))
        return found


def make_batch(rollout: Rollout, config: PPOConfig, gamma: Tensor | None = None, size: Tensor | float = 0.0,
               unit: Tensor | float = 0.0) -> Batch:
    """A rollout with advantages and value targets. gamma: None for the one of config. size: of the returns so far; 0: not known.

    unit: what the baseline's expectations are measured in. `wanted` is not yet.
    """
    value = rollout.extras["value"]
    advantage = _limit(compute_gae(rollout.reward, value, rollout.done, rollout.final.get("value"), rollout.last["value"],
                                   config.gamma if gamma is None else gamma, config.gae_lambda), rollout, config, size)
    target, wanted = advantage + value, None
    if config.actor_gamma is not None:
        nothing = torch.zeros_like(value)
        rewards = _limit(compute_gae(rollout.reward, nothing, rollout.done, None, nothing[:, 0], config.actor_gamma, 1.0),
                         rollout, config, size)
        expected = rollout.extras.get("expected")
        wanted = None if expected is None else rewards
        advantage = rewards - (rewards.mean() if expected is None else expected * unit)
    if config.normalize_advantage == "batch":
        advantage = _standardise(advantage, floor=config.advantage_floor * size)
    return Batch(rollout.features(), rollout.first, rollout.state, rollout.action, rollout.extras["dist"], advantage, target,
                 None if config.clip_range_vf is None else value, rollout.mask, wanted)


def _follow(square: Tensor, x: Tensor) -> None:
    """Update a running mean square of x; 0: none yet. Slowly, but fast if it is a hundred times too large, as after an outlier at first."""
    new = x.square().mean()
    new = torch.where(torch.isfinite(new), new, square)
    pace = torch.where(new < 1e-4 * square, 0.9, 0.1)
    square.copy_(torch.where(square > 0, torch.lerp(square, new, pace), new))


def _limit(advantage: Tensor, rollout: Rollout, config: PPOConfig, size: Tensor | float) -> Tensor:
    """A reward far outside must not decide about everything."""
    if not config.normalize_values or rollout.usual_reward is None:
        return advantage
    returns, reward = torch.as_tensor(size, dtype=advantage.dtype, device=advantage.device), rollout.usual_reward[0]
    limit = torch.where((returns > 0) & (reward > 0), OUTLIER * torch.maximum(returns, reward), torch.inf)
    return torch.where(advantage.abs() > limit, limit * advantage.sign(), advantage)      # nan stays


def ppo_loss(actions: Actions, dist: Tensor, value: Tensor, batch: Batch, config: PPOConfig, kl_coef: Tensor | float,
             value_scale: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of new distributions [N, T, D] and values [N, T] on a batch, and its parts. Means over the steps that count.

    value_scale: the unit of value errors; None: 1.
    """
    weight = batch.weight
    advantage = _standardise(batch.advantage, weight) if config.normalize_advantage == "minibatch" else batch.advantage
    ratio = torch.exp(actions.log_prob(dist, batch.action) - actions.log_prob(batch.dist, batch.action))
    policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip_range, 1 + config.clip_range) * advantage)
    error = (value - batch.target).square()
    if config.clip_range_vf is not None:
        assert batch.value is not None
        near = batch.value + (value - batch.value).clamp(-config.clip_range_vf, config.clip_range_vf)
        error = torch.maximum(error, (near - batch.target).square())
    if value_scale is not None:
        error = error / value_scale.square()
    if config.vf_loss_clip is not None:
        error = error.clamp(max=config.vf_loss_clip)
    clipped = ((ratio - 1).abs() > config.clip_range).to(ratio.dtype)
    parts = {
        "policy_loss": _mean(policy, weight), "value_loss": _mean(error, weight), "entropy": _mean(actions.entropy(dist), weight),
        "kl": _mean(actions.kl(batch.dist, dist), weight), "clip_fraction": _mean(clipped, weight),
    }
    loss = parts["policy_loss"] + config.vf_coef * parts["value_loss"] - config.ent_coef * parts["entropy"]
    if config.kl_coef > 0:
        loss = loss + kl_coef * parts["kl"]
    return loss, {"loss": loss, **parts}


def minibatches(num_envs: int, config: PPOConfig, generator: torch.Generator) -> Iterator[Tensor]:
    """The envs of every minibatch of an iteration: num_epochs x num_minibatches index tensors of equal size."""
    sets = torch.arange(num_envs).view(config.num_minibatches, -1)
    for _ in range(config.num_epochs):
        if config.reshuffle:
            sets = torch.randperm(num_envs, generator=generator).view(config.num_minibatches, -1)
        yield from sets[torch.randperm(config.num_minibatches, generator=generator)]


def _mean(x: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return x.mean()
    return torch.where(weight > 0, x * weight, 0.0).sum() / weight.sum().clamp(min=1)


def _standardise(x: Tensor, weight: Tensor | None = None, floor: Tensor | float = 0.0) -> Tensor:
    """Mean 0 and standard deviation 1, or less if the deviation of x is below `floor`."""
    mean = _mean(x, weight)
    deviation = _mean((x - mean).square(), weight).sqrt()
    return (x - mean) / torch.maximum(deviation, torch.as_tensor(floor, dtype=x.dtype, device=x.device)).clamp(min=1e-4)
