"""Memories in TorchRL: collectors, replay in recurrent mode, values of next steps, and that PPO learns."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import hadamem as hm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")      # TorchRL warns about itself
    pytest.importorskip("torchrl", reason="needs torchrl: pip install 'hadamem[torchrl]'")
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torchrl.collectors import Collector
    from torchrl.envs import Compose, GymWrapper, InitTracker, SerialEnv, TransformedEnv
    from torchrl.modules import ProbabilisticActor, set_recurrent_mode

from hadamem.integrations._packing import packed_width
from hadamem.integrations.torchrl import MemoryModule

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "integrations"))
import torchrl_ppo

MEMORIES = {**{name: {} for name in hm.list_memories()}, "rows by episode": dict(row_mode="episode", theta_init=1.0)}


class Noise(gymnasium.Env):
    """Episodes of random lengths."""

    observation_space = gymnasium.spaces.Box(-3, 3, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        return self.observe(), 0.0, bool(self.np_random.random() < 0.2), False, {}


def make_module(name="shm", **options):
    kind = name if name in hm.list_memories() else "shm"
    return MemoryModule(hm.make_memory(kind, 2, 5, memory_size=6, **MEMORIES.get(name, {})), in_key="observation", out_key="y", **options)


def collect(module):
    """Two batches [3, 20] of one collector; the second one starts in the middle of episodes."""
    torch.manual_seed(0)
    policy = TensorDictSequential(module, TensorDictModule(torch.nn.Linear(5, 2), in_keys=["y"], out_keys=["logits"]))
    actor = ProbabilisticActor(policy, in_keys=["logits"], distribution_class=torch.distributions.Categorical)
    env = TransformedEnv(SerialEnv(3, lambda: GymWrapper(Noise(), categorical_action_encoding=True)),
                         Compose(InitTracker(), module.make_tensordict_primer()))
    env.set_seed(0)
    return list(Collector(env, actor, frames_per_batch=60, total_frames=120))


@pytest.mark.parametrize("name", MEMORIES)
@torch.no_grad()
def test_recurrent_mode_replays_what_acting_did(name):
    module = make_module(name)
    for data in collect(module):
        again = data.select("observation", "memory_state", "is_init")
        with set_recurrent_mode(True):
            module(again)
        assert data["is_init"][:, 1:].any()
        torch.testing.assert_close(again["y"], data["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["shm", "shm-paper", "gru", "dnc"])
@torch.no_grad()
def test_next_steps_go_on_from_their_states(name):
    """As GAE asks for the values of next steps: the flags then mark the second step of an episode."""
    module = make_module(name)
    data = collect(module)[1]
    following = data["next"].select("observation", "memory_state")
    following["is_init"] = data["next", "is_init"] | data["is_init"]
    with set_recurrent_mode(True):
        module(following)
    same = ~data["is_init"][:, 1:, 0]
    torch.testing.assert_close(following["y"][:, :-1][same], data["y"][:, 1:][same], rtol=1e-4, atol=1e-5)


def test_states_are_carried_and_primed():
    """Envs that go on keep their state while others start again, and every start has random rows of its own."""
    data = torch.cat(collect(make_module("shm-paper")), dim=1)
    start = data["is_init"][..., 0]
    goes_on = ~start[:, 1:]
    assert torch.equal(data["memory_state"][:, 1:][goes_on], data["next", "memory_state"][:, :-1][goes_on])
    fresh = data["memory_state"][start]
    assert (fresh[:, 0] == 1).all()
    assert (data["next", "memory_state"][..., 0] == 2).all()
    assert len(fresh[:, -4:].unique(dim=0)) == len(fresh)      # the clock


def test_without_a_primer_nothing_leaks_into_the_next_episode():
    module = make_module("gru")
    first = TensorDict({"observation": torch.randn(4, 2), "is_init": torch.ones(4, 1, dtype=torch.bool)}, [4])
    used = module(first)["next", "memory_state"]
    start = torch.tensor([[True], [False], [True], [False]])
    data = module(TensorDict({"observation": torch.ones(4, 2), "is_init": start, "memory_state": used}, [4]))
    want, _ = module.memory.step(torch.ones(1, 2), module.memory.initial_state(1))
    torch.testing.assert_close(data["y"][::2], want.expand(2, -1))
    assert not torch.isclose(data["y"][1::2], want).all(dim=1).any()


@pytest.mark.parametrize("name", ["gru", "shm-paper"])
@torch.no_grad()
def test_without_a_primer_learning_starts_episodes_as_acting_does(name):
    """In a loop of one's own: the module replaces the last state of the episode before, in the data too."""
    module = make_module(name)
    seen, start = torch.randn(1, 6, 2), torch.tensor([True, False, False, True, False, True])
    state, steps = torch.zeros(1, packed_width(module.memory)), []
    for t in range(6):
        steps.append(module(TensorDict({"observation": seen[:, t], "is_init": start[None, t:t + 1], "memory_state": state}, [1])))
        state = steps[-1]["next", "memory_state"]
    acted = torch.stack(steps, 1)
    assert acted["memory_state"][0, :, 0].tolist() == [1, 2, 2, 1, 2, 1]
    again = acted.select("observation", "memory_state", "is_init")
    with set_recurrent_mode(True):
        torch.testing.assert_close(module(again)["y"], acted["y"])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 2, 3)])
def test_batch_shapes(shape):
    module = make_module("gru")
    data = TensorDict({"observation": torch.randn(*shape, 2), "is_init": torch.zeros(*shape, 1, dtype=torch.bool)}, shape)
    out = module(data.clone())
    assert out["y"].shape == (*shape, 5)
    assert out["next", "memory_state"].shape == (*shape, 7)
    if shape:
        with set_recurrent_mode(True):
            out = module(data.clone())
        want, state = module.memory(data["observation"].reshape(-1, 3, 2))
        torch.testing.assert_close(out["y"], want.reshape(*shape, 5))
        torch.testing.assert_close(out["next", "memory_state"][..., -1, 1:].reshape(-1, 6), state.h)
        assert not out["next", "memory_state"][..., :-1, :].any()


def test_recurrent_mode_keeps_stored_states():
    data = collect(make_module())[0]
    before = data["next", "memory_state"].clone()
    make_module(default_recurrent_mode=True)(data)
    assert torch.equal(data["next", "memory_state"], before)


def test_call_with_tensors():
    module = make_module("gru")
    y, after = module(observation=torch.randn(3, 2), memory_state=torch.zeros(3, 7), is_init=torch.zeros(3, 1, dtype=torch.bool))
    assert (y.shape, after.shape) == ((3, 5), (3, 7))


def test_errors():
    with pytest.raises(TypeError, match=r"memory must be a hm.Memory, got str; make one with hm.make_memory"):
        MemoryModule("shm", in_key="x", out_key="y")
    with pytest.raises(KeyError, match=r"'is_init' is missing; add torchrl.envs.InitTracker\(\)"):
        make_module()(TensorDict({"observation": torch.randn(3, 2)}, [3]))


@pytest.mark.parametrize(("memory", "low", "high"), [("shm", 0.9, 1.0), ("none", -0.3, 0.3)])
def test_memory_is_what_learns_recall(memory, low, high):
    assert low <= torchrl_ppo.train(memory, steps=10_240) <= high
