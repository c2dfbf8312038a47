"""Several runs in parallel."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hadamem import lookup
from hadamem.cli import build_parser, main
from hadamem.cli.train import read_settings
from hadamem.runs.config import make_config
from hadamem.runs.folder import RunFolder
from hadamem.training import launch
from hadamem.training.launch import train_many
from hadamem.training.processes import Job, run_jobs, terminated_is_interrupted
from hadamem.training.run import open_run

SMALL = {"num_envs": 8, "num_steps": 16, "num_epochs": 1, "memory_size": 8, "memory_output_size": 8, "device": "cpu", "log": ()}


def configs(steps, seeds=(0, 1)):
    return {f"seed-{s}": make_config(env="TMaze", memory="gru", steps=steps, seed=s, **SMALL) for s in seeds}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with two finished runs."""
    folder = tmp_path_factory.mktemp("finished")
    assert train_many(configs(512), folder, jobs=2, say=lambda text: None) == {"seed-0": 0, "seed-1": 0}
    return folder


def test_every_run_is_finished_once(finished):
    said = []
    runs = [open_run(finished / f"seed-{s}") for s in (0, 1)]
    assert [run.config.seed for run in runs] == [0, 1]
    assert runs[0].metrics[-1]["steps"] == 512
    assert runs[0].metrics[-1]["loss"] != runs[1].metrics[-1]["loss"]
    before = (finished / "seed-0" / "metrics.jsonl").read_text()
    assert train_many(configs(512, (0, 1)), finished, jobs=1, say=said.append) == {"seed-0": 0, "seed-1": 0}
    assert said == ["seed-0: already finished", "seed-1: already finished"]
    assert (finished / "seed-0" / "metrics.jsonl").read_text() == before


