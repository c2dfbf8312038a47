"""Training goes on when a worker process dies or hangs, as often as `env_restarts` says."""

import io
import json

import pytest
import torch

from hadamem.envs import EnvError, foreign
from hadamem.runs.config import make_config
from hadamem.training.evaluate import Step, _count
from hadamem.training.loop import train
from hadamem.view.progress import Progress

from .toys import BATCH, TINY, Recall

BOTH = {**TINY, "device": "cpu", "workers": 2}


def settings(iterations=4, **changes):
    return make_config(env="recall", memory="gru", steps=iterations * BATCH, **{**BOTH, **changes})


def train_and_kill(folder, at, **changes):
    """Kill worker 1 of 2 after the iterations `at`. Returns the run, what was said, and the rollout after the first kill."""
    trainers, said, rollouts = [], [], []

    def report(row):
        if rollouts == [None]:
            rollout = trainers[0].collector.rollout
            rollouts[:] = [(rollout.truncated.clone(), rollout.first.clone(), rollout.reward.clone())]
        if row["iteration"] in at:
            trainers[0].env.backend.processes[1].kill()
            rollouts.extend([None] if not rollouts else [])

    run = train(settings(**changes), folder, env=Recall, built=trainers.append, report=report, notify=said.append)
    return run, said, rollouts[0]


def test_training_goes_on_after_a_worker_died(tmp_path):
    run, said, (truncated, first, reward) = train_and_kill(tmp_path / "run", at=(2, 3), env_restarts=2)
    assert run.status == "finished"
    assert [row["env_restarts"] for row in run.metrics] == [0, 0, 1, 1]
    assert [text.partition(": restarted")[2] for text in said] == [f" with new episodes, {i} of 2 restarts used" for i in (1, 2)]
    assert all("envs 4 to 7 was killed by signal 9" in text for text in said)
    assert truncated.nonzero().tolist() == [[i, 0] for i in range(4, 8)]      # the learner sees the old episodes end in the first step
    assert first[4:, 1].all()                                                 # and memories start anew
    assert not reward[4:, 0].any()


def test_a_run_fails_when_the_restarts_are_used_up(tmp_path):
    with pytest.raises(EnvError, match=r"envs 4 to 7 was killed by signal 9, and all 1 restarts \(env_restarts\) are used up"):
        train_and_kill(tmp_path / "run", at=(2, 3), env_restarts=1)
    found = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (found["status"], found["iterations"]) == ("failed", 3)
    assert list((tmp_path / "run" / "checkpoints").glob("*3"))      # the finished iterations are saved
    run = train(settings(env_restarts=1), tmp_path / "run", resume=True, env=Recall, notify=lambda text: None)
    assert (run.status, len(run.metrics)) == ("finished", 4)


def test_both_settings_reach_evaluations_and_may_change(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(foreign.adapter, "Workers", lambda *arguments, **options: made.append(options) or pool(*arguments, **options))
    pool = foreign.pool.Workers
    config = settings(1, env_restarts=3, env_timeout=20.0, eval_every=1, eval_episodes=2)
    train(config, tmp_path / "run", env=Recall)
    assert [(options["restarts"], options["timeout"]) for options in made] == [(3, 20.0)] * 2
    train(settings(2), tmp_path / "run", resume=True, env=Recall, notify=lambda text: None)


def test_settings_that_do_not_fit():
    for changes, match in (({"env_restarts": -1}, "env_restarts must be at least 0"), ({"env_timeout": 0.0}, "env_timeout must be")):
        with pytest.raises(ValueError, match=match):
            settings(**changes)
    with pytest.raises(ValueError, match="env exists already"):
        train(settings(env_restarts=1), env=foreign.adapt(Recall, num_envs=8, workers=0))
    with pytest.raises(ValueError, match="need worker processes, got workers=0"):
        train(settings(env_restarts=1, workers=0), env=Recall)


def test_evaluations_leave_out_episodes_that_a_worker_took_with_it():
    yes, no, one = torch.tensor([True]), torch.tensor([False]), torch.ones(1)
    ends = [{"env_restarted": True}, {"note": "played"}]
    steps = iter([Step(one, no, yes, yes, {"final_info": ends[:1]}), Step(one, no, no, no, {"final_info": [None]}),
                  Step(one, yes, no, yes, {"final_info": ends[1:]})])
    assert _count(steps, 1, 1, None, None).returns == (2.0,)


def test_progress_shows_restarts():
    for live in (False, True):
        stream = io.StringIO()
        with Progress(settings(env_restarts=5), stream=stream, live=live, every=0.0) as progress:
            for i in (1, 2):
                progress({"iteration": i, "steps": i * BATCH, "seconds": 0.1, "env_restarts": 1})
            progress.console.print(progress)
        assert ("2 of 5 restarts of env workers used" if live else "2 env workers restarted") in stream.getvalue()
