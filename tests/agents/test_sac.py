"""SAC's losses and updates against slow loops, in float64."""

import math

import pytest
import torch

import hadamem as hm
from hadamem.agents.agent import Progress
from hadamem.runs.config import make_config
from hadamem.training.trainer import Trainer

from .sac_toys import Pool, draw_noise, float64, make_agent, make_batch, pick, slow_losses

GRU_ACTOR = {"actor_memory": "gru", "actor_memory_size": 3, "memory_output_size": 5}
CASES = {      # of the agent, of the batch
    "windows": ({}, {}),
    "whole episodes": ({}, {"whole": True}),
    "shm": ({"memory": "shm"}, {}),
    "shm, whole episodes": ({"memory": "shm"}, {"whole": True}),
    "random rows": ({"memory": "shm-paper"}, {}),
    "no memory": ({"memory": "none", "network": {"memory_size": None}}, {}),
    "a GRU for the actor": ({"memory": "shm", "network": GRU_ACTOR}, {}),
    "no shortcut": ({"network": {"shortcut": False}}, {}),
    "burn-in": ({"burn_in": 4}, {"ends": 0.1}),
    "burn-in, whole episodes": ({"burn_in": 4}, {"whole": True}),
    "shared memory": ({"network": {"shared_memory": True}}, {}),
    "shared memory that the actor does not train": ({"network": {"shared_memory": True}, "actor_trains_memory": False}, {}),
    "fixed temperature": ({"ent_coef": 0.3}, {}),
    "one step": ({}, {"L": 1}),
}
KINDS = {"sac": {"discrete": False}, "sac-discrete": {"discrete": True}}


def losses(agent, batch, noise):
    features = batch.features()
    seen, dist, now, later = agent.bodies(features, batch)
    critic, q = agent.critic_loss(batch, now, later, dist, noise)
    actor, log_prob = agent.actor_loss(features, batch, seen, dist, noise)
    return critic, actor, log_prob, q


def gradients(loss, parameters):
    found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("kind", "masks"), [("sac", False), ("sac-discrete", False), ("sac-discrete", True)])