def test_other_settings_are_refused_and_runs_can_be_extended(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    other = {"seed-0": make_config(env="TMaze", memory="none", steps=512, **SMALL)}
    with pytest.raises(ValueError, match="other settings"):
        train_many(other, tmp_path, jobs=1)
    assert train_many(configs(768, (0,)), tmp_path, jobs=1, say=lambda text: None) == {"seed-0": 0}
    assert open_run(tmp_path / "seed-0").metrics[-1]["steps"] == 768


def start_two(folder):
    """`hadamem train --seeds 0 1` in a process, and the numbers of the processes that it trains in."""
    command = [sys.executable, "-m", "hadamem", "train", "--env", "TMaze", "--memory", "gru", "--steps", "4000000", "--seeds", "0", "1",
               "--out", str(folder), "--device", "cpu", "--log", "none",
               "--set", "num_envs=8", "num_steps=16", "ppo.num_epochs=1", "network.memory_size=8"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 180
    while not all((folder / f"seed-{s}" / "metrics.jsonl").exists() for s in (0, 1)):
        assert time.monotonic() < end
        time.sleep(0.1)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) == 2
    return process, children


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_runs_that_are_killed_are_not_finished(tmp_path, sign):
    """SIGTERM and SIGHUP to the launcher leave no process running; a killed run gives an exit code that is not 0."""
    process, children = start_two(tmp_path)
    if sign != signal.SIGKILL:
        process.send_signal(sign)
        if sign == signal.SIGHUP:      # a shell and the system send one each
            time.sleep(0.05)
            process.send_signal(sign)
    else:
        for child in children:
            os.kill(child, sign)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (1 if sign == signal.SIGKILL else 130), out
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    if sign == signal.SIGHUP:
        assert [open_run(tmp_path / f"seed-{s}").status for s in (0, 1)] == ["interrupted"] * 2


@pytest.mark.slow
def test_runs_end_with_a_launcher_that_is_killed(tmp_path):
    """With a checkpoint, though nobody is left to ask them."""
    process, children = start_two(tmp_path)
    process.kill()
    process.communicate()
    end = time.monotonic() + 180
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert [open_run(tmp_path / f"seed-{s}").status for s in (0, 1)] == ["interrupted"] * 2


def test_a_run_that_fails_is_reported(tmp_path):
    bad = {"seed-0": make_config(env="TMaze", memory="gru", steps=16, **SMALL)}      # less than one iteration
    said = []
    assert train_many(bad, tmp_path, jobs=1, say=said.append)["seed-0"] == 2
    assert "seed-0.log" in said[-1]
    assert "total_steps (16) is less than one iteration (128: 8 envs x 16 steps)" in said[-1]


def test_an_ignored_hangup_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminated_is_interrupted():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_folder_in_use_is_reported(finished, tmp_path):
    shutil.copytree(finished / "seed-0", tmp_path / "seed-0")
    said = []
    with RunFolder(tmp_path / "seed-0", resume=True):
        assert train_many(configs(640, (0,)), tmp_path, jobs=1, say=said.append) == {"seed-0": 2}
    assert f"another process is training in {tmp_path / 'seed-0'}" in said[-1]


def test_settings_that_may_change_reach_resumed_runs(finished, tmp_path):
    """All of them, with values that are neither the run's nor the default, and with None and no logs."""
    for changes in ({"checkpoint_every": 7.5, "keep_checkpoints": 1, "max_skipped": 9, "workers": 3, "tf32": False, "compile": True,
                     "env_restarts": 4, "env_timeout": 9.5,
                     "log": ("tensorboard", "wandb"), "device": "auto", "eval_every": 300, "eval_episodes": 3,
                     "eval_env_options": {"length": 4, "x": "y z"}, "eval_deterministic": False}, {"workers": None, "log": ()}):
        new = make_config(env="TMaze", memory="gru", steps=640, seed=0, **SMALL | changes)
        shutil.copytree(finished / "seed-0", tmp_path / "seed-0", dirs_exist_ok=True)
        words = launch._command(tmp_path / "seed-0", new, tmp_path)
        args = build_parser(["train"]).parse_args(words[words.index("train"):])
        assert read_settings(args, tmp_path / "seed-0") == new


def test_failed_jobs_are_started_again_and_slots_are_shared(tmp_path):
    """A job that fails once succeeds at its second start; the others see the variables of their slot."""
    once = f"import os, sys; path = {str(tmp_path / 'mark')!r}; sys.exit(0 if os.path.exists(path) else open(path, 'w').close() or 3)"
    show = "import os; print(os.environ['SLOT'], os.environ['OWN'])"
    jobs = [Job("once", lambda: [sys.executable, "-c", once], tmp_path / "once.log"),
            *(Job(name, lambda: [sys.executable, "-c", show], tmp_path / f"{name}.log", {"OWN": name}) for name in ("a", "b"))]
    assert not run_jobs(jobs, 2, slots=[{"SLOT": "x"}, {"SLOT": "y"}], again=lambda job: job.starts < 2)
    assert [(job.code, job.starts) for job in jobs] == [(0, 2), (0, 1), (0, 1)]
    assert {(tmp_path / f"{name}.log").read_text() for name in "ab"} <= {f"{slot} {name}\n" for slot in "xy" for name in "ab"}


def test_ctrl_c_saves_and_calling_again_resumes(tmp_path):
    small = ["num_envs=8", "num_steps=16", "ppo.num_epochs=1", "network.memory_size=8"]
    argv = ["train", "--env", "TMaze", "--memory", "gru", "--steps", "12800", "--seeds", "3", "--jobs", "1", "--out", str(tmp_path),
            "--device", "cpu", "--log", "none", "--set", *small]
    process = subprocess.Popen([sys.executable, "-m", "hadamem", *argv], stdout=subprocess.PIPE, text=True)
    rows = tmp_path / "seed-3" / "metrics.jsonl"
    end = time.monotonic() + 180
    while not (rows.exists() and rows.read_text().count("\n") > 5):
        assert time.monotonic() < end
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert json.loads((tmp_path / "seed-3" / "run.json").read_text())["status"] == "interrupted"
    assert main(argv) == 0
    assert [json.loads(line)["iteration"] for line in rows.read_text().splitlines()] == list(range(1, 101))


def test_bad_calls(tmp_path, capsys):
    with pytest.raises(ValueError, match="jobs"):
        train_many({}, tmp_path, jobs=0)
    for options, words in ((["--seeds", "1", "1"], "twice"), (["--seeds", "1", "--resume"], "leave out --resume")):
        assert main(["train", "--env", "TMaze", "--out", str(tmp_path / "x"), *options]) == 2
        assert words in capsys.readouterr().err


def test_children_may_import_what_the_user_named(tmp_path):
    """And not what a file named that nobody trusts."""
    config = make_config(env="tests.training.toys:Recall", memory="gru")
    for env, want in ((config.env, ["--trust-names", config.env]), (lookup.from_file("unheard:Of", "x.yaml"), [])):
        words = launch._command(tmp_path / "new", dataclasses.replace(config, env=env), tmp_path)
        assert words[words.index("--config") + 2:] == want
        assert (sys.version_info < (3, 11)) or words[1] == "-P"      # the current folder is not first on sys.path
