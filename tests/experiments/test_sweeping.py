"""The loop of a sweep, with runs that are made up, and with real ones."""

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

pytest.importorskip("optuna")

from hadamem.cli import main
from hadamem.experiments.ray_jobs import RayJob
from hadamem.experiments.sweep import make_sweep
from hadamem.experiments.sweep_folder import SweepFolder
from hadamem.experiments.sweeping import HOPELESS, command, open_study, points, run_sweep
from hadamem.runs.folder import is_run, load_config, read_info
from hadamem.runs.metrics import append_row, read_rows

STEPS, ROUND = 1000, 250      # of a run that is made up, and of each of its iterations


def sweep_of(**changes):
    search = {"learning_rate": {"low": 1e-5, "high": 1e-1, "log": True}, "num_epochs": {"low": 1, "high": 8}}
    usual = {"search": search, "env": "TMaze", "memory": "gru", "steps": STEPS, "trials": 12, "pruning": "none"}
    return make_sweep("fake", **{**usual, **changes})


class Killed(BaseException):
    """The end of the sweep's own process."""


class FakeProcess:
    interrupted = False

    def send_signal(self, number):
        self.interrupted = True


class FakeRuns:
    """Stands for `run_jobs`. Runs write rows but train nothing: a row in every round."""

    def __init__(self, objective, killed_after=None, stopped=130):
        self.objective, self.left, self.stopped = objective, killed_after, stopped
        self.starts = []

    def __call__(self, jobs, at_once, *, again, tick, **_):
        running = []
        while True:
            while len(running) < at_once and (job := next(jobs, None)) is not None:
                self.start(job)
                running.append(job)
            if not running:
                return False
            for job in running:
                self.advance(job)
            tick(running)
            ended = [job for job in running if job.code is not None]
            running = [job for job in running if job.code is None]
            for job in ended:
                if again(job):
                    self.start(job)
                    running.append(job)

    def start(self, job):
        words = job.command()
        config, place = map(Path, words[words.index("-m") + 2:][:2])
        self.starts.append(place.name)
        place.mkdir(exist_ok=True)
        if not is_run(place):
            shutil.copy(config, place / "config.yaml")
        job.process, job.code, job.starts, job.place, job.config = FakeProcess(), None, job.starts + 1, place, load_config(config)
        self.note(place, "running")

    def note(self, place, status):
        (place / "run.json").write_text(json.dumps({"status": status}))

    def advance(self, job):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed
        config, rows = job.config, read_rows(job.place / "metrics.jsonl")
        steps = ROUND * (len(rows) + 1)
        value = self.objective(config, steps)
        if job.process.interrupted or value is None:
            job.code = self.stopped if job.process.interrupted else 2
            return self.note(job.place, "interrupted" if job.process.interrupted else "failed")
        append_row(job.place / "metrics.jsonl", {"iteration": len(rows) + 1, "steps": steps, "return": value, "episodes": 1})
        if steps >= config.total_steps:
            job.code = 0
            self.note(job.place, "finished")


def bowl(config, steps):
    """Best at a learning rate of 1e-3, from the first step on."""
    return -(math.log10(config.algorithm.learning_rate) + 3) ** 2 + 0.1 * config.seed


@pytest.fixture(autouse=True)
def few_points(monkeypatch, request):
    """Every report to Optuna is a commit, which takes a while."""
    if "points" not in request.node.name:
        monkeypatch.setattr("hadamem.experiments.sweeping.POINTS", 4)


def states(study):
    return [trial.state.name for trial in study.get_trials()]


def test_the_best_settings_are_found_and_written(tmp_path):
    sweep, runs = sweep_of(seeds=[0, 4], trials=16), FakeRuns(bowl)
    study = run_sweep(sweep, tmp_path / "a", jobs=3, launch=runs)
    assert states(study) == ["COMPLETE"] * 16
    assert len(runs.starts) == len(set(runs.starts)) == 32
    best = max(study.get_trials(), key=lambda trial: trial.value)
    assert best.value == pytest.approx(0.2 - (math.log10(best.params["ppo.learning_rate"]) + 3) ** 2)      # mean over seeds
    assert best.value > 0
    config = load_config(tmp_path / "a" / "best.yaml")
    assert config.algorithm.learning_rate == best.params["ppo.learning_rate"]
    assert config.seed == 0
    before = len(runs.starts)
    (tmp_path / "a" / "best.yaml").unlink()
    run_sweep(sweep, tmp_path / "a", launch=runs)
    assert len(runs.starts) == before
    assert load_config(tmp_path / "a" / "best.yaml") == config
    study = run_sweep(dataclasses.replace(sweep, trials=17), tmp_path / "a", launch=runs)
    assert states(study) == ["COMPLETE"] * 17
    with pytest.raises(ValueError, match=r"another seeds \(\[0, 4\] there, \[0\] here\); choose another folder"):
        run_sweep(sweep_of(), tmp_path / "a", launch=runs)


