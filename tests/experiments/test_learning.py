"""The bench of everyday tasks: both learners run, and the report has scores, times and curves."""

import pytest

from hadamem.experiments.catalog import make_study
from hadamem.experiments.everyday import RECURRENT_PPO, TASKS, learn
from hadamem.experiments.studies import learning
from hadamem.runs.config import make_config
from hadamem.training.trainer import Trainer

from .studies import run


@pytest.mark.slow
def test_it_learns_and_reports(monkeypatch):
    monkeypatch.setattr("hadamem.experiments.everyday.EPISODES", 4)
    study = learning.make(quick=True, memories=["gru", "none"], tasks=["tmaze", "cartpole"])
    assert [task.name for task in study.tasks] == ["tmaze-2000-gru-0", "tmaze-2000-none-0", "cartpole-2000-gru-0", "cartpole-2000-none-0"]
    results, (section,) = run(study)
    found = results.measures["cartpole-2000-gru-0"]
    assert found["cpu_seconds"] > 0
    assert found["score"] >= 1
    assert found["curve"]["steps"][-1] >= 2000
    assert found["curve"]["cpu_seconds"] == sorted(found["curve"]["cpu_seconds"])
    assert [item.name for item in section.items if hasattr(item, "rows")] == ["scores-2000", "mean-2000", "cpu-2000"]


@pytest.mark.parametrize("kind", RECURRENT_PPO)
def test_recurrent_ppo_runs_on_every_task(kind):
    pytest.importorskip("sb3_contrib")
    for task in TASKS:
        if not TASKS[task].needs:
            assert learn(task, kind, 300, 0).cpu_seconds > 0


@pytest.mark.parametrize("task", ["cartpole", "pendulum", "repeat-previous", "tmaze", "acrobot"])
def test_both_learners_meet_the_same_task(task):
    pytest.importorskip("popgym")
    env = TASKS[task].make()
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    if TASKS[task].native:
        import hadamem as hm

        ours = hm.envs.make(TASKS[task].native, num_envs=1)
        assert ours.single_action_space == env.action_space
        assert ours.single_observation_space.shape == env.observation_space.shape
    env.close()


def test_bad_names():
    with pytest.raises(ValueError, match=r"unknown task 'cartpol'; did you mean 'cartpole'"):
        learning.make(tasks=["cartpol"])
    with pytest.raises(ValueError, match="has no protocol 'release'"):
        make_study("learning", protocol="release")


@pytest.mark.parametrize(("total", "shape"), [(100_000, (16, 64)), (500_000, (16, 244)), (10_000_000, (16, 256))])
def test_iterations_grow_with_the_run(total, shape):
    """Short runs learn from small batches; parts of episodes are short enough for sixteen envs."""
    trainer = Trainer(make_config(env="CartPole-v1", memory="none", total_steps=total, workers=0, device="cpu", log=()))
    assert (trainer.num_envs, trainer.steps) == shape
    trainer.close()
