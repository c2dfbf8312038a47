"""Recordings of an episode: what was played, what every memory shows of it, and how far back it reaches."""

import io
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import hadamem as hm
from hadamem import memory as memories
from hadamem.memory.inspection import Shown
from hadamem.reports.inspect import EPSILONS, Trace
from hadamem.runs.config import make_config
from hadamem.training.policy import Policy
from hadamem.training.trainer import Trainer
from hadamem.view import reach
from hadamem.view.record import record, tapped
from hadamem.view.watch import play_frames

from ..training.test_evaluate import policy_for
from ..training.toys import Recall

Image = pytest.importorskip("PIL.Image")
NAME = "popgym/RepeatPreviousEasy"
SMALL = {"memory_size": 8, "memory_output_size": 6}
STEPS = 9


def by_name(recording):
    return {trace.name: trace for trace in recording.traces}


@pytest.fixture(scope="module")
def shm():
    policy = policy_for(NAME, memory="shm", **SMALL, **{"network.memory_options": {"theta_init": 1.0}})
    return policy, record(policy, NAME, seed=3, max_steps=STEPS)


def test_it_is_the_episode_that_watch_shows(shm):
    policy, recording = shm
    *frames, last = play_frames(policy, NAME, seed=3, max_steps=STEPS)
    assert recording.captions == [frame.caption for frame in frames]
    assert recording.result == last.caption
    assert recording.rewards.tolist() == [frame.reward for frame in frames]
    shown = [np.asarray(Image.open(io.BytesIO(recording.frames[n])).convert("RGB")) for n in recording.frame_of_step]
    for one, other in zip(shown, frames, strict=True):
        assert one.shape == other.view.shape
        assert np.abs(one.astype(int) - other.view).mean() < 2      # 64 colours


def test_actions_and_values(shm):
    _, recording = shm
    np.testing.assert_allclose(recording.probabilities.sum(1), 1, rtol=1e-5)
    assert sorted(recording.action_names) == ["clubs", "diamonds", "hearts", "spades"]
    words = [recording.action_names[n] for n, in recording.taken]
    assert words == [caption.split(",")[0] for caption in recording.captions]
    assert [curve.name for curve in recording.curves] == ["value"]


def test_what_shm_shows(shm):
    _, recording = shm
    traces = by_name(recording)
    M, C, U = (traces[name].values for name in "MCU")
    assert M.shape == C.shape == U.shape == (STEPS, 8, 8)
    np.testing.assert_allclose(M[1:], M[:-1] * C[1:] + U[1:], atol=1e-5)
    np.testing.assert_allclose(M[0], U[0], atol=1e-6)
    shares = traces["C"].shares
    assert shares.shape == (len(EPSILONS), STEPS, 2)
    np.testing.assert_allclose(shares[1, 4], [(C[4] < 0.95).mean(), (C[4] > 1.05).mean()])
    assert {triangle.title for triangle in recording.triangles} == {"Gradient reach", "Product of C"}
    assert recording.has_state


@pytest.mark.parametrize("name", memories.list_memories())
def test_every_memory(name):
    recording = record(policy_for(NAME, memory=name, **SMALL), NAME, max_steps=4)
    traces = by_name(recording)
    assert set(traces) > {"y"} or name == "none"
    assert recording.has_state == (name != "none")
    for trace in traces.values():
        assert trace.kind in ("scalar", "vector", "matrix", "attention")
        assert np.isfinite(trace.values).all()
        assert trace.values.shape[1 if trace.kind == "attention" else 0] == 4
    for triangle in recording.triangles:
        later = triangle.sources > triangle.targets[:, None]
        assert np.isnan(triangle.values[later]).all()
        assert np.isfinite(triangle.values[~later]).all()


