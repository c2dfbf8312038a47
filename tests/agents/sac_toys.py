"""Agents and batches for tests of SAC: small, in float64, and made without an env."""

from __future__ import annotations

import contextlib
import copy

import torch
from gymnasium import spaces

from hadamem import states
from hadamem.agents import AgentSpec, Sequences
from hadamem.agents.sac import SAC, SACConfig
from hadamem.agents.sac_discrete import SACDiscrete
from hadamem.agents.sac_networks import SACNetworkConfig, SACState

BOX, DISCRETE = spaces.Box(-2.0, 3.0, (2,)), spaces.Discrete(4)
PARTS = {"observation": ((0, 5),), "prev_action": ((5, 8),), "is_t0": ((8, 9),), "prev_reward": ((9, 10),)}
WIDTH = 10
SIZES = {"memory_size": 4, "memory_output_size": 5, "hidden_sizes": (7, 6), "obs_embedding": 4, "action_embedding": 3,
         "reward_embedding": 2}


@contextlib.contextmanager
def float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def make_agent(discrete=False, space=None, seed=0, memory="gru", network=None, **config):
    """Weights far from where they start, so that differences show, and targets that are not the critics."""
    torch.manual_seed(seed)
    options = {**SIZES, "memory": memory, **(network or {})}
    kind = SACDiscrete if discrete else SAC
    space = space or (DISCRETE if discrete else BOX)
    with float64():
        agent = kind(AgentSpec(WIDTH, space, SACNetworkConfig(**options), SACConfig(**{"gamma": 0.9, **config}), parts=PARTS))
        for module in (agent.network, agent.target):
            for p in module.parameters():
                p.data += 0.3 * torch.randn_like(p)
        agent.temperature.log.data += 0.3
    return agent


def make_batch(agent, B=5, L=9, whole=False, ends=0.25, masks=False, seed=1, dtype=torch.float64):
    """Sequences as a replay gives them. Windows begin inside episodes or with one, episodes end inside them, and `terminal` is set at
    steps that end nothing, too. Where a step is not valid, action and reward are large."""
    g = torch.Generator().manual_seed(seed)
    obs = torch.randn(B, L + 1, WIDTH, generator=g, dtype=dtype)
    first, valid = torch.zeros(B, L + 1, dtype=torch.bool), torch.ones(B, L + 1, dtype=torch.bool)
    first[:, 0] = whole or torch.rand(B, generator=g) < 0.3
    for b in range(B):
        for t in range(1, L + 1):
            if not valid[b, t - 1]:
                first[b, t] = True                                               # after a final observation
            elif not whole and t < L and float(torch.rand((), generator=g)) < ends:
                valid[b, t] = False                                              # step t - 1 ended its episode
    terminal = (torch.rand(B, L, generator=g) < 0.3) & valid[:, :-1]
    reward = torch.randn(B, L, generator=g, dtype=dtype)
    A = agent.actions.width
    mask = None
    if masks:
        mask = torch.rand(B, L + 1, A, generator=g) < 0.6
        mask[..., 0] |= ~mask.any(-1)
    if isinstance(agent, SACDiscrete):
        scores = torch.rand(B, L, A, generator=g) if mask is None else torch.rand(B, L, A, generator=g).masked_fill(~mask[:, :-1], -1)
        action = scores.argmax(-1, keepdim=True)
    else:
        action = torch.rand(B, L, agent.actions.factors, generator=g, dtype=dtype) * 2 - 1
        action[~valid[:, :-1]] = 50.0
    reward[~valid[:, :-1]] = 1e6
    return Sequences(obs=obs, first=first, previous_action=obs[..., 5:8], previous_reward=obs[..., 9], action=action, reward=reward,
                     terminal=terminal, valid=valid[:, :-1], state=used_state(agent, B, g, dtype), mask=mask, whole=whole,
                     make_features=lambda obs, *_: obs)


@torch.no_grad()
def used_state(agent, B, generator, dtype):
    """States of memories that have seen some steps."""
    with float64():
        state = agent.network.initial_state(B, generator=generator)
    state = states.apply(lambda x: x.to(dtype) if x.is_floating_point() else x, state)
    actor, critic = state
    for _ in range(3):
        x, no = torch.randn(B, WIDTH, generator=generator, dtype=dtype), torch.zeros(B, dtype=torch.bool)
        actor = agent.network.body.step(x, actor, no)[1]
        if critic is not None:
            critic = agent.network.critic.body.step(x, critic, no)[1]
    return SACState(actor, critic)


def draw_noise(agent, batch, seed=2):
    with float64():
        return agent.actions.noise(*batch.first.shape, generator=torch.Generator().manual_seed(seed))


