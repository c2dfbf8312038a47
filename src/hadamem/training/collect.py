"""Acting: T steps of N envs into one rollout, with the network's state carried from rollout to rollout.

Everything that outlives a call is a tensor written in place, and on a GPU nothing waits, so `collect` fits into a CUDA graph. The noise of
the actions is drawn before, from the run's seed and the iteration's number alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import states
from ..agents.network import ActorCritic
from ..agents.ppo import Rollout

EPISODES = ("episodes", "return", "return_squared", "length", "success")      # sums over the episodes that ended


class Collector:
    """Plays an env of `hm.envs` (wrapped to float features) with a network. `rollout` holds what the last `collect` saw."""

    def __init__(self, env: Any, network: ActorCritic, steps: int, seed: int):
        self.env, self.network, self.steps, self.seed = env, network, steps, seed
        n, device, dtype = env.num_envs, env.device, next(network.parameters()).dtype
        actions = network.actions
        self.cuts = env.unwrapped.truncates or env.unwrapped.max_episode_steps is not None      # episodes may be cut short
        obs, info = env.reset(seed=seed)
        self.features = obs.to(dtype)                                              # [N, F]: the present observation
        self.mask: Tensor | None = info.get("action_mask")
        if self.mask is None and not env.unwrapped.restorable and not actions.dtype.is_floating_point:
            self.mask = torch.ones(n, actions.inputs, dtype=torch.bool, device=device)      # a foreign env may bring one later
        self.first = torch.ones(n, dtype=torch.bool, device=device)                # and whether it opens an episode
        self.state = network.initial_state(n, device, torch.Generator(device).manual_seed(seed))
        self.returns = torch.zeros(n, device=device)                               # of the episodes that are on
        self.lengths = torch.zeros(n, device=device)
        self.ended = torch.zeros(len(EPISODES), dtype=torch.float64, device=device)
        self.knows_success = False
        self.noise = actions.noise(steps, n, generator=torch.Generator(device), device=device).to(dtype)

        def room(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(n, steps, *shape, dtype=dtype, device=device)

        action_dtype = actions.dtype if not actions.dtype.is_floating_point else dtype
        self.rollout = Rollout(
            features=room(self.features.shape[1]), reset=room(dtype=torch.bool), action=room(actions.factors, dtype=action_dtype),
            dist=room(actions.width), value=room(), reward=room(), done=room(dtype=torch.bool), bootstrap=room() if self.cuts else None,
            last_value=torch.zeros(n, dtype=dtype, device=device), state=states.apply(torch.clone, self.state),
            mask=None if self.mask is None else room(self.mask.shape[1], dtype=torch.bool),
        )

    def draw(self, iteration: int) -> None:
        """The noise of an iteration's actions."""
        device = self.features.device
        generator = torch.Generator(device).manual_seed((self.seed * 1_000_003 + iteration * 7919 + 1) % (1 << 63))
        self.noise.copy_(self.network.actions.noise(self.steps, self.env.num_envs, generator=generator, device=device))

    @torch.no_grad()
    def collect(self) -> None:
        """Play `steps` steps."""
        r, actions, network = self.rollout, self.network.actions, self.network
        for kept, now in zip(states.tensors(r.state), states.tensors(self.state), strict=True):
            kept.copy_(now)
        state, features, first, mask = self.state, self.features, self.first, self.mask
        self.ended.zero_()
        for t in range(self.steps):
            dist, value, state = network.step(features, state, first, mask)
            action = actions.sample(dist, self.noise[t])
            r.features[:, t], r.reset[:, t], r.action[:, t], r.dist[:, t], r.value[:, t] = features, first, action, dist, value
            if r.mask is not None and mask is not None:
                r.mask[:, t] = mask
            obs, reward, terminated, truncated, info = self.env.step(actions.to_env(action))
            done = terminated | truncated
            r.reward[:, t], r.done[:, t] = reward, done
            if r.bootstrap is not None:
                cut = truncated & ~terminated
                r.bootstrap[:, t] = torch.where(cut, self._final_values(info, state, cut), 0.0)
            self._count(reward, done, info)
            features, first, mask = obs.to(features.dtype), done, self._allowed(info)
        r.last_value.copy_(network.step(features, state, first, mask)[1])
        self.features.copy_(features)
        self.first.copy_(first)
        if self.mask is not None and mask is not None:
            self.mask.copy_(mask)
        for kept, now in zip(states.tensors(self.state), states.tensors(state), strict=True):
            kept.copy_(now)

    def _final_values(self, info: dict[str, Any], state: Any, cut: Tensor) -> Tensor:
        """Values of the last observations of episodes that were cut short, [N]; a CPU looks first whether there are any."""
        if cut.device.type == "cpu" and not bool(cut.any()):
            return torch.zeros_like(self.returns)
        final = info["final_obs"].to(self.features.dtype)
        return self.network.step(final, state, torch.zeros_like(cut))[1]

    def _allowed(self, info: dict[str, Any]) -> Tensor | None:
        """The actions that are allowed now; None where the env never says."""
        mask = info.get("action_mask")
        return mask if mask is not None or self.mask is None else torch.ones_like(self.mask)

    def _count(self, reward: Tensor, done: Tensor, info: dict[str, Any]) -> None:
        self.returns.add_(reward)
        self.lengths.add_(1)
        success = info.get("success")
        self.knows_success = success is not None
        if done.device.type == "cpu" and not bool(done.any()):
            return
        total = torch.where(done, self.returns, 0.0)                    # selected: an env that got nan keeps it to itself
        won = torch.zeros_like(total) if success is None else (success & done).to(total.dtype)
        self.ended.add_(torch.stack([done.to(total.dtype), total, total.square(), torch.where(done, self.lengths, 0.0), won]).sum(1))
        self.returns.masked_fill_(done, 0)
        self.lengths.masked_fill_(done, 0)

    def episodes(self, sums: list[float] | None = None) -> dict[str, float]:
        """What the episodes that ended in the last `collect` were like: their number, means, and the deviation of the return.

        sums: `self.ended` as fetched by the caller.
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
        own = {"features": self.features, "first": self.first, "returns": self.returns, "lengths": self.lengths}
        if self.mask is not None:
            own["mask"] = self.mask
        own |= {f"memory.{i}": x for i, x in enumerate(states.tensors(self.state))}
        return {**{name: x.clone() for name, x in own.items()}, **{f"env.{name}": x for name, x in self.env.get_state().items()}}

    def set_state(self, state: dict[str, Tensor], iteration: int = 0) -> None:
        """Go on from a state of `get_state`, taken before an iteration. An env that cannot be restored starts new episodes."""
        if not self.env.unwrapped.restorable:
            self._restart(iteration)
            return
        self.env.set_state({name[4:]: x for name, x in state.items() if name.startswith("env.")})
        for name in ("features", "first", "returns", "lengths"):
            getattr(self, name).copy_(state[name])
        if self.mask is not None:
            self.mask.copy_(state["mask"])
        for i, x in enumerate(states.tensors(self.state)):
            x.copy_(state[f"memory.{i}"])

    def _restart(self, iteration: int) -> None:
        """New episodes, and not those of the run's seed once more."""
        draws = torch.Generator().manual_seed(self.seed * 1_000_003 + iteration)
        obs, info = self.env.reset(seed=int(torch.randint(1 << 31, (), generator=draws)))
        self.features.copy_(obs)
        self.first.fill_(True)
        self.returns.zero_()
        self.lengths.zero_()
        mask = self._allowed(info)
        if self.mask is not None and mask is not None:
            self.mask.copy_(mask)
