"""Collecting experience: T steps of N envs into one `Rollout`, with the network's state carried from one rollout to the next.

Everything that outlives a call is a tensor written in place, and nothing waits for the GPU, so `collect` can be captured in a CUDA graph.
The noise of the actions is drawn beforehand and depends only on the run's seed and the iteration.
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor

from .. import states
from ..agents import Actions, Agent, Image, Rollout
from ..agents.distributions import MOST_JOINT
from ..envs import trees
from ..envs.base import assign, nobody
from ..envs.features import AgentInputs
from ..runs.config import TrainConfig
from ..states import State
from .outliers import RewardLimit
from .seeding import env_seed

EPISODES = ("episodes", "return", "return_squared", "length", "success")      # sums over the episodes that ended


class Now(NamedTuple):
    """What a step starts from: the current observation, the action and reward that led to it, and whether it opens an episode."""

    obs: Any
    previous_action: Tensor
    first: Tensor
    previous_reward: Tensor
    mask: Tensor | None
    state: State


class Slot(NamedTuple):
    """Views of one step of a `Rollout`, [N, ...] each, to be written to."""

    obs: Any
    first: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    extras: dict[str, Tensor]
    final: dict[str, Tensor]
    mask: Tensor | None
    terminal: Tensor | None
    next_obs: Any


class Finals:
    """How the latest truncated episode of each env ended: the final observation, the action and reward before it, the state after it."""

    def __init__(self, obs: Any, action: Tensor, reward: Tensor, state: State):
        """From tensors of the same kind."""
        self.obs, self.action, self.reward = trees.apply(torch.clone, obs), action.clone(), reward.clone()
        self.state = states.apply(torch.clone, state)

    def keep(self, cut: Tensor, obs: Any, action: Tensor, reward: Tensor, state: State) -> None:
        """Replace those of the envs `cut` [N]."""
        if nobody(cut):
            return
        for mine, new in ((self.action, action), (self.reward, reward), *zip(trees.leaves(self.obs), trees.leaves(obs), strict=True),
                          *zip(states.tensors(self.state), states.tensors(state), strict=True)):
            assign(mine, cut, new)


class Collector:
    """Steps a batched env with an agent. `rollout` holds what the last `collect` recorded."""

    def __init__(self, env: Any, agent: Agent, inputs: AgentInputs, steps: int, seed: int, whole: bool = False,
                 next_obs: str = "none"):
        """whole: every rollout is exactly one episode. next_obs: what to record for a replay: "none", "all", or "last" of each rollout."""
        self.env, self.agent, self.inputs, self.steps, self.seed = env, agent, inputs, steps, seed
        n, device, actions = env.num_envs, env.device, agent.actions
        self.dtype = next(agent.network.parameters()).dtype
        self.truncates = env.unwrapped.truncates or env.unwrapped.max_episode_steps is not None      # episodes may be truncated
        obs, info = env.reset(seed=seed if env.unwrapped.restorable else env_seed(seed))
        # What the next step starts from: the current observation, the action that led to it, and whether it opens an episode.
        self.obs = trees.apply(torch.clone, obs)
        self.previous_action = torch.zeros(n, *(env.single_action_space.shape or ()), dtype=inputs.action_dtype, device=device)
        self.previous_reward = torch.zeros(n, device=device)
        self.first = torch.ones(n, dtype=torch.bool, device=device)
        self.mask: Tensor | None = info.get("action_mask")
        if self.mask is None and not env.unwrapped.restorable and actions.mask_size:
            self.mask = torch.ones(n, actions.mask_size, dtype=torch.bool, device=device)      # a foreign env may send one later
        self.state = agent.initial_state(n, device, torch.Generator(device).manual_seed(seed))
        self.returns = torch.zeros(n, device=device)                               # of the current episodes
        self.lengths = torch.zeros(n, device=device)
        self.ended = torch.zeros(len(EPISODES), dtype=torch.float64, device=device)
        self.knows_success = False
        self.limit = RewardLimit(torch.device(device))
        self.waiting_since: float | None = None      # when the step began that the env has not finished (`time.monotonic`)
        self.noise = actions.noise(steps, n, generator=torch.Generator(device), device=device).to(self.dtype)
        self.rollout = self._allocate(whole, next_obs)
        once = self.rollout.final and steps <= env.unwrapped.least_truncated      # in a rollout, an env truncates one episode at most
        self.finals = Finals(self.obs, self.previous_action, self.previous_reward, self.state) if once else None
        self.slots = [self._slot(t) for t in range(steps)]
        self.choose, self.advance = self._choose, self._advance      # the two halves of a step

    def draw(self, iteration: int) -> None:
        """Draw the noise of an iteration's actions."""
        device = self.first.device
        generator = torch.Generator(device).manual_seed((self.seed * 1_000_003 + iteration * 7919 + 1) % (1 << 63))
        self.noise.copy_(self.agent.actions.noise(self.steps, self.env.num_envs, generator=generator, device=device))

    @torch.no_grad()
    def collect(self) -> None:
        """Take `steps` steps in every env."""
        r = self.rollout
        r.previous_action.copy_(self.previous_action)
        assert r.previous_reward is not None
        r.previous_reward.copy_(self.previous_reward)
        _copy_state(r.state, self.state)
        self.ended.zero_()
        now = self.now
        with self.agent.steady():
            for t in range(self.steps):
                self.waiting_since = time.monotonic()
                now, final_obs = self._step(now, self.noise[t], self.slots[t])
                self.waiting_since = None
            features = self._features(now.obs, now.previous_action, now.first, now.previous_reward)
            last = self.agent.bootstrap(features, now.state, now.first)
            if self.finals is not None:
                self._bootstrap_finals(self.finals)
        if self.next_obs == "last":
            trees.apply(_put, _at(r.next_obs, 0), final_obs)
        for name, value in last.items():
            r.last[name].copy_(value)
        if r.next_mask is not None and now.mask is not None:
            r.next_mask.copy_(now.mask)
        self._carry(now)

    def compile(self, **options: Any) -> None:
        """Let torch.compile fuse the operations of a step, for a GPU: fewer kernels to launch. options: of torch.compile.

        This builds it, by steps that the caller undoes. The second slot is used, where vectors start at odd addresses: what is built
        for aligned ones would copy all others. The halves are compiled apart: Triton 3.6 fails on what Inductor makes of the choice of an
        action joined to Concentration's rules.
        """
        choose = torch.compile(self._choose, dynamic=False, **options)
        advance = torch.compile(self._advance, dynamic=False, **options)
        t, now = min(1, self.steps - 1), self.now
        with torch.no_grad(), self.agent.steady():
            for _ in range(2):      # the first step starts from tensors that may be laid out otherwise
                action, state = choose(now, self.noise[t], self.slots[t])
                now, _ = advance(now, action, state, self.slots[t])
        self.choose, self.advance = choose, advance      # both work

    def episodes(self, sums: list[float] | None = None) -> dict[str, float]:
        """Statistics of the episodes that ended in the last `collect`: number, mean return, its deviation, mean length, success rate.

        sums: `self.ended`, if the caller has fetched it.
        """
        count, total, squared, length, success = self.ended.tolist() if sums is None else sums
        if not count:
            return {"episodes": 0.0}
        mean = total / count
        variance = squared / count - mean * mean
        found = {"episodes": count, "return": mean, "return_std": 0.0 if variance <= 0 else variance ** 0.5, "length": length / count}
        return {**found, "success": success / count} if self.knows_success else found

    def get_state(self) -> dict[str, Tensor]:
        """Everything that the next `collect` depends on, as copies."""
        own = {name: x.clone() for name, x in {**self._tensors(), "largest_reward": self.limit.largest}.items()}
        return {**own, **{f"env.{name}": x for name, x in self.env.get_state().items()}}

    def set_state(self, state: dict[str, Tensor], iteration: int = 0) -> None:
        """Restore a state of `get_state`, taken before an iteration. An env that cannot be restored starts new episodes."""
        if "largest_reward" in state:      # older versions did not save it
            self.limit.restore(state["largest_reward"])
        if not self.env.unwrapped.restorable:
            self._restart(iteration)
            return
        self.env.set_state(states.under("env.", state))
        for name, x in self._tensors().items():
            x.copy_(state[name])

    # --- internals -------------------------------------------------------------------------------------------------

    def _allocate(self, whole: bool, next_obs: str) -> Rollout:
        """A rollout with room for `steps` steps. One acting step shows which extras the agent has."""
        n, steps, device, agent = self.env.num_envs, self.steps, self.first.device, self.agent
        self.next_obs = next_obs
        features = self._features(self.obs, self.previous_action, self.first, self.previous_reward)
        with torch.no_grad():
            action, _, extras = agent.explore(features, self.state, self.first, self.mask, self.noise[0])
            values = agent.bootstrap(features, self.state, self.first)

        def room(like: Tensor) -> Tensor:
            return torch.zeros(n, steps, *like.shape[1:], dtype=like.dtype, device=device)

        def once(like: Tensor) -> Tensor:
            return torch.zeros_like(like)[:, None]

        return Rollout(
            obs=trees.apply(room, self.obs), first=room(self.first), action=room(action), reward=room(self.returns.to(self.dtype)),
            terminated=room(self.first), truncated=room(self.first), state=states.apply(torch.clone, self.state),
            previous_action=self.previous_action.clone(), mask=None if self.mask is None else room(self.mask),
            extras={name: room(x) for name, x in extras.items()}, last={name: torch.zeros_like(x) for name, x in values.items()},
            final={name: room(x) for name, x in values.items()} if self.truncates else {},
            next_obs=None if next_obs == "none" else trees.apply(room if next_obs == "all" else once, self.obs),
            next_mask=None if self.mask is None else self.mask.clone(), terminal=None if next_obs == "none" else room(self.first),
            whole=whole, previous_reward=self.previous_reward.clone(),
            usual_reward=self.limit.before.expand(n) if next_obs == "none" else None,
            make_features=functools.partial(sequence_features, self.inputs, agent.actions, self.dtype),
        )

    def _features(self, obs: Any, previous_action: Tensor, first: Tensor, previous_reward: Tensor) -> Tensor:
        return self.inputs(obs, previous_action, first, previous_reward).to(self.dtype)

    @property
    def now(self) -> Now:
        """What the next rollout starts from."""
        return Now(self.obs, self.previous_action, self.first, self.previous_reward, self.mask, self.state)

    def _slot(self, t: int) -> Slot:
        r = self.rollout
        return Slot(_at(r.obs, t), r.first[:, t], r.action[:, t], r.reward[:, t], r.terminated[:, t], r.truncated[:, t],
                    {name: x[:, t] for name, x in r.extras.items()}, {name: x[:, t] for name, x in r.final.items()},
                    None if r.mask is None else r.mask[:, t], None if r.terminal is None else r.terminal[:, t],
                    _at(r.next_obs, t) if self.next_obs == "all" else None)

    def _step(self, now: Now, noise: Tensor, slot: Slot) -> tuple[Now, Any]:
        """One step of every env, recorded in `slot`. Returns what the next one starts from, and the observations that this one ended with:
        the final ones where an episode ended."""
        action, state = self.choose(now, noise, slot)
        return self.advance(now, action, state, slot)

    def _choose(self, now: Now, noise: Tensor, slot: Slot) -> tuple[Tensor, State]:
        """Actions, and the network's state after them."""
        features = self._features(now.obs, now.previous_action, now.first, now.previous_reward)
        action, state, extras = self.agent.explore(features, now.state, now.first, now.mask, noise)
        trees.apply(_put, slot.obs, now.obs)
        slot.first.copy_(now.first)
        slot.action.copy_(action)
        for name, value in extras.items():
            slot.extras[name].copy_(value)
        if slot.mask is not None and now.mask is not None:
            slot.mask.copy_(now.mask)
        return action, state

    def _advance(self, now: Now, action: Tensor, state: State, slot: Slot) -> tuple[Now, Any]:
        """Step the envs."""
        taken = self.agent.actions.to_env(action)
        obs, reward, terminated, truncated, info = self.env.step(taken)
        slot.reward.copy_(reward)
        slot.terminated.copy_(terminated)
        slot.truncated.copy_(truncated)
        if slot.terminal is not None:
            slot.terminal.copy_(info.get("terminal", terminated))
        if slot.next_obs is not None:
            trees.apply(_put, slot.next_obs, info["final_obs"])
        paid = reward.to(self.previous_reward.dtype)
        if self.inputs.previous_reward:      # as `features` will see it
            paid = torch.clamp(paid.nan_to_num(0.0, 0.0, 0.0), self.limit.low, self.limit.high)
        if self.finals is not None:
            self.finals.keep(truncated & ~terminated, info["final_obs"], taken, paid, state)
        elif slot.final:
            self._record_final(slot, info["final_obs"], taken, paid, state, truncated & ~terminated)
        done = terminated | truncated
        self._count(reward, done, info)
        return Now(obs, taken.to(now.previous_action.dtype), done, paid, self._allowed(info), state), info.get("final_obs")

    def _record_final(self, slot: Slot, obs: Any, taken: Tensor, paid: Tensor, state: Any, cut: Tensor) -> None:
        """Record `bootstrap` of the final observations of truncated episodes, at once."""
        if nobody(cut):
            for place in slot.final.values():
                place.zero_()
            return
        first = torch.zeros_like(cut)
        for name, value in self.agent.bootstrap(self._features(obs, taken, first, paid), state, first).items():
            slot.final[name].copy_(torch.where(cut, value, 0.0))

    def _bootstrap_finals(self, finals: Finals) -> None:
        """The same for those of the whole rollout, in one call."""
        r = self.rollout
        cut = r.truncated & ~r.terminated
        if nobody(cut):
            values = dict.fromkeys(r.final, torch.zeros_like(self.returns))
        else:
            first = torch.zeros_like(self.first)
            values = self.agent.bootstrap(self._features(finals.obs, finals.action, first, finals.reward), finals.state, first)
        for name, value in values.items():
            r.final[name].copy_(torch.where(cut, value[:, None], 0.0))

    def _allowed(self, info: dict[str, Any]) -> Tensor | None:
        """The mask of allowed actions; None if the env never sends one."""
        mask = info.get("action_mask")
        if mask is not None and self.mask is None:
            raise ValueError("a batched env cannot send info['action_mask']: it would be of the episode that has just ended; make the task "
                             "a Gymnasium env, or let actions that are not allowed do nothing")
        return mask if mask is not None or self.mask is None else torch.ones_like(self.mask)

    def _count(self, reward: Tensor, done: Tensor, info: dict[str, Any]) -> None:
        self.returns.add_(reward)
        self.lengths.add_(1)
        success = info.get("success")
        self.knows_success = success is not None
        if nobody(done):
            return
        total = torch.where(done, self.returns, 0.0).to(self.ended.dtype)      # `where`, so that a nan stays in its env
        won = torch.zeros_like(total) if success is None else (success & done).to(total.dtype)
        length = torch.where(done, self.lengths, 0.0).to(total.dtype)
        self.ended.add_(torch.stack([done.to(total.dtype), total, total.square(), length, won]).sum(1))
        self.returns.masked_fill_(done, 0)
        self.lengths.masked_fill_(done, 0)

    def _carry(self, now: Now) -> None:
        """Keep what the next rollout starts from."""
        trees.apply(_put, self.obs, now.obs)
        self.previous_action.copy_(now.previous_action)
        self.previous_reward.copy_(now.previous_reward)
        self.first.copy_(now.first)
        if self.mask is not None and now.mask is not None:
            self.mask.copy_(now.mask)
        _copy_state(self.state, now.state)

    def _tensors(self) -> dict[str, Tensor]:
        """The collector's own tensors by name."""
        found = {"previous_action": self.previous_action, "first": self.first, "returns": self.returns, "lengths": self.lengths}
        if self.mask is not None:
            found["mask"] = self.mask
        if self.inputs.previous_reward:
            found["previous_reward"] = self.previous_reward
        found |= {f"obs.{i}": x for i, x in enumerate(trees.leaves(self.obs))}
        return {**found, **{f"memory.{i}": x for i, x in enumerate(states.tensors(self.state))}}

    def _restart(self, iteration: int) -> None:
        """Start new episodes, with a seed that no earlier start of this run had."""
        obs, info = self.env.reset(seed=env_seed(self.seed, iteration + 1))
        self._carry(Now(obs, torch.zeros_like(self.previous_action), torch.ones_like(self.first), torch.zeros_like(self.previous_reward),
                        self._allowed(info), self.state))
        self.returns.zero_()
        self.lengths.zero_()


