"""`hadamem train`, `eval` and `watch` from end to end on tiny runs; every setting by option; bad input is one sentence and exit code 2."""

import dataclasses
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from hadamem.cli import build_parser, main
from hadamem.cli.options import setting_flags
from hadamem.cli.train import default_name, read_settings
from hadamem.runs.config import make_config, settings_table, to_dict, to_flat
from hadamem.runs.folder import load_config
from hadamem.training.run import open_run

ENV = "popgym/RepeatPreviousEasy"
TINY = ["--num-envs", "8", "--num-steps", "16", "--memory-size", "8", "--memory-output-size", "16", "--encoder-size", "16",
        "--layer-size", "16", "--num-epochs", "1", "--num-minibatches", "2", "--log", "none"]
STEPS = ["--steps", "512"]      # four iterations


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a finished run called `done`."""
    folder, before = tmp_path_factory.mktemp("trained"), os.getcwd()
    os.chdir(folder)
    try:
        assert main(["train", "--env", ENV, "--name", "done", *STEPS, *TINY]) == 0
    finally:
        os.chdir(before)
    return folder


def settings(*argv):
    return read_settings(build_parser(["train"]).parse_args(["train", *argv]))


# --- settings ------------------------------------------------------------------------------------------------------


def test_every_setting_has_an_option():
    """Each of them is given another value on the command line, and arrives."""
    table = settings_table()
    start = to_flat(make_config(env=ENV))
    assert set(table.settings) == set(start)
    other = {"device": "cpu", "preset": "popgym-fair", "head_activation": "tanh", "memory_activation": "none",
             "time_encoding": "sine", "lr_schedule": "constant", "gamma_schedule": "rising", "actor_baseline": "learned",
             "joint_actions": "always", "normalize_advantage": "minibatch", "env": "TMaze", "memory": "gru",
             "log": "tensorboard,wandb", "env_options": "k=3", "eval_env_options": "k=4",
             "memory_options": "clip=2.5", "agent": "hadamem.agents:PPO"}
    want = {"log": ("tensorboard", "wandb"), "env_options": {"k": 3}, "eval_env_options": {"k": 4},
            "memory_options": start["network.memory_options"] | {"clip": 2.5}}
    for name, setting in table.settings.items():
        value = other.get(setting.field)
        if value is None:
            value = {bool: not start[name], int: 7, float: 0.25}[setting.kind]
        for flag in setting_flags(setting, table):
            got = settings("--env", ENV, flag, str(value).lower() if setting.kind is bool else str(value))
            assert to_flat(got)[name] == want.get(setting.field, value), flag


def test_a_file_of_an_earlier_version_means_what_it_did(tmp_path):
    """Settings that came later have the values of their classes then, whatever the preset says now."""
    import yaml

    from hadamem.runs.folder import save_config

    file = tmp_path / "config.yaml"
    save_config(make_config(env=ENV, frame_stack=1, normalize_observations=False, gamma_schedule="constant", advantage_floor=0.0),
                file)
    values = yaml.safe_load(file.read_text())
    for name in ("frame_stack", "normalize_observations", "shortcut"):
        del values["network"][name]
    for name in ("gamma_schedule", "advantage_floor"):
        del values["ppo"][name]
    file.write_text(yaml.safe_dump(values))
    got = settings("--config", str(file))
    assert (got.network.frame_stack, got.network.normalize_observations, got.algorithm.gamma_schedule) == (1, False, "constant")
    assert got.algorithm.advantage_floor == 0
    del values["hadamem"]                                    # not of a run: a user's file changes the preset
    file.write_text(yaml.safe_dump(values))
    assert settings("--config", str(file)).network.frame_stack == 4


def test_options_that_may_be_none():
    got = settings("--env", ENV, "--ppo.max-grad-norm", "none", "--num-envs", "None", "--log", "none", "--memory", "none")
    assert (got.algorithm.max_grad_norm, got.num_envs, got.log, got.network.memory) == (None, None, (), "none")


def test_flags_without_a_value_and_large_numbers():
    got = settings("--env", ENV, "--compile", "--tf32", "no", "--steps", "1e6", "--steps-per-iteration", "8_192")
    assert (got.compile, got.tf32, got.total_steps, got.steps_per_iteration) == (True, False, 1_000_000, 8192)
    assert isinstance(got.total_steps, int)


def test_set():
    got = settings("--env", ENV, "--set", "ppo.num_epochs=3", "memory=ffm", "--set", "env_options.k=3", "memory_options.backend=reference",
                   "ppo.max-grad-norm=none")
    assert (got.algorithm.num_epochs, got.network.memory, got.env_options, got.algorithm.max_grad_norm) == (3, "ffm", {"k": 3}, None)
    assert got.network.memory_options["backend"] == "reference"


def test_preset_then_file_then_options(here):
    (here / "c.yaml").write_text("env: TMaze\nppo:\n  num_epochs: 3\n  learning-rate: 3e-4\nseed: 5\n")
    got = settings("--config", "c.yaml", "--preset", "popgym-fair", "--seed", "6")
    assert (got.env, got.seed, got.algorithm.num_epochs, got.algorithm.learning_rate) == ("TMaze", 6, 3, 3e-4)
    assert (got.steps_per_iteration, got.preset) == (65_536, "popgym-fair")
    assert settings("--config", "c.yaml").preset == "default"
    (here / "c.yaml").write_text("env: TMaze\nppo:\nnetwork: {}\nenv_options:\n")      # sections with nothing in them
    assert settings("--config", "c.yaml") == make_config(env="TMaze")


def test_a_saved_config_gives_the_same_settings(here):
    for preset in ("default", "popgym-fair", "popgym-release"):
        for memory in ("shm", "gru"):
            config = settings("--env", ENV, "--memory", memory, "--preset", preset, "--clip-range", "0.1", "--env-option", "k=3")
            (here / "c.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(to_dict(config)))))
            assert settings("--config", "c.yaml") == config


def test_options_show_the_words_beside_the_fields(capsys):
    assert main(["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--gae-lambda X 1: the whole return minus the value" in text
    assert f"[{make_config().algorithm.num_epochs}]" in text
    table = settings_table()
    for setting in table.settings.values():
        assert setting_flags(setting, table)[0] in text


@pytest.mark.parametrize(("env", "name"), [(ENV, "RepeatPreviousEasy-shm-0"), ("CartPole-v1", "CartPole-v1-shm-0"),
                                           ("my_package:Odd/Env name-v0", "Env-name-v0-shm-0")])
def test_default_name(env, name):
    assert default_name(make_config(env=env)) == name


# --- train ---------------------------------------------------------------------------------------------------------


def test_train(trained, capsys):
    folder = trained / "runs" / "done"
    run = open_run(folder)
    assert run.status == "finished"
    assert [row["steps"] for row in run.metrics] == [128, 256, 384, 512]
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_printed(here, capsys):
    assert main(["train", "--env", ENV, *STEPS, *TINY]) == 0
    captured = capsys.readouterr()
    head, *lines = captured.out.splitlines()
    assert re.fullmatch(rf"{ENV}, ppo with shm, preset default: cpu, [\d,]+ parameters, 8 envs x 16 steps", head)
    assert lines[0].startswith("step 128 (25 %)")
    place = "runs/RepeatPreviousEasy-shm-0"
    shown = [line.split() for line in lines[-5:] if line.startswith("  ") and not line.startswith("  best ")]      # if another was best
    assert shown == [["run", place], ["curve", f"{place}/curve.png"], ["evaluate", "hadamem", "eval", place],
                     ["watch", "hadamem", "watch", place]]
    assert captured.err == ""


def test_evaluations_while_training(here, capsys):
    argv = ["train", "--env", "TMaze", "--name", "run", *STEPS, *TINY, "--plain"]
    assert main([*argv, "--eval-every", "300", "--eval-episodes", "4", "--eval-env-option", "corridor=5"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"step 512 \(100 %\), .*, eval \S+ \(success \d+ %\) at 512 steps, ", out)
    assert re.search(r"\n  evaluation  \S+ \(success \d+ %\) at 512 steps, best \S+\n", out)
    assert [row["steps"] for row in open_run("run").metrics if "eval_return" in row] == [384, 512]
    assert open_run("run").config.eval_env_options == {"corridor": 5}


def test_a_config_file_starts_the_same_run_again(trained, here, capsys):
    done = trained / "runs" / "done"
    assert main(["train", "--config", str(done / "config.yaml"), "--out", "again"]) == 0
    assert load_config(here / "again") == load_config(done)
    times = ("seconds", "rollout_seconds", "update_seconds", "elapsed")
    one, other = ([{k: v for k, v in row.items() if k not in times} for row in open_run(path).metrics] for path in (done, here / "again"))
    assert one == other


def test_resume(trained, here, capsys):
    assert main(["train", "--env", ENV, "--name", "part", *TINY, "--steps", "256"]) == 0
    assert main(["train", "--resume", "--name", "part", "--steps", "512"]) == 0
    assert [row["iteration"] for row in open_run("runs/part").metrics] == [1, 2, 3, 4]
    assert main(["train", "--resume", "--name", "part", "--memory", "gru"]) == 2
    assert "network.memory" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "words"), [
    ([], "--env is missing"),
    (["--env", "popgym/RepeatPrevousEasy"], "did you mean popgym/RepeatPreviousEasy"),
    (["--env", ENV, "--memory", "shn"], "did you mean 'shm'"),
    (["--env", ENV, "--preset", "defalt"], "did you mean 'default'"),
    (["--env", ENV, "--ppo.epoch", "4"], "did you mean '--ppo.num-epochs'"),
    (["--env", ENV, "--lerning-rate", "4"], "did you mean '--learning-rate'"),
    (["--env", ENV, "--discount", "0.9"], "unknown argument '--discount'; did you mean '--gamma'?"),
    (["--env", ENV, "--tau", "0.9"], "unknown argument '--tau'; it belongs to agent 'sac', but the agent is 'ppo'; see"),
    (["--env", ENV, "--agent", "sac", "--ppo.gamma", "0.9"], "'--ppo.gamma'; it belongs to agent 'ppo', but the agent is 'sac'; see"),
    (["--env", ENV, "--ppo.discount", "0.9"], "did you mean '--ppo.gamma'"),
    (["--env", ENV, "--hidden-size=4"], "did you mean '--memory-size'"),
    (["--env", ENV, "--set", "ppo.discount=0.9"], "unknown setting 'ppo.discount'; did you mean 'gamma'?"),
    (["--env", ENV, "--set", "network.gamma=0.9"], "did you mean 'ppo.gamma'"),
    (["--env", ENV, "--set", "ppo.epoch=4"], "did you mean 'ppo.num_epochs'"),
    (["--env", ENV, "--set", "lerning_rate=4"], "unknown setting 'lerning_rate'; did you mean 'ppo.learning_rate'?"),
    (["--env", ENV, "--set", "ppo.num_epochs"], "NAME=VALUE"),
    (["--env", ENV, "--steps", "many"], "total_steps must be a whole number, got 'many'"),
    (["--env", ENV, "--steps", "1.5"], "total_steps must be a whole number, got 1.5"),
    (["--env", ENV, "--steps", "0"], "total_steps must be at least 1, got 0"),
    (["--env", ENV, "--steps", "100"], "total_steps (100) is less than one iteration ("),
    (["--env", ENV, "--tf32", "perhaps"], "tf32 must be True or False, got 'perhaps'"),
    (["--env", ENV, "--ppo.clip-range", "-1"], "ppo.clip_range must be above 0, got -1.0"),
    (["--env", ENV, "--seed", "-1"], "seed"),
    (["--env", ENV, "--device", "abacus"], "abacus"),
    (["--env", ENV, "--log", "paper"], "paper"),
    (["--env", ENV, "--env-option", "k"], "NAME=VALUE"),
    (["--env", ENV, "--env-option", "z=1"], "'z'"),
    (["--env", ENV, "--memory-option", "z=1"], "'z'"),
    (["--env", ENV, "--name", "a/b"], "--name"),
    *[(["--env", ENV, "--name", name], "--name must be a single name") for name in ("", " ", ".", "..", "a/", "../a", "/a")],
    *[(["--env", ENV, "--out", place, *more], "--out must name a folder") for place in ("", " ") for more in ([], ["--seeds", "1"])],
    (["--env", ENV, "--name", "a", "--out", "b"], "leave one out"),
    (["--env", ENV, "--out", "/proc/nowhere/x"], "cannot write to the folder /proc/nowhere/x: No such file or directory"),
    (["--config", "missing.yaml"], "missing.yaml cannot be read"),
    (["--config", "newer.yaml"], "upgrade hadamem"),
    (["--config", "typo.yaml"], "typo.yaml: unknown setting 'ppo.epoch'; did you mean 'ppo.num_epochs'"),
    (["--config", "flat.yaml"], "flat.yaml: ppo is a section with settings such as ppo."),
    (["--env", ENV, "--workers", "-1"], "workers must be at least 0, got -1"),
    (["--env", ENV, "--seeds", "1", "--jobs", "0"], "--jobs must be at least 1, got 0"),
    (["--config", "text.yaml"], "ppo.num_epochs must be a whole number, got 'four'"),
    (["--config", "made.yaml", "--preset", "popgym-fair"], "leave one out"),
    (["--resume"], "which run"),
    (["--resume", "--name", "nothing"], "no run in runs/nothing"),
    (["--resume", "--name", "a", "--config", "made.yaml"], "leave out --config"),
])
def test_bad_input_is_one_sentence(argv, words, here, capsys):
    (here / "newer.yaml").write_text("format: 99\nenv: TMaze\n")
    (here / "typo.yaml").write_text("env: TMaze\nppo:\n  epoch: 4\n")
    (here / "flat.yaml").write_text("env: TMaze\nppo: 4\n")
    (here / "text.yaml").write_text("env: TMaze\nppo:\n  num_epochs: four\n")
    (here / "made.yaml").write_text("env: TMaze\npreset: default\n")
    files = sorted(here.iterdir())
    assert main(["train", *argv]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("hadamem: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(here.iterdir()) == files      # and no folder is left behind


def test_an_existing_run_is_not_overwritten(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    before = (trained / "runs/done/metrics.jsonl").read_bytes()
    assert main(["train", "--env", ENV, "--name", "done", *STEPS, *TINY]) == 2
    assert "--resume" in capsys.readouterr().err
    assert (trained / "runs/done/metrics.jsonl").read_bytes() == before


def test_a_run_without_its_settings_gives_one_error_either_way(trained, here, capsys):
    """If checkpoints are left, --resume writes the settings again: tests/runs/test_integrity.py."""
    shutil.copytree(trained / "runs/done", "half", ignore=shutil.ignore_patterns("config.yaml", "checkpoints"))
    files = sorted(here.rglob("*"))
    said = []
    for argv in (["--resume"], ["--env", ENV]):
        assert main(["train", "--out", "half", *argv]) == 2
        said.append(capsys.readouterr().err)
    assert said[0] == said[1] == ("hadamem: half has metrics.jsonl and run.json of a run but not its config.yaml, so it "
                                  "cannot be resumed; put config.yaml back, or choose a new name\n")
    assert sorted(here.rglob("*")) == files


def test_an_env_that_fails_gives_an_error_in_one_sentence(here, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(here)])
    (here / "brittle_env.py").write_text(
        "import gymnasium\nfrom tests.training.toys import Recall\n"
        "gymnasium.register('Brittle-v0', entry_point=lambda **k: Recall(fails_after=200, **k))\n")
    argv = ["train", "--env", "brittle_env:Brittle-v0", "--workers", "0", "--name", "b", *TINY, "--steps", "5120"]
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert "the cue fell off the table" in err
    assert "hadamem train --resume --out runs/b" in err
    assert err.count("\n") == 1
    assert open_run("runs/b").status == "failed"
    assert main(["eval", "b", "--episodes", "4", "--env-option", "workers=0"]) == 0      # what was learned is there
    capsys.readouterr()
    assert main(["eval", "b", "--episodes", "20000", "--env-option", "workers=0"]) == 1      # it failed, not the input
    err = capsys.readouterr().err
    assert "the cue fell off the table" in err
    assert (err.startswith("hadamem: env "), err.count("\n")) == (True, 1)


@pytest.mark.slow
def test_a_users_env_in_the_current_folder(here):
    """In a real process: only there is sys.path that of the console script."""
    (here / "own_env.py").write_text(
        "import gymnasium\nfrom tests.training.toys import Recall\ngymnasium.register('Own-v0', entry_point='own_env:Recall')\n")
    run = "import sys; sys.path = [p for p in sys.path if p]; from hadamem.cli import main; sys.exit(main())"
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    for argv in (["train", "--env", "own_env:Own-v0", "--workers", "1", "--name", "own", *STEPS, *TINY],
                 ["eval", "own", "--episodes", "4", "--trust"], ["watch", "own", "--env", "own_env:Own-v0"]):
        done = subprocess.run([sys.executable, "-c", run, *argv], cwd=here, env={**os.environ, "PYTHONPATH": paths}, capture_output=True,
                              text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (here / "runs/own/episode.gif").exists()


@pytest.mark.parametrize("package", ["gymnasium", "rich"])
def test_a_missing_package_is_named(package, here):
    code = f"import sys; sys.modules[{package!r}] = None; from hadamem.cli import main; sys.exit(main(['train', '--env', 'TMaze']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert package in done.stderr
    assert "pip install 'hadamem[train]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_matplotlib_there_is_no_curve(here, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["train", "--env", ENV, "--name", "plain", *TINY, "--steps", "128"]) == 0
    assert "not drawn" in capsys.readouterr().out


# --- on a terminal -------------------------------------------------------------------------------------------------


def on_a_terminal(argv, cwd, act=None, columns=80):
    """Run a command in a pseudo-terminal: exit code, and all that it wrote."""
    outer, inner = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "hadamem", *argv], cwd=cwd, env=env, stdin=inner, stdout=inner, stderr=inner,
                               close_fds=True, start_new_session=True)
    os.close(inner)
    parts = []

    def read():
        while True:
            try:
                data = os.read(outer, 65536)
            except OSError:
                return
            if not data:
                return
            parts.append(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        if act is not None:
            deadline = time.monotonic() + 180
            while b" steps/s" not in b"".join(parts) and time.monotonic() < deadline:
                time.sleep(0.05)
            act(process)
        code = process.wait(timeout=60)
    finally:
        process.kill()
    reader.join(timeout=5)
    os.close(outer)
    return code, b"".join(parts).decode()


@pytest.mark.slow
def test_live_view_and_ctrl_c(here):
    argv = ["train", "--env", ENV, "--name", "live", *TINY, "--steps", "100000000"]
    code, text = on_a_terminal(argv, here, lambda process: process.send_signal(signal.SIGINT))
    assert code == 130
    assert "╭─" in text
    assert "Traceback" not in text
    assert text.rstrip().endswith("hadamem train --resume --out runs/live")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0      # the cursor is back
    run = open_run(here / "runs/live")
    assert run.status == "interrupted"
    assert (here / "runs/live/curve.png").exists()
    last = run.metrics[-1]["steps"]
    code, text = on_a_terminal(["train", "--resume", "--out", "runs/live", "--steps", str(last + 1280)], here)
    assert code == 0, text
    assert open_run(here / "runs/live").metrics[-1]["steps"] == last + 1280


def test_bad_input_on_a_terminal_leaves_no_panel(here):
    code, text = on_a_terminal(["train", "--env", ENV, "--memory", "shn"], here)
    assert code == 2
    assert "did you mean 'shm'" in text
    assert "╭─" not in text


# --- eval ----------------------------------------------------------------------------------------------------------


def test_eval(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["eval", "runs/done", "--episodes", "12"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{ENV}, shm: 12 episodes, sampled actions, seed 0\n")
    saved = json.loads((trained / "runs/done/eval.json").read_text())
    assert saved["episodes"] == len(saved["returns"]) == 12
    assert (saved["env"], saved["seed"], saved["deterministic"], saved["success"]) == (ENV, 0, False, None)
    assert f"{saved['mean']:.4g}" in out
    assert "95 % interval" in out
    assert main(["eval", "done", "--episodes", "12"]) == 0      # by its name, and the same again
    assert capsys.readouterr().out == out
    assert out.endswith("runs/done/eval.json and runs/done/evaluations.jsonl\n")
    assert main(["eval", "done", "--episodes", "12", "--deterministic", "--seed", "3", "--env-option", "k=3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{ENV} (k=3), shm: 12 episodes, most likely actions, seed 3\n")
    assert out.endswith("  runs/done/evaluations.jsonl\n")
    assert json.loads((trained / "runs/done/eval.json").read_text())["env_options"] == {}      # of the run's own task, as before
    run = open_run("done")
    row = run.evaluations[-1]
    assert (row["seed"], row["deterministic"], row["env_options"], row["episodes"]) == (3, True, {"k": 3}, 12)
    assert [row["steps"] for row in run.evaluations[-3:]] == [run.metrics[-1]["steps"]] * 3
    assert main(["eval", "done", "--episodes", "4", "--max-steps", "9", "--env-option", "k=3"]) == 0
    assert re.search(r"length +9 steps\n +truncated +4 of 4 episodes, after 9 steps", capsys.readouterr().out)
    assert [open_run("done").evaluations[-1][name] for name in ("max_steps", "truncated")] == [9, 4]
    assert main(["eval", "done", "--episodes", "1", "--sampled"]) == 0
    assert "interval" not in capsys.readouterr().out.partition("seed 0")[2]


def test_an_evaluation_that_cannot_be_saved_is_printed(trained, here, capsys):
    shutil.copytree(trained / "runs/done", "sealed", ignore=shutil.ignore_patterns("eval*"))
    os.mkdir("sealed/evaluations.jsonl")      # cannot be appended to, not even by root
    assert main(["eval", "sealed", "--episodes", "2"]) == 0
    captured = capsys.readouterr()
    assert re.search(r"return +\S+ +95 % interval", captured.out)
    assert "written to" not in captured.out
    assert captured.err == "hadamem: this evaluation is not saved: cannot write to sealed/evaluations.jsonl (Is a directory)\n"


def test_eval_on_another_env(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["eval", "done", "--episodes", "2", "--env", "popgym/RepeatPreviousMedium"]) == 0
    assert "RepeatPreviousMedium" in capsys.readouterr().out
    for command in (["eval", "done"], ["watch", "done"]):
        assert main([*command, "--episodes", "2", "--env", "TMaze"]) == 2
        error = capsys.readouterr().err
        assert "the env's observations do not fit those that the policy was trained with: Box(" in error
        assert "instead of Discrete(4)" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(("argv", "words"), [
    (["eval"], "RUN"),
    (["eval", "nowhere"], "no run in nowhere"),
    (["eval", "doen"], "did you mean runs/done"),
    (["eval", "done", "--episodes", "0"], "episodes"),
    (["eval", "done", "--seed", "-1"], "seed"),
    (["eval", "done", "--episode", "4"], "did you mean '--episodes'"),
    (["eval", "done", "--env-option", "z=1"], "'z'"),
    (["eval", "done", "--deterministic", "--sampled"], "not allowed with"),
    (["watch", "nowhere"], "no run in nowhere"),
    (["watch", "done", "--out", "a.avi"], "a.avi"),
    (["watch", "done", "--out", "a.gif", "--text"], "leave one out"),
    (["watch", "done", "--fps", "0"], "fps"),
    (["watch", "done", "--episodes", "0"], "episodes"),
])
def test_bad_input_to_eval_and_watch(argv, words, trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


# --- watch ---------------------------------------------------------------------------------------------------------


def test_watch(trained, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(trained)
    assert main(["watch", "done", "--max-steps", "4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("stopped after 4 steps: return ")
    assert out.rstrip().endswith("runs/done/episode.gif")
    assert (trained / "runs/done/episode.gif").read_bytes().startswith(b"GIF89a")
    assert main(["watch", "done", "--max-steps", "3", "--episodes", "2", "--out", str(tmp_path / "two.gif"), "--fps", "8"]) == 0
    assert (tmp_path / "two.gif").exists()
    assert capsys.readouterr().out.count("stopped after 3 steps") == 2


def test_watch_text(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert main(["watch", "done", "--text", "--deterministic"]) == 0
    out = capsys.readouterr().out
    assert out.count("reward") == 51
    assert "end after 51 steps" in out


# --- the demo ------------------------------------------------------------------------------------------------------


def test_demo(here, capsys, monkeypatch):
    from hadamem.cli import demo

    monkeypatch.setattr(demo, "EPISODES", 20)
    assert demo.main(["--steps", "4096"]) in (0, 1)      # too short for memory to help
    out = capsys.readouterr().out
    assert "Training shm (Stable Hadamard Memory) on popgym/RepeatPreviousEasy" in out
    assert "the control without memory" in out
    assert (here / "runs/demo/curve.png").exists()
    for memory in ("shm", "none"):
        run = open_run(here / "runs/demo" / memory)
        assert (run.status, run.config.network.memory) == ("finished", memory)
    one, other = (dataclasses.asdict(open_run(here / "runs/demo" / memory).config) for memory in ("shm", "none"))
    network, control = one.pop("network"), other.pop("network")
    assert (bool(network.pop("memory_options")), control.pop("memory_options")) == (True, {})      # those of the memory itself
    assert network | {"memory": "none"} == control
    assert one == other
    assert demo.free_name(here / "runs/demo") == here / "runs/demo-2"


def test_comparison_table():
    from hadamem.cli.demo import comparison_table
    from hadamem.training.evaluate import Evaluation

    text = comparison_table({"shm": Evaluation((1.0, 0.9), (5, 5), (True, True)), "none": Evaluation((-0.5, -0.4), (5, 5), (False, True))})
    assert [line.split()[0] for line in text.splitlines()] == ["memory", "shm", "none"]
    assert "100 %" in text
    assert "success" not in comparison_table({"shm": Evaluation((1.0, 0.9), (5, 5))})


def test_several_seeds_by_name(here, capsys):
    settings = ["--env", ENV, "--memory", "none", *TINY, "--num-steps", "64", "--steps", "512"]
    for seed in "01":      # as --seeds 0 1 does, without its processes
        assert main(["train", *settings, "--seed", seed, "--out", f"runs/two/seed-{seed}"]) == 0
    capsys.readouterr()
    assert main(["compare", "two"]) == 0
    for command in (["eval", "two"], ["train", "--resume", "--name", "two"]):
        assert main(command) == 2
        assert "it holds several runs (seed-0, seed-1): name one of them, such as runs/two/seed-0" in capsys.readouterr().err
    assert main(["train", "--env", ENV, "--seeds", "0", "1", "--seed", "3"]) == 2
    assert "--seeds 0 1 and --seed 3 are both given" in capsys.readouterr().err
