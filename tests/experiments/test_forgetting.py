"""What an agent's memory erases and keeps over the phases of Visual Match."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hadamem as hm
from hadamem import envs
from hadamem.experiments.acting import record, untrained_policy
from hadamem.experiments.studies import forgetting
from hadamem.reports.content import HeatMap
from hadamem.runs.config import make_config

from .studies import run


@pytest.fixture(scope="module")
def found():
    return run(forgetting.make(quick=True))


@pytest.mark.parametrize("memory", list(forgetting.MEMORIES))
def test_the_curves_cover_the_episode(found, memory):
    result = found[0].measures[memory]
    assert result["borders"] == [15, 35, 45]
    curves = result["curves"]
    assert {len(values) for values in curves.values()} == {45}
    np.testing.assert_allclose(np.sum([curves[name] for name in ("erased", "kept", "strengthened")], 0), 1, atol=1e-4)
    assert curves["early"][:15] == [1.0] * 15
    assert curves["early"][-1] < 1
    assert result["phases"][0]["growth"] == result["phases"][0]["chosen"] == 1
    low, middle, high = result["since"]
    assert len(middle) == 30
    assert all(a <= b <= c for a, b, c in zip(low, middle, high, strict=True))
    assert [row["to"] for row in result["phases"]] == result["borders"]


def test_the_report_says_that_it_was_not_solved(found):
    for section in found[1]:
        assert "was not solved" in section.text
        maps = [item for item in section.items if isinstance(item, HeatMap)]
        assert [item.values.shape for item in maps[:3]] == [(8, 45), (8, 45), (8, 8)]


def test_a_recording_replays_the_episodes():
    """Its inputs give the memory's states again, and M follows C: eq. 8."""
    config = make_config(env="VisualMatch", env_options={"distractor": 5}, memory="shm-paper", memory_size=4, num_envs=4, device="cpu")
    policy = untrained_policy(config)
    env = envs.make("VisualMatch", num_envs=3, distractor=5)
    recording = record(policy, env)
    assert recording.x.shape[:2] == recording.reset.shape == recording.reward.shape == (3, 35)
    assert recording.reset[:, 0].all()
    assert not recording.reset[:, 1:].any()
    assert "step" not in vars(recording.memory)                         # it was put back
    M = forgetting._states(recording)
    C = torch.stack(list(hm.diagnostics.calibrations(recording.memory, recording.x, recording.state, recording.reset)))
    U = M[1:] - M[:-1] * C[1:]
    ranks = torch.linalg.matrix_rank(U, atol=1e-5)                      # what was added is an outer product
    assert ranks.max() <= 1
    whole = recording.memory(recording.x, recording.state, recording.reset)[1].M
    torch.testing.assert_close(M[-1].float(), whole)


def test_a_policy_without_memory_cannot_be_recorded():
    config = make_config(agent="sac-discrete", env="VisualMatch", env_options={"distractor": 5}, memory="none", num_envs=2, device="cpu")
    with pytest.raises(ValueError, match="policy has no memory to record"):
        record(untrained_policy(config), envs.make("VisualMatch", num_envs=1, distractor=5))


def test_episodes_of_varying_length_need_a_number_of_steps():
    name = "popgym/PositionOnlyCartPoleEasy"
    policy = untrained_policy(make_config(env=name, memory="shm", memory_size=4, num_envs=4, device="cpu"))
    env = envs.make(name, num_envs=2)
    with pytest.raises(ValueError, match="steps must be given where the length of episodes varies"):
        record(policy, env)
    assert record(policy, env, 3).x.shape[:2] == (2, 3)