def test_minimize(tmp_path):
    study = run_sweep(sweep_of(direction="minimize", sampler="random", trials=6), tmp_path / "a", jobs=1, launch=FakeRuns(bowl))
    assert study.best_trial.value == min(trial.value for trial in study.get_trials())
    assert load_config(tmp_path / "a" / "best.yaml").algorithm.learning_rate == study.best_trial.params["ppo.learning_rate"]


@pytest.mark.parametrize("killed_after", [*(pytest.param(n, marks=pytest.mark.slow) for n in (0, 2, 12)), 11])      # a trial takes 4 rounds
def test_a_killed_sweep_does_the_same_trials(tmp_path, killed_after):
    sweep = sweep_of(trials=4)
    whole = run_sweep(sweep, tmp_path / "whole", jobs=1, launch=FakeRuns(bowl))
    with pytest.raises(Killed):
        run_sweep(sweep, tmp_path / "killed", jobs=1, launch=FakeRuns(bowl, killed_after))
    rest = FakeRuns(bowl)
    killed = run_sweep(sweep, tmp_path / "killed", jobs=1, launch=rest)
    assert states(killed) == ["COMPLETE"] * 4
    assert [(trial.params, trial.value) for trial in killed.get_trials()] == [(trial.params, trial.value) for trial in whole.get_trials()]
    assert rest.starts == [f"{n:04d}-seed-0" for n in range(killed_after // 4, 4)]      # the unfinished one is resumed, others are not


@pytest.mark.parametrize("stopped", [130, -9])
def test_bad_trials_are_pruned(tmp_path, stopped):
    """Each is started once, also where its process had to be killed."""
    sweep = sweep_of(pruning="median", warmup_trials=3, warmup_steps=500, sampler="random", trials=12, seeds=2)
    runs = FakeRuns(bowl, stopped=stopped)
    study = run_sweep(sweep, tmp_path / "a", jobs=2, launch=runs)
    found = states(study)
    assert len(runs.starts) == len(set(runs.starts))
    assert found.count("PRUNED") >= 3
    assert found[:3] == ["COMPLETE"] * 3
    assert set(found) == {"PRUNED", "COMPLETE"}
    for trial in study.get_trials():
        if trial.state.name == "PRUNED":
            place = tmp_path / "a" / "trials" / f"{trial.number:04d}-seed-0"
            assert read_info(place)["status"] == "interrupted"
            assert 500 <= read_rows(place / "metrics.jsonl")[-1]["steps"] < STEPS
            assert trial.value < study.best_value


def test_failed_trials_are_replaced(tmp_path):
    said = []

    def objective(config, steps):
        return None if config.algorithm.num_epochs > 4 else bowl(config, steps)

    study = run_sweep(sweep_of(trials=6, sampler="random"), tmp_path / "a", jobs=2, launch=FakeRuns(objective), say=said.append)
    assert states(study).count("COMPLETE") == 6
    assert "FAIL" in states(study)
    assert all(trial.user_attrs["error"] == "exit code 2" for trial in study.get_trials() if trial.state.name == "FAIL")
    assert "the best so far" in said[0]
    study = run_sweep(sweep_of(trials=9), tmp_path / "b", jobs=1, launch=FakeRuns(lambda config, steps: None))
    assert states(study) == ["FAIL"] * HOPELESS
    assert not (tmp_path / "b" / "best.yaml").exists()


def test_points_do_not_depend_on_the_order_of_seeds():
    rows = [[{"steps": 100 * (k + 1), "return": float(k + n), "episodes": 1} for k in range(10)] for n in range(2)]
    whole = list(points(rows, 1000, "return"))
    assert whole[0] == (100, 0.0)
    assert whole[-1] == (1950, np.mean([np.mean(range(10)), np.mean(range(1, 10))]))
    first = list(points([rows[0], []], 1000, "return"))
    assert first == whole[:len(first)]
    assert first[-1][0] == 1000
    assert list(points([rows[0][:3], rows[1]], 1000, "return")) == whole[:5]      # seed 1 is ahead: it waits for seed 0
    assert list(points([[], []], 1000, "return")) == []


TINY = """
env: TMaze
memory: gru
steps: 1200
settings: {num_envs: 8, num_steps: 25, memory_size: 8, device: cpu, log: []}
search:
  learning_rate: {low: 1e-4, high: 1e-2, log: true}
  num_epochs: {choices: [1, 2]}
trials: 4
"""


@pytest.mark.slow
def test_a_sweep_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert main(["sweep", "tiny.yaml", "--jobs", "2", "--plain"]) == 0
    said = capsys.readouterr().out
    assert "4 of 4 finished" in said
    assert "hadamem train --config sweeps/tiny/best.yaml" in said
    assert len(list((tmp_path / "sweeps/tiny/trials").glob("*/config.yaml"))) == 4
    assert main(["sweep", "status", "tiny"]) == 0
    said = capsys.readouterr().out
    assert said.count("1,200 / 1,200") == 4
    assert "learning_rate" in said
    assert main(["train", "--config", "sweeps/tiny/best.yaml", "--steps", "400", "--name", "longer", "--plain"]) == 0
    best = yaml.safe_load((tmp_path / "sweeps/tiny/best.yaml").read_text())
    assert yaml.safe_load((tmp_path / "runs/longer/config.yaml").read_text())["ppo"] == best["ppo"]


OWN_ENV = """
import time
import gymnasium

class Slow(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        time.sleep(0.002)
        return 0, float(action), True, False, {}
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_real_sweep_is_killed_and_resumed(tmp_path, number):
    """With an env of the user's own, two runs at a time. The children of a killed sweep stop by themselves, with a checkpoint."""
    (tmp_path / "own.py").write_text(OWN_ENV)
    (tmp_path / "s.yaml").write_text(TINY.replace("TMaze", "own:Slow").replace("steps: 1200", "steps: 6000"))
    command = [sys.executable, "-m", "hadamem", "sweep", "s.yaml", "--jobs", "2", "--plain"]
    trials = tmp_path / "sweeps" / "s" / "trials"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as first:
        end = time.monotonic() + 120
        while len(list(trials.glob("*/checkpoints/*/about.json"))) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        os.kill(first.pid, number)
        said = first.communicate(timeout=60)[0]
        assert first.returncode == (130 if number == signal.SIGINT else -number), said
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stdout + again.stderr
    folder = SweepFolder(tmp_path / "sweeps" / "s")
    study = open_study(folder.read(), folder)
    assert states(study) == ["COMPLETE"] * 4
    assert len(list(trials.glob("*/config.yaml"))) == 4
    resumed = [read_info(place)["resumed"] for place in trials.iterdir() if is_run(place)]
    assert sum(len(times) for times in resumed) == 2
    assert all(time["iteration"] > 0 for times in resumed for time in times)
    for place in trials.glob("*/metrics.jsonl"):
        steps = [row["steps"] for row in read_rows(place)]
        assert steps == sorted(set(steps))
        assert steps[-1] >= 6000


class FakeRay:
    """A cluster whose task ends with `outcome`, an exit code or an error, when it is cancelled."""

    def __init__(self, outcome):
        self.outcome, self.cancelled = outcome, []
        self.exceptions = SimpleNamespace(TaskCancelledError=KeyError, RayError=OSError)

    def wait(self, references, timeout):
        return (references, []) if self.cancelled else ([], references)

    def get(self, reference):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def cancel(self, reference, force=False):
        self.cancelled.append((reference, force))


@pytest.mark.parametrize(("outcome", "code"), [(0, 0), (130, 130), (KeyError(), 130), (OSError(), 1)])
def test_a_ray_task_is_like_a_process(tmp_path, outcome, code):
    ray, sent = FakeRay(outcome), []
    job = RayJob("a", lambda: command(tmp_path / "a"), tmp_path / "a.log", ray=ray,
                 remote=SimpleNamespace(remote=lambda *words: sent.append(words) or "task"))
    job.start({})
    assert sent == [([str(tmp_path / "a.yaml"), str(tmp_path / "a")], str(tmp_path / "a.log"), os.getcwd())]
    assert job.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        job.process.wait(0.0)
    job.interrupt()
    assert job.process.wait() == job.process.poll() == code
    job.process.kill()
    assert ray.cancelled == [("task", False), ("task", True)]


@pytest.mark.slow
def test_a_sweep_on_ray(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert main(["sweep", "tiny.yaml", "--trials", "2", "--jobs", "2", "--launcher", "ray", "--plain"]) == 0
    assert all(read_info(place)["status"] == "finished" for place in (tmp_path / "sweeps/tiny/trials").iterdir() if is_run(place))