def test_losses_and_their_gradients_against_a_slow_loop(kind, case, masks):
    """Terminal steps that end nothing, ends inside windows, final observations, burn-in, masks: one step after the other."""
    options, shape = CASES[case]
    agent = make_agent(**KINDS[kind], **options)
    batch = make_batch(agent, **{"B": 4, "L": 7, **shape}, masks=masks)
    assert batch.whole or batch.reward.shape[1] == 1 or not bool(batch.valid.all())
    noise = draw_noise(agent, batch)
    critic, actor, log_prob, _ = losses(agent, batch, noise)
    slow_critic, slow_actor, slow_log_prob = slow_losses(agent, batch, noise)
    for got, want in ((critic, slow_critic), (actor, slow_actor), (log_prob, slow_log_prob)):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    parameters = list(agent.network.parameters())
    for got, want in zip(gradients(critic, parameters), gradients(slow_critic, parameters), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)
    for got, want in zip(gradients(actor, parameters), gradients(slow_actor, parameters), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_who_gets_gradients_from_which_loss(kind):
    agent = make_agent(**KINDS[kind])
    batch = make_batch(agent)
    critic, actor, _, _ = losses(agent, batch, draw_noise(agent, batch))
    parts = {"actor": [*agent.network.body.parameters(), *agent.network.actor.parameters()],
             "critic": list(agent.network.critic.parameters())}
    assert all(bool(g.any()) for g in gradients(critic, parts["critic"]))
    assert all(bool(g.any()) for g in gradients(actor, parts["actor"]))
    assert not any(bool(g.any()) for g in gradients(critic, parts["actor"]))
    assert not any(bool(g.any()) for g in gradients(actor, parts["critic"]))
    assert not any(p.requires_grad for p in agent.target.parameters())


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_who_trains_a_shared_memory(kind, trains):
    agent = make_agent(**KINDS[kind], network={"shared_memory": True}, actor_trains_memory=trains)
    assert agent.target.body is None
    batch = make_batch(agent)
    critic, actor, _, _ = losses(agent, batch, draw_noise(agent, batch))
    memory = list(agent.network.body.parameters())
    assert all(bool(g.any()) for g in gradients(critic, memory))
    assert any(bool(g.any()) for g in gradients(actor, memory)) == trains
    assert all(bool(g.any()) for g in gradients(actor, list(agent.network.actor.parameters())))
    assert not any(bool(g.any()) for g in gradients(actor, list(agent.network.critic.parameters())))


def test_forbidden_actions_do_not_exist():
    """Their probability is 0, their values change nothing, bit for bit, and their scores get no gradient."""
    agent = make_agent(discrete=True)
    batch = make_batch(agent)
    batch.mask = torch.tensor([True, False, True, True]).expand(*batch.first.shape, 4)
    batch.action[batch.action == 1] = 0
    features = batch.features()
    _, dist = agent.policy_of(features, batch)
    assert not bool(dist[..., 1].exp().any())
    torch.testing.assert_close(dist.exp().sum(-1), torch.ones_like(dist[..., 0]))
    before = losses(agent, batch, None)
    last = agent.network.actor.layers[-1].bias
    grad = gradients(before[1], [last])[0].reshape(-1)
    assert float(grad[1]) == 0.0
    assert bool(grad[[0, 2, 3]].all())
    for critic in (agent.network.critic, agent.target):
        critic.heads.layers[-1].bias.data[..., 1] += 1e6
    for got, want in zip(losses(agent, batch, None)[:3], before[:3], strict=True):
        assert torch.equal(got, want)


def test_the_usual_target_entropies():
    assert make_agent().target_entropy == -2.0
    assert make_agent(discrete=True).target_entropy == pytest.approx(0.5 * math.log(4))
    assert make_agent(target_entropy=0.7).target_entropy == 0.7


# --- updates -------------------------------------------------------------------------------------------------------


def prepare(agent, batch, updates):
    """Attach an agent to the sequences of a batch, and choose rows and noise of its next updates."""
    with float64():
        agent.attach(Pool(batch))
        agent.noise = agent.noise.double()
        agent.noise.copy_(agent.draw_noise(len(agent.noise), torch.Generator().manual_seed(5)))
    agent.rows.copy_(agent.source.choose(agent.rows.numel(), torch.Generator().manual_seed(6)).view_as(agent.rows))
    return [(agent.rows[i], agent.noise[i]) for i in range(updates)]


class Slow:
    """Updates in plain torch, in the order of SAC: critics, actor with the new critics, targets, temperature."""

    def __init__(self, agent):
        self.agent, self.config = agent, agent.config
        def adam(parameters):
            return torch.optim.Adam(parameters, lr=self.config.learning_rate, eps=self.config.adam_eps)
        network = agent.network
        self.critic = adam(network.parameters() if agent.shared else network.critic.parameters())
        self.actor = adam([*network.body.parameters(), *network.actor.parameters()])
        self.temperature = adam([agent.temperature.log])

    def update(self, batch, noise):
        agent = self.agent
        critic, actor, log_prob = slow_losses(agent, batch, noise)
        self._step(self.critic, critic + actor if agent.shared else critic)
        if not agent.shared:
            self._step(self.actor, slow_losses(agent, batch, noise)[1])
        for old, new in zip(agent.target.parameters(), agent.network.critic.parameters(), strict=True):
            old.data = (1 - self.config.tau) * old.data + self.config.tau * new.data
        if self.config.ent_coef is None:
            self._step(self.temperature, -agent.temperature.log.exp() * (log_prob + agent.target_entropy), clip=False)

    def _step(self, adam, loss, clip=True):
        parameters = adam.param_groups[0]["params"]
        grads = gradients(loss, parameters)
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
        limit = self.config.max_grad_norm
        factor = min(1.0, limit / (norm + 1e-6)) if clip and limit is not None else 1.0
        for p, g in zip(parameters, grads, strict=True):
            p.grad = factor * g
        adam.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["plain", "shared", "gru actor", "clipped"])
