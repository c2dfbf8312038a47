"""Adam of the agents: with parameters as views of one vector, as on a GPU, it does what torch's does."""

import copy

import pytest
import torch
from torch import nn

from hadamem.agents import optimizers
from hadamem.agents.optimizers import Adam, Flat
from hadamem.runs.config import make_config
from hadamem.training.trainer import Trainer


@pytest.fixture
def pair(monkeypatch):
    """The same network twice, with torch's Adam and with the flat one."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 2))
    plain.register_parameter("unused", nn.Parameter(torch.ones(3)))
    flat = copy.deepcopy(plain)
    first = Adam(plain, 1e-2)
    monkeypatch.setattr(optimizers, "usable", lambda device: True)
    return (plain, first), (flat, Adam(flat, 1e-2))


def loss_of(network, i):
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(i))
    return (network(x) - x[:, :2].sin()).square().mean() * 10.0 ** (i % 3)


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_updates_agree(pair, max_norm):
    for i in range(12):
        (loss, norm), (flat_loss, flat_norm) = ((loss, adam.update(loss, max_norm).clone()) for network, adam in pair
                                                for loss in [loss_of(network, i)])
        torch.testing.assert_close(flat_loss, loss)
        torch.testing.assert_close(flat_norm, norm)
    (plain, adam), (flat, flat_adam) = pair
    assert flat_adam.flat is not None
    assert adam.flat is None
    for a, b in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
    assert adam.state_tensors().keys() == flat_adam.state_tensors().keys()
    for name, x in flat_adam.state_tensors().items():
        if "unused" not in name:
            torch.testing.assert_close(x, adam.state_tensors()[name], rtol=1e-4, atol=1e-6)


def test_a_checkpoint_of_one_continues_the_other(pair):
    (plain, adam), (flat, flat_adam) = pair
    for i in range(3):
        adam.update(loss_of(plain, i))
    flat.load_state_dict(plain.state_dict())
    flat_adam.load_state_tensors(adam.state_tensors())
    for i in range(3, 6):
        for network, optimizer in pair:
            optimizer.update(loss_of(network, i), 1.0)
    for a, b in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)


def test_bad_and_blocked_updates_change_nothing(pair):
    for network, adam in pair:
        adam.update(loss_of(network, 0))
        before = [x.clone() for x in (*network.parameters(), *adam.state_tensors().values())]
        adam.update(loss_of(network, 1) * torch.nan)
        assert adam.skip == 1
        adam.update(loss_of(network, 1), None, torch.tensor(1.0))
        assert adam.skip == 1
        assert all(torch.equal(x, y) for x, y in zip(before, (*network.parameters(), *adam.state_tensors().values()), strict=True))
        adam.update(loss_of(network, 1))
        assert adam.skip == 0


def test_step_takes_gradients_as_they_are(pair):
    for i in range(3):
        for network, adam in pair:
            adam.zero_grad()
            loss_of(network, i).backward()
            adam.skip.fill_(i == 1)
            adam.step()
    (plain, _), (flat, flat_adam) = pair
    for a, b in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
    assert flat_adam.flat_state.steps == 2


def test_flat_tensors_are_aligned_views():
    tensors = [torch.randn(shape) for shape in ((3, 5), (), (64,), (2, 2, 2))]
    before = [x.clone() for x in tensors]
    flat = Flat(tensors)
    assert all(torch.equal(x, y) for x, y in zip(before, tensors, strict=True))
    assert all((x.data_ptr() - flat.vector.data_ptr()) % (4 * optimizers.ALIGNED) == 0 for x in tensors)
    flat.vector.add_(1)
    assert all(torch.equal(x, y + 1) for x, y in zip(tensors, before, strict=True))
    assert torch.equal(flat.gather([None, *tensors[1:]])[:15], torch.zeros(15))


@pytest.mark.parametrize("settings", [{}, {"shared_memory": True}, {"agent": "ppo"}])
def test_agents_learn_the_same(settings, monkeypatch):
    """Weights, moments and target critics after some updates."""
    sac = {"agent": "sac", "learning_starts": 100, "batch_size": 4, "updates_per_step": 0.05, "hidden_sizes": (8,), "max_grad_norm": 0.5}
    ppo = {"num_epochs": 2, "num_minibatches": 2, "num_steps": 20, "adam_eps": 1e-5}      # with 1e-8, Adam's first steps magnify rounding
    config = make_config("default", **{**(ppo if "agent" in settings else sac), "env": "Wind", "memory": "shm", "num_envs": 4,
                                       "memory_size": 8, "memory_output_size": 4, "device": "cpu", **settings})
    found = []
    for flat in (False, True):
        monkeypatch.setattr(optimizers, "usable", lambda device, flat=flat: flat)
        trainer = Trainer(config)
        for _ in range(2):
            trainer.iteration()
        found.append({name: x for name, x in trainer.agent.state_dict().items() if x.is_floating_point() and not name.endswith(".step")})
        trainer.close()
    assert found[0].keys() == found[1].keys()
    for name, x in found[0].items():
        torch.testing.assert_close(found[1][name], x, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