def policy_of(agent, env, memory):
    """An untrained policy of another agent than PPO, or of PPO."""
    replay = {} if agent == "ppo" else {"replay_size": 2000}
    trainer = Trainer(make_config(env=env, agent=agent, memory=memory, memory_size=8, num_envs=4, num_steps=4, log=(), **replay))
    trainer.close()
    return Policy.of(trainer)


@pytest.mark.parametrize(("agent", "env", "memory", "curves"), [
    ("sac", "PointRobot", "shm", ["action 0: most likely", "action 0: taken"]),
    ("ppo", "PointRobot", "gru", ["value", "action 0: most likely"]),
    ("sac-discrete", "VisualMatch", "gru", []),
    ("sac-discrete", "VisualMatch", "none", []),
    ("ppo", "popgym/BattleshipEasy", "gru", ["value"]),
])
def test_agents_and_actions(agent, env, memory, curves):
    recording = record(policy_of(agent, env, memory), env, max_steps=3)
    assert [curve.name for curve in recording.curves][:len(curves)] == curves
    assert recording.has_state == (memory != "none")
    assert len(recording.captions) == 3
    if env == "PointRobot":
        assert recording.probabilities is None
    else:
        parts = recording.taken.shape[1]
        np.testing.assert_allclose(recording.probabilities.sum(1), parts, rtol=1e-5)
        assert len(recording.action_names) == recording.probabilities.shape[1]


def test_two_memories_show_the_actors():
    recording = record(policy_for(NAME, memory="gru", separate_memories=True, **SMALL), NAME, max_steps=3)
    assert "shown is trunk.memory, not critic_trunk.memory" in recording.notes[0]


def test_a_gymnasium_env():
    recording = record(policy_for(Recall), Recall, env_options={"length": 2})
    assert recording.steps == 2
    assert len(recording.frames) >= 1


class SumState(NamedTuple):
    total: torch.Tensor


class Sum(hm.Memory):
    """A memory of a user: it defines what it must, and shows its state."""

    def __init__(self, input_size, output_size=None, memory_size=3):
        super().__init__()
        self.input_size, self.output_size, self.layer = input_size, memory_size, nn.Linear(input_size, memory_size)

    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        return SumState(torch.zeros(batch_size, self.output_size, device=device))

    def forward(self, x, state=None, reset=None):
        state, ys = self.initial_state(x.shape[0]) if state is None else state, []
        for t, z in enumerate(self.layer(x).unbind(1)):
            state = SumState(z + (state.total if reset is None else torch.where(reset[:, t, None], 0.0, state.total)))
            ys.append(state.total)
        return torch.stack(ys, 1), state

    def step(self, x, state, reset=None):       # through __call__, as a user may write it: still one step
        y, state = self(x[:, None], state, None if reset is None else reset[:, None])
        return y[:, 0], state


def test_a_memory_of_a_user():
    hm.register_memory("sum", Sum, overwrite=True)
    try:
        recording = record(policy_for(NAME, memory="sum", memory_size=3, memory_output_size=None), NAME, max_steps=5)
    finally:
        del memories.MEMORIES["sum"]
    traces = by_name(recording)
    assert [(name, trace.kind, trace.role) for name, trace in traces.items()] == [("total", "vector", "state"), ("y", "vector", "read")]
    np.testing.assert_array_equal(traces["total"].values, traces["y"].values)
    reached = recording.triangles[0].values
    np.testing.assert_allclose(reached[4], reached[4, 0], rtol=1e-5)      # a sum forgets nothing


def test_an_agent_that_acts_through_forward(monkeypatch):
    policy = policy_for(NAME, memory="gru", **SMALL)
    trunk = policy.network.trunk

    def step(x, state, reset):
        y, state = trunk(x[:, None], state, reset[:, None])
        return y[:, 0], state

    def through(layer, x, state=None, reset=None, **promises):
        y, state = trunk.memory(x, state, reset=reset)
        return layer(y), state

    expected = record(policy, NAME, max_steps=4)
    monkeypatch.setattr(trunk, "step", step)
    monkeypatch.setattr(trunk.memory, "through", through)
    recording = record(policy, NAME, max_steps=4)
    for one, other in zip(recording.traces, expected.traces, strict=True):
        np.testing.assert_allclose(one.values, other.values, atol=1e-5)


