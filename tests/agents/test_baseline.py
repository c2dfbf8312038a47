"""`actor_baseline`: what the actor's rewards are measured against."""

from dataclasses import replace

import torch

from hadamem.agents import PPO, AgentSpec, NetworkConfig, PPOConfig
from hadamem.agents.ppo import make_batch
from hadamem.runs.config import make_config
from hadamem.training.trainer import Trainer

from .test_ppo import MULTI, act

LEARNED = PPOConfig(actor_gamma=0.5, actor_baseline="learned", normalize_advantage="none")


def agent(config):
    torch.manual_seed(0)
    return PPO(AgentSpec(7, MULTI, NetworkConfig(memory="shm", memory_size=12, memory_output_size=16), config))


def rollout(made, expected=None):
    r = act(made.network)
    return r if expected is None else replace(r, extras={**r.extras, "expected": expected})


def make_trainer(**settings):
    return Trainer(make_config(env="popgym/AutoencodeEasy", memory="none", actor_gamma=0.0, actor_baseline="learned",
                               gamma_schedule="constant", log=(), device="cpu", **settings))


def test_what_is_expected_is_subtracted():
    made = agent(LEARNED)
    r = rollout(made)
    rewards = make_batch(r, replace(LEARNED, actor_baseline="mean")).advantage
    expected = torch.randn_like(r.reward)
    batch = make_batch(rollout(made, expected), LEARNED, unit=2.0)
    wanted = batch.wanted
    torch.testing.assert_close(wanted - wanted.mean(), rewards)
    torch.testing.assert_close(batch.advantage, wanted - 2.0 * expected)
    torch.testing.assert_close(batch.target, make_batch(r, LEARNED).target)                # the critic learns as before
    assert make_batch(r, LEARNED).wanted is None                                           # an agent without a baseline


def test_its_error_moves_nothing_else():
    made = agent(LEARNED)
    r = rollout(made)
    batch = make_batch(rollout(made, torch.zeros_like(r.reward)), LEARNED)
    gradients = []
    for wanted in (batch.wanted, batch.wanted + 1.0):
        made.network.zero_grad()
        made.loss(batch._replace(wanted=wanted))[0].backward()
        gradients.append({name: p.grad.clone() for name, p in made.network.named_parameters() if p.grad is not None})
    changed = {name for name, gradient in gradients[0].items() if not torch.equal(gradient, gradients[1][name])}
    assert changed == {"baseline.weight", "baseline.bias"}


def test_it_adds_nothing_to_agents_without():
    """Other agents have the same weights and the same checkpoints as before."""
    plain, made = agent(PPOConfig(actor_gamma=0.5)), agent(LEARNED)
    added = {"network.baseline.weight", "network.baseline.bias", "actor_square"}
    with_adam = {name for name in set(made.state_dict()) - set(plain.state_dict()) if not name.startswith("adam.baseline")}
    assert with_adam == added
    for name, x in plain.network.state_dict().items():
        assert torch.equal(x, made.network.state_dict()[name]), name


def test_it_learns_what_each_step_is_worth():
    """Autoencode pays nothing while the cards are shown. What is left of the mean reward of each step of an episode must become small."""
    trainer = make_trainer(steps_per_iteration=4096, total_steps=48_000)
    left = []
    while not trainer.done:
        unit = trainer.agent.actor_square.sqrt().clone()      # in which the coming rollout is expected
        trainer.iteration()
        r = trainer.collector.rollout
        error = r.reward - r.extras["expected"] * unit
        left.append(float(error.mean(0).square().mean() / r.reward.mean(0).square().mean()))
    assert left[0] == 1.0
    assert sum(left[-5:]) / 5 < 0.3


def test_a_run_continues_with_it():
    whole, first, second = (make_trainer(steps_per_iteration=832, total_steps=10_000) for _ in range(3))
    for trainer in (whole, whole, whole, first):
        trainer.iteration()
    second.set_state(first.get_state())
    for _ in range(2):
        second.iteration()
    wanted, got = whole.get_state(), second.get_state()
    assert float(wanted["agent.actor_square"]) > 0
    assert set(wanted) == set(got)
    assert all(torch.equal(x, got[name]) for name, x in wanted.items())
