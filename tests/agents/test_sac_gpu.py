"""SAC on a real GPU: CUDA graphs and torch.compile change nothing, and the losses are those of the CPU."""

import pytest
import torch

from hadamem import states
from hadamem.agents import Sequences, sac
from hadamem.cuda_graphs import Branch
from hadamem.runs.config import make_config
from hadamem.training.trainer import Trainer

from .sac_toys import pick

pytestmark = pytest.mark.gpu
SMALL = {"num_envs": 4, "memory_size": 8, "memory_output_size": 8, "hidden_sizes": (16,), "batch_size": 8, "learning_starts": 64,
         "updates_per_step": 0.1, "tf32": False, "log": (), "replay_size": 400, "previous_reward": True}
WIND = {**SMALL, "agent": "sac", "env": "Wind", "env_options": {"horizon": 8, "radius": 0.9}}
MATCH = {**SMALL, "agent": "sac-discrete", "env": "VisualMatch", "env_options": {"distractor": 2}, "num_steps": 6, "sequence_length": 10}
CASES = {"whole": WIND, "windows": {**WIND, "num_steps": 6, "sequence_length": 9, "burn_in": 3}, "discrete": MATCH,
         "shared": {**WIND, "shared_memory": True}}


@pytest.mark.parametrize(("memory", "compiled"), [("shm", False), ("shm", True), ("gru", False)])      # compiling takes long
@pytest.mark.parametrize("case", CASES)
def test_graphs_give_what_plain_calls_give(case, memory, compiled):
    settings = {**CASES[case], "memory": memory, "device": "cuda", "compile": compiled}
    plain, graphed = Trainer(make_config(**{**settings, "compile": False}), graphs=False), Trainer(make_config(**settings))
    for _ in range(5):
        a, b = plain.iteration(), graphed.iteration()
        for key in ("critic_loss", "actor_loss", "q", "ent_coef", "updates", "skipped", "return"):
            assert (key in a) == (key in b), key
            if key in a:
                assert b[key] == pytest.approx(a[key], rel=1e-3, abs=1e-4), key
        assert not b["skipped"]
    assert b["updates"] > 0


@pytest.mark.parametrize("memory", ["shm", "gru"])
@pytest.mark.parametrize("case", ["whole", "discrete"])
def test_branches_change_nothing(case, memory, monkeypatch):
    """Actor, critics and targets side by side, in a CUDA graph, give what they give one after the other."""
    found = []
    for branch in (Branch, lambda device: Branch(torch.device("cpu"))):
        monkeypatch.setattr(sac, "Branch", branch)
        trainer = Trainer(make_config(**CASES[case], memory=memory, device="cuda"))
        for _ in range(5):
            updates = trainer.iteration()["updates"]
        assert updates > 0
        found.append([p.detach().clone() for p in trainer.agent.network.parameters()])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def to(batch, device):
    """The same sequences on another device, with their features made beforehand."""
    features = batch.features().to(device)
    names = ("obs", "first", "previous_action", "previous_reward", "action", "reward", "terminal", "valid")
    parts = {name: getattr(batch, name).to(device) for name in names}
    return Sequences(**parts, state=states.apply(lambda x: x.to(device), batch.state), make_features=lambda *_: features,
                     mask=None if batch.mask is None else batch.mask.to(device), whole=batch.whole)


@pytest.mark.parametrize("memory", ["shm", "gru", "shm-paper"])
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_the_cpu(case, memory):
    settings = {**CASES[case], "memory": memory}
    cpu, gpu = (Trainer(make_config(**settings, device=device), graphs=False) for device in ("cpu", "cuda"))
    for _ in range(6):
        cpu.iteration()
    agent, other = cpu.agent, gpu.agent
    other.load_state_dict({name: x.clone() for name, x in agent.state_dict().items()})
    rows = cpu.replay.choose(8, torch.Generator().manual_seed(0))
    batch = pick(cpu.replay.take(rows), torch.arange(8))
    noise = agent.actions.noise(8, cpu.replay.length + 1, generator=torch.Generator().manual_seed(1))
    found = []
    for own, on in ((agent, "cpu"), (other, "cuda")):
        part = to(batch, on)
        features = part.features()
        seen, dist, now, later = own.bodies(features, part)
        critic, q = own.critic_loss(part, now, later, dist, noise.to(on))
        actor, log_prob = own.actor_loss(features, part, seen, dist, noise.to(on))
        grads = torch.autograd.grad(critic + actor, [p for p in own.network.parameters() if p.requires_grad], allow_unused=True)
        found.append([x.detach().cpu() for x in (critic, q, actor, log_prob, *(g for g in grads if g is not None))])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_the_cpu(case):
    """A replay on the GPU gives what one on the CPU gives, from the same rollouts."""
    cpu, gpu = (Trainer(make_config(**{**CASES[case], "memory": "gru", "learning_starts": 10**6}, device=device), graphs=False)
                for device in ("cpu", "cuda"))
    for _ in range(4):
        cpu.iteration()
    gpu.replay.load_chunks((name, cpu.replay.read_chunk(name)) for name in cpu.replay.chunk_names())
    rows = cpu.replay.choose(32, torch.Generator().manual_seed(0))
    a, b = cpu.replay.take(rows), gpu.replay.take(rows.cuda())
    assert torch.equal(a.features(), b.features().cpu())
    for name in ("first", "action", "reward", "terminal", "valid", "previous_reward"):
        assert torch.equal(getattr(a, name), getattr(b, name).cpu()), name