def test_large_matrices_keep_some_cells():
    recording = record(policy_for(NAME, memory="shm", memory_size=130, memory_output_size=6), NAME, max_steps=2)
    M = by_name(recording)["M"]
    assert M.shape == (130, 130)
    assert M.values.shape == (2, 64, 64)
    assert M.is_reduced
    assert (M.rows[0], M.rows[-1], M.columns[-1]) == (0, 129, 129)


def test_bad_arguments(shm):
    policy, _ = shm
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        record(policy, NAME, max_steps=0)
    with pytest.raises(ValueError, match="seed"):
        record(policy, NAME, seed=-1)


# --- reach ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gru", "shm", "dnc", "gpt2"])
def test_gradient_reach_has_the_ratios_of_the_jacobian(name):
    """With a single output, every projection is a multiple of it, so the estimate is exact up to one factor per row."""
    torch.manual_seed(0)
    memory = memories.make_memory(name, 5, 1, memory_size=8)
    x = torch.randn(6, 5)
    found = reach.gradient_reach(memory, x, memory.initial_state(1)).values
    J = torch.autograd.functional.jacobian(lambda x: memory(x[None])[0][0, :, 0], x).norm(dim=-1).numpy()      # [t, i]
    for t in range(6):
        np.testing.assert_allclose(found[t, :t + 1] / found[t, t], J[t, :t + 1] / J[t, t], rtol=1e-3)


def test_gradient_reach_of_many_outputs_is_near_the_jacobians_norm():
    torch.manual_seed(0)
    memory = memories.make_memory("gru", 5, 64, memory_size=32)
    x = torch.randn(4, 5)
    found = reach.gradient_reach(memory, x, memory.initial_state(1)).values
    J = torch.autograd.functional.jacobian(lambda x: memory(x[None])[0][0], x).norm(dim=(1, 3)).numpy()
    assert np.abs(np.log(found[3] / J[3])).max() < 0.7


def test_long_episodes_are_sampled(monkeypatch):
    monkeypatch.setattr(reach, "SOURCES", 16)
    monkeypatch.setattr(reach, "TARGETS", 8)
    memory = memories.make_memory("gru", 3, 4, memory_size=4)
    found = reach.gradient_reach(memory, torch.randn(50, 3), memory.initial_state(1))
    assert found.values.shape == (8, 13)
    assert (found.targets[0], found.targets[-1]) == (0, 49)
    assert found.sources.tolist() == list(range(0, 50, 4))
    assert np.isfinite(found.values[-1]).all()
    assert np.isnan(found.values[0, 1:]).all()


def test_products_by_hand():
    C = np.array([[3.0, 3.0], [0.5, 2.0], [0.5, 1.0]])
    found = reach.product_reach(Trace("C", "vector", "factor", "", C, (2,)))
    np.testing.assert_allclose(found.values[2], [(0.25 + 2) / 2, (0.5 + 1) / 2, 1.0])
    assert np.isnan(found.values[0, 1:]).all()


def test_a_factor_of_zero_leaves_nothing():
    found = reach.product_reach(Trace("C", "vector", "factor", "", np.array([[1.0], [0.0], [1.0]]), (1,)))
    assert found.values[2, 0] < 1e-20
    assert found.values[2, 1] == 1


def test_tapping_leaves_nothing_behind():
    class Thing:
        def double(self, x):
            return 2 * x

    thing, seen = Thing(), []
    with tapped(thing, "double", lambda result, x: seen.append((x, result))):
        assert thing.double(4) == 8
    assert seen == [(4, 8)]
    assert vars(thing) == {}
    assert Shown(torch.zeros(2, 3)).kind == "vector"