def test_updates_against_plain_torch(kind, case):
    options = {"plain": {}, "shared": {"network": {"shared_memory": True}}, "gru actor": {"memory": "shm", "network": GRU_ACTOR},
               "clipped": {"ent_coef": 0.2, "max_grad_norm": 0.1, "burn_in": 2}}[case]
    changes = {**KINDS[kind], **options, "learning_rate": 2.0 ** -6, "tau": 0.1, "batch_size": 3}
    agent, other = make_agent(**changes), make_agent(**changes)
    batch = make_batch(agent, B=6, L=5, masks=changes["discrete"])
    slow = Slow(other)
    for rows, noise in prepare(agent, batch, 4):
        slow.update(pick(batch, rows), noise)
        agent.update()
        for (name, x), y in zip(agent.network.state_dict().items(), other.network.state_dict().values(), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-8, msg=name)
        for x, y in zip(agent.target.parameters(), other.target.parameters(), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(agent.temperature.log, other.temperature.log, rtol=1e-7, atol=1e-8)
    start = make_agent(**changes)
    assert all(not torch.equal(x, y) for x, y in zip(agent.network.parameters(), start.network.parameters(), strict=True))
    assert torch.equal(agent.temperature.log, start.temperature.log) == ("ent_coef" in options)
    assert float(agent.skipped) == 0


def test_targets_follow_by_tau():
    agent = make_agent(tau=0.25)
    batch = make_batch(agent)
    prepare(agent, batch, 1)
    before = [p.clone() for p in agent.target.parameters()]
    agent.update()
    for old, p, critic in zip(before, agent.target.parameters(), agent.network.critic.parameters(), strict=True):
        torch.testing.assert_close(p, old + 0.25 * (critic - old), rtol=1e-12, atol=1e-12)
        assert p.grad is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_bad_batch_changes_nothing(kind, shared):
    agent = make_agent(**KINDS[kind], network={"shared_memory": shared}, batch_size=4)
    batch = make_batch(agent)
    prepare(agent, batch, 1)
    agent.update()                                                               # so that moments are not zero
    state = {name: x.clone() for name, x in agent.state_dict().items()}
    kept = batch.reward.clone()
    batch.reward[batch.valid] = math.nan
    agent.update()
    for name, x in agent.state_dict().items():
        assert torch.equal(x, state[name]), name
    assert float(agent.skipped) == 1
    assert bool(torch.isfinite(agent.sums).all())
    batch.reward.copy_(kept)
    agent.update()
    assert float(agent.skipped) == 1
    assert not torch.equal(agent.state_dict()["critic_adam.heads.layers.0.weight.exp_avg" if not shared else
                                              "critic_adam.critic.heads.layers.0.weight.exp_avg"],
                           state["critic_adam.heads.layers.0.weight.exp_avg" if not shared else
                                 "critic_adam.critic.heads.layers.0.weight.exp_avg"])


# --- in a run ------------------------------------------------------------------------------------------------------

WIND = {"agent": "sac", "env": "Wind", "env_options": {"horizon": 6, "radius": 0.9}, "num_envs": 3, "device": "cpu", "log": (),
        "memory": "gru", "memory_size": 4, "memory_output_size": 4, "hidden_sizes": (8,), "obs_embedding": 4, "action_embedding": 3,
        "reward_embedding": 2, "batch_size": 4, "replay_size": 300, "learning_starts": 18, "updates_per_step": 0.25,
        "max_grad_norm": None}
WINDOWS = {"num_steps": 4, "sequence_length": 5}


def test_an_injected_nan_is_skipped_and_the_run_goes_on():
    trainer = Trainer(make_config(**{**WIND, "replay_size": 18 * 3, "batch_size": 16}))
    for _ in range(3):
        trainer.iteration()
    trainer.replay.tensors["reward"][:, 12:18] = math.nan                        # a third of the replay, in every batch
    before = {name: x.clone() for name, x in trainer.agent.state_dict().items() if name != "owed"}
    row = trainer.iteration()
    assert row["skipped"] == row["updates"] > 0
    assert "critic_loss" not in row                                              # there is no mean over no updates
    for name, x in before.items():
        assert torch.equal(x, trainer.agent.state_dict()[name]), name
    for _ in range(3):                                                           # until it is overwritten
        row = trainer.iteration()
    assert row["skipped"] == 0
    assert math.isfinite(row["critic_loss"])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("memory", hm.list_memories())
def test_every_memory_trains(memory, whole):
    sizes = {"memory_size": None if memory == "none" else 4, "sequence_length": None}
    trainer = Trainer(make_config(**{**WIND, **sizes, "memory": memory, **({} if whole else WINDOWS)}))
    assert trainer.replay.whole == whole
    before = {name: x.clone() for name, x in trainer.network.named_parameters()}
    rows = [trainer.iteration() for _ in range(4)]
    assert sum(row["updates"] for row in rows) > 0
    assert sum(row["skipped"] for row in rows) == 0
    assert math.isfinite(rows[-1]["critic_loss"])
    after = dict(trainer.network.named_parameters())
    for part in ("body.memory.", "critic.body.memory.") if memory != "none" else ("actor.", "critic.heads."):
        assert any(not torch.equal(x, after[name]) for name, x in before.items() if name.startswith(part)), part


def test_discrete_actions_from_images():
    for changes in ({"memory": "shm"}, {"memory": "shm", "shared_memory": True}, {"memory": "shm", "actor_memory": "gru"}):
        settings = {**WIND, **WINDOWS, "agent": "sac-discrete", "env": "VisualMatch", "env_options": {"distractor": 2}, **changes}
        trainer = Trainer(make_config(**settings))
        assert trainer.replay.tensors["obs.0"].dtype == torch.uint8
        rows = [trainer.iteration() for _ in range(4)]
        assert sum(row["skipped"] for row in rows) == 0
        assert math.isfinite(rows[-1]["critic_loss"])


def test_actions_are_uniform_until_learning_starts():
    for scale in (1.0, 0.1):
        trainer = Trainer(make_config(**{**WIND, "num_envs": 50, "learning_starts": 900, "random_scale": scale, "replay_size": 3000}))
        found = []
        for i in range(4):
            trainer.iteration()                                                  # of 300 steps
            action = trainer.collector.rollout.action
            noise = trainer.collector.noise.transpose(0, 1)
            uniform = scale * torch.erf(noise / math.sqrt(2))
            assert torch.equal(action, uniform) == (i < 3)
            found.append(action.clone())
        x = torch.cat(found[:3]).flatten().sort().values / scale
        assert float((x - torch.linspace(-1, 1, len(x))).abs().max()) < 0.06     # Kolmogorov and Smirnov's distance, times two


def test_discrete_actions_are_uniform_among_those_allowed():
    agent = make_agent(discrete=True)
    mask = torch.tensor([True, False, True, True]).expand(6000, 4)
    with float64():
        noise = agent.actions.noise(6000, generator=torch.Generator().manual_seed(0))
    counts = agent.random_action(noise, mask)[:, 0].bincount(minlength=4)
    assert counts[1] == 0
    assert bool(((counts[[0, 2, 3]] - 2000).abs() < 200).all())


# --- how many updates ----------------------------------------------------------------------------------------------


def updates_of(iterations, new=64, start=0, **config):
    """Updates in each of some iterations of `new` steps."""
    agent = make_agent(**config)
    batch = make_batch(agent, B=new // 2, L=2)
    with float64():
        agent.attach(Pool(batch))
    agent.update = lambda: agent.number.add_(1)
    found = []
    for i in range(iterations):
        agent.source.steps = (i + 1) * new
        agent.source.full = False
        row = agent.learn(agent.source, Progress(start + i * new, 10**6), torch.Generator().manual_seed(i))
        found.append(int(row["updates"]))
    return found


@pytest.mark.parametrize(("ratio", "new"), [(0.3, 64), (0.3, 10), (0.01, 64), (0.01, 6), (2.5, 2), (0.7, 64), (1.0, 64)])
def test_updates_per_step(ratio, new):
    found = updates_of(120, new=new, updates_per_step=ratio, learning_starts=0)
    wanted = [round(100 * ratio) * new * (i + 1) // 100 for i in range(120)]
    assert [sum(found[:i + 1]) for i in range(120)] == wanted


def test_learning_starts_and_catching_up():
    assert updates_of(6, updates_per_step=0.25, learning_starts=130) == [0, 0, 0, 16, 16, 16]
    assert updates_of(6, updates_per_step=0.25, learning_starts=128) == [0, 0, 16, 16, 16, 16]
    assert updates_of(6, updates_per_step=0.25, learning_starts=130, catch_up=True) == [0, 0, 0, 64, 16, 16]


@pytest.mark.parametrize("catch_up", [False, True])
def test_an_empty_replay_is_filled_first_and_there_is_no_burst(catch_up):
    """As after a resume without the replay."""
    found = updates_of(6, start=10_000, updates_per_step=0.25, learning_starts=190, catch_up=catch_up)
    assert found == [0, 0, 16, 16, 16, 16]


def test_a_replay_smaller_than_learning_starts_is_learned_from():
    trainer = Trainer(make_config(**{**WIND, "replay_size": 18 * 2 + 5, "learning_starts": 39}))
    rows = [trainer.iteration() for _ in range(5)]
    assert [row["updates"] > 0 for row in rows] == [False, False, False, True, True]
