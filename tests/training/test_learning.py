"""Agents learn on a CPU in seconds: what needs memory is learned with it and not without."""

import pytest

from hadamem.runs.config import make_config
from hadamem.training.trainer import Trainer

ONE_STEP = {"frame_stack": 1, "time_encoding": "sine", "steps_per_iteration": 4096}      # nobody sees more than one step at a time


def learn(env, memory, steps, last=3, enough=None, **changes):
    """Train, and average the return over the last iterations. At an average of `enough`, more than is asked for, no more steps are made."""
    trainer = Trainer(make_config("default", env=env, memory=memory, steps=steps, device="cpu", **changes))
    rows, mean = [], 0.0
    while not trainer.done:
        rows.append(trainer.iteration())
        mean = sum(row["return"] for row in rows[-last:]) / last
        if enough is not None and len(rows) >= last and mean >= enough:
            break
    assert not any(row["skipped"] for row in rows)
    return rows, mean


def test_tmaze_needs_memory():
    """The cue is shown at the first step only: without memory the turn is a coin toss."""
    rows, shm = learn("TMaze", "shm", 120_000, enough=0.97)
    _, none = learn("TMaze", "none", 30_000)
    assert shm > 0.95
    assert rows[-1]["success"] > 0.95
    assert none < 0.65


@pytest.mark.parametrize(("memory", "steps"), [("shm", 140_000), pytest.param("gru", 140_000, marks=pytest.mark.slow)])
def test_recall_of_the_card_before(memory, steps):
    """RepeatPrevious with k = 2: the suit of the card before the one on show."""
    assert learn("popgym/RepeatPreviousEasy", memory, steps, enough=0.85, env_options={"k": 2}, **ONE_STEP)[1] > 0.8


def test_recall_fails_without_memory():
    assert learn("popgym/RepeatPreviousEasy", "none", 50_000, env_options={"k": 2})[1] < 0.2


@pytest.mark.slow
def test_a_pendulum_seen_by_its_position_improves():
    rows, last = learn("popgym/PositionOnlyPendulumEasy", "shm", 30_000, **{"network.memory_size": 32})
    assert last > sum(row["return"] for row in rows[:3]) / 3 + 0.08


def test_cartpole_with_its_large_returns():
    """A foreign env whose returns are in the hundreds: the critic's scale follows them."""
    rows, last = learn("CartPole-v1", "gru", 40_000, enough=150, workers=0, **{"network.memory_size": 32})
    assert last > 100
    assert rows[0]["return"] < 40