def _copy_state(target: Any, source: Any) -> None:
    for mine, new in zip(states.tensors(target), states.tensors(source), strict=True):
        mine.copy_(new)


def _at(tree: Any, t: int) -> Any:
    """Step t of every leaf [N, T, ...] of a tree, as views."""
    return trees.apply(lambda leaf: leaf[:, t], tree)


def _put(place: Tensor, value: Tensor) -> Tensor:
    return place.copy_(value)


# --- features: one path for acting and learning -------------------------------------------------------------------


def make_inputs(env: Any, config: TrainConfig) -> tuple[AgentInputs, tuple[Image, ...]]:
    """How observations of a batched env become feature vectors, and where images lie in these."""
    actions = env.single_action_space
    few = isinstance(actions, spaces.MultiDiscrete) and math.prod(int(n) for n in actions.nvec.reshape(-1)) <= MOST_JOINT
    inputs = AgentInputs(env.single_observation_space, actions, previous_action=config.previous_action, first_step=config.first_step,
                         previous_reward=config.previous_reward, scale_images=True,
                         joint_previous_action=config.joint_previous_action and few, device=env.device)
    return inputs, tuple(Image(*image) for image in inputs.images(getattr(env.unwrapped, "image_shape", None)))


def sequence_features(inputs: AgentInputs, actions: Actions, dtype: torch.dtype, obs: Any, previous_action: Tensor, action: Tensor,
                      first: Tensor, previous_reward: Tensor, reward: Tensor) -> Tensor:
    """Features [N, T, F] of a sequence: what acting computed one step at a time.

    obs: tree of [N, T, ...]; previous_action [N, ...] and previous_reward [N]: before step 0, the action as the env took it;
    action [N, T, K]; first and reward [N, T].
    """
    taken = actions.to_env(action[:, :-1]).to(previous_action.dtype)
    paid = torch.cat([previous_reward[:, None].to(reward.dtype), reward[:, :-1]], 1) if inputs.previous_reward else None
    return inputs(obs, torch.cat([previous_action[:, None], taken], 1), first, paid).to(dtype)
