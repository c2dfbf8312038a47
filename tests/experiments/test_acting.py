"""Agents that studies measure: a run that was stopped has none."""

from __future__ import annotations

from functools import partial

import pytest

from hadamem.experiments import acting
from hadamem.experiments.folder import StudyFolder
from hadamem.experiments.studies import forgetting, vanishing
from hadamem.experiments.worker import INTERRUPTED, do_task, guard
from hadamem.runs.config import make_config
from hadamem.training.loop import train


@pytest.fixture
def stopped(monkeypatch):
    """Every run is asked to stop, as by Ctrl-C."""
    monkeypatch.setattr(acting, "train", partial(train, should_stop=lambda: True))


def config():
    return make_config(env="popgym/RepeatPreviousEasy", memory="shm", memory_size=4, num_envs=4, steps_per_iteration=256, total_steps=512,
                       device="cpu")


def test_a_finished_run_gives_its_policy():
    assert acting.trained_policy(config()).network is not None


def test_a_stopped_run_gives_none(stopped):
    with pytest.raises(KeyboardInterrupt):
        acting.trained_policy(config())


@pytest.mark.parametrize(("study", "name"), [(vanishing.make(quick=True), "shm-trained"), (forgetting.make(quick=True), "shm")])
def test_a_stopped_measurement_is_not_finished(stopped, study, name, tmp_path):
    folder = StudyFolder(tmp_path)
    folder.begin(study)
    assert guard(lambda: do_task(folder, name)) == INTERRUPTED
    assert folder.state(folder.task(name)) == "waiting"
