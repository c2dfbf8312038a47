"""Studies on Ray: what is asked of it, and (slow) a real cluster of two workers, one of them killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hadamem.experiments import cluster
from hadamem.experiments.folder import StudyFolder
from hadamem.experiments.own import grid
from hadamem.experiments.running import run_study
from hadamem.experiments.worker import BAD_INPUT

from .test_running import SMALL


class FakeRay:
    """Runs tasks when they are waited for. `codes`: what each call of the worker gives, in turn."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self, codes):
        self.codes, self.options, self.calls, self.down = list(codes), {}, [], False

    def remote(self, **options):
        self.options = options
        return lambda function: self

    def __getattr__(self, name):
        raise AttributeError(name)

    def wait(self, references, num_returns, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        code = self.codes.pop(0)
        if isinstance(code, Exception):
            raise code
        return code

    def shutdown(self):
        self.down = True


@pytest.fixture
def study(tmp_path):
    made = grid("small", ["TMaze"], ["none"], seeds=3, steps=256, settings=SMALL)
    StudyFolder(tmp_path).begin(made)
    return made


def test_ray_schedules_and_retries(tmp_path, study, monkeypatch):
    ray = FakeRay([0, BAD_INPUT, cluster.TaskFailed("exit code 1")])
    handles = iter(range(3))

    class Remote:
        def remote(self, *arguments):
            ray.calls.append(arguments)
            return next(handles)

    ray.remote = lambda **options: setattr(ray, "options", options) or (lambda function: Remote())
    monkeypatch.setattr(cluster, "connect", lambda address, jobs: ray)
    folder = StudyFolder(tmp_path)
    ticks = []
    assert cluster.launch(folder, study.tasks, retries=4, num_gpus=0.5, tick=lambda: ticks.append(1))
    assert ray.options == {"num_cpus": 1.0, "num_gpus": 0.5, "max_retries": 4, "retry_exceptions": [cluster.TaskFailed], "max_calls": 1}
    assert [call[0] for call in ray.calls] == [[str(tmp_path.resolve()), task.name] for task in study.tasks]
    assert ray.down
    assert len(ticks) == 3
    assert "exit code 1" in folder.failure(study.tasks[2])["error"]
    assert folder.failure(study.tasks[1]) is not None      # bad input is not retried, and noted


def test_a_worker_keeps_its_output_in_a_log_and_fails_with_an_exception(tmp_path, study, monkeypatch):
    log = tmp_path / "log"
    assert cluster.run_worker([str(tmp_path), "no-such-task"], str(log), str(tmp_path)) == BAD_INPUT
    assert "has no task 'no-such-task'" in log.read_text()
    monkeypatch.setattr("hadamem.experiments.worker.do_task", lambda *_: 1)
    with pytest.raises(cluster.TaskFailed, match="exit code 1"):
        cluster.run_worker([str(tmp_path), "x"], str(log), os.getcwd())


@pytest.mark.parametrize(("address", "words"), [("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1"), ("nowhere", "host:port"),
                                                ("ray://127.0.0.1:1", "no Ray cluster answers")])
def test_an_address_that_does_not_answer(tmp_path, study, address, words):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=words):
        run_study(study, tmp_path, launcher="ray", ray_address=address)
    assert StudyFolder(tmp_path).state(study.tasks[0]) == "waiting"


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(tmp_path):
    """Two workers; one is killed in the middle of a run. All runs finish once, and the interrupted one continues from its checkpoint."""
    pytest.importorskip("ray")
    (tmp_path / "mine.yaml").write_text("envs: [TMaze]\nmemories: [none, gru]\nseeds: 2\nsteps: 38400\n"
                                        "settings: {device: cpu, num_envs: 8, num_steps: 16, num_epochs: 1, memory_size: 8, log: [], "
                                        "checkpoint_every: 0.2}\n")
    command = [sys.executable, "-m", "hadamem", "study", "mine.yaml", "--plain", "--out", "study", "--launcher", "ray", "--jobs", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs = tmp_path / "study" / "runs"
    end, victim = time.monotonic() + 180, None
    while victim is None:
        assert time.monotonic() < end, process.communicate()[0]
        time.sleep(0.2)
        for folder in runs.glob("*-0"):
            if list((folder / "checkpoints").glob("*/about.json")) and (folder / "metrics.jsonl").read_text().count("\n") > 20:
                victim = next((pid for pid in _workers() if str(folder) in _open_files(pid)), None)
    os.kill(victim, signal.SIGKILL)
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0, out
    for name in ("TMaze-none-0", "TMaze-none-1", "TMaze-gru-0", "TMaze-gru-1"):
        iterations = [json.loads(line)["iteration"] for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
        assert iterations == list(range(1, 301)), name
    resumed = [json.loads((runs / name / "run.json").read_text())["resumed"] for name in ("TMaze-none-0", "TMaze-gru-0")]
    assert sum(len(entries) for entries in resumed) == 1
    assert max(entry["iteration"] for entries in resumed for entry in entries) > 10      # not from the start


def _workers():
    """Processes of Ray that do a task."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::run_worker" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def _open_files(pid):
    try:
        return " ".join(os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return ""