def pick(batch, rows):
    """Some of the sequences."""
    parts = {name: getattr(batch, name)[rows] for name in ("obs", "first", "previous_action", "previous_reward", "action", "reward",
                                                           "terminal", "valid")}
    return Sequences(**parts, state=states.apply(lambda x: x[rows], batch.state), make_features=batch.make_features, whole=batch.whole,
                     mask=None if batch.mask is None else batch.mask[rows])


class Pool:
    """A replay that holds the sequences of one batch."""

    def __init__(self, batch):
        self.batch, self.length, self.steps, self.full = batch, batch.reward.shape[1], batch.reward.numel(), True
        self.rollout = batch                                                     # its reward says how many steps are new

    def __len__(self):
        return len(self.batch.reward)

    def choose(self, n, generator):
        return torch.randint(len(self), (n,), generator=generator)

    def take(self, rows):
        return pick(self.batch, rows)


# --- the slow way --------------------------------------------------------------------------------------------------


def walk(body, batch, state):
    """What a body sees at each entry, one step after the other: a list of `Seen` [B, ...]."""
    found, x = [], batch.features()
    for t in range(x.shape[1]):
        seen, state = body.step(x[:, t], state, batch.first[:, t])
        found.append(seen)
    return found


def at(seen, b, detach=False):
    memory = seen.memory[b:b + 1]
    return type(seen)(memory.detach() if detach else memory, [], seen.plain[b:b + 1])


def weights(agent, batch):
    """(b, t) of the steps that count."""
    found = []
    for b in range(batch.reward.shape[0]):
        for t in range(batch.reward.shape[1]):
            fresh = any(bool(batch.first[b, i]) for i in range(t + 1))
            if bool(batch.valid[b, t]) and (fresh or t >= agent.config.burn_in):
                found.append((b, t))
    return found


def squashed(dist, noise):
    """A sample of the tanh of a normal distribution, and its log-probability."""
    mean, log_std = dist.chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.exp())
    u = mean + log_std.exp() * noise
    action = torch.tanh(u)
    return action, (normal.log_prob(u) - torch.log(1 - action ** 2 + 1e-6)).sum()


def slow_losses(agent, batch, noise):
    """Critic loss, actor loss, mean log-probability."""
    network, alpha, shared = agent.network, float(agent.ent_coef), agent.shared
    seen = walk(network.body, batch, batch.state.actor)
    now = seen if shared else walk(network.critic.body, batch, batch.state.critic)
    later = seen if shared else walk(agent.target.body, batch, batch.state.critic)
    frozen = copy.deepcopy(network.critic)                                       # the actor's loss does not train the critics
    rated = seen if shared else walk(frozen.body, batch, batch.state.critic)
    discrete = isinstance(agent, SACDiscrete)

    def policy(t, b, stop=False):
        mask = None if batch.mask is None else batch.mask[b:b + 1, t]
        return network.policy(at(seen[t], b, stop), mask)

    critic_loss = actor_loss = log_prob = torch.zeros((), dtype=torch.float64)
    steps = weights(agent, batch)
    for b, t in steps:
        stop = shared and not agent.config.actor_trains_memory
        # --- the critics
        dist = policy(t + 1, b).detach()
        if discrete:
            q = network.critic.heads(at(now[t], b))[:, 0, int(batch.action[b, t])]
            value = torch.zeros((), dtype=torch.float64)
            for a in range(agent.actions.width):
                p = float(dist[0, a].exp())
                if p:
                    value += p * (agent.target.heads(at(later[t + 1], b, True)).min(0).values[0, a] - alpha * float(dist[0, a]))
        else:
            q = network.critic.heads(at(now[t], b), batch.action[b:b + 1, t])[:, 0, 0]
            action, log_pi = squashed(dist, noise[b:b + 1, t + 1])
            value = agent.target.heads(at(later[t + 1], b, True), action).min() - alpha * log_pi
        target = float(batch.reward[b, t]) + (0.0 if bool(batch.terminal[b, t]) else agent.config.gamma * float(value))
        critic_loss = critic_loss + (q[0] - target) ** 2 + (q[1] - target) ** 2
        # --- the actor
        dist = policy(t, b, stop)
        if discrete:
            q = frozen.heads(at(rated[t], b, True)).min(0).values.detach()
            for a in range(agent.actions.width):
                if bool(dist[0, a].exp() > 0):
                    actor_loss = actor_loss + dist[0, a].exp() * (alpha * dist[0, a] - q[0, a])
                    log_prob = log_prob + (dist[0, a].exp() * dist[0, a]).detach()
        else:
            action, log_pi = squashed(dist, noise[b:b + 1, t])
            actor_loss = actor_loss + alpha * log_pi - frozen.heads(at(rated[t], b, True), action).min()
            log_prob = log_prob + log_pi.detach()
    n = len(steps)
    return critic_loss / n * (0.5 if shared else 1.0), actor_loss / n, log_prob / n
