"""Ctrl-C and SIGTERM: a script ends with its run, also if an env hangs, and no child outlives its parent."""

import functools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import hadamem as hm
from hadamem.envs.foreign import pool
from hadamem.files import is_alive
from hadamem.runs.config import make_config
from hadamem.training import signals
from hadamem.training.loop import train
from hadamem.training.run import open_run
from hadamem.training.signals import Stopped, exit_code

from .. import warm
from .toys import BATCH, TINY, Hangs

SETTINGS = {**TINY, "device": "cpu", "quiet": True}
SEEDS = """
import sys
import hadamem as hm
try:
    for s in range(3):
        hm.train("TMaze", "gru", seed=s, out=f"{folder}/seed-{s}", resume=True, report=lambda row: tell(row["iteration"]), **settings)
except KeyboardInterrupt:
    sys.exit(130)
"""


def info(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_ends_a_script_with_several_seeds(tmp_path, number):
    """After a checkpoint; the same call continues."""
    settings = {**SETTINGS, "total_steps": 100_000 * BATCH}
    process, printed = warm.start(SEEDS, folder=str(tmp_path), settings=settings)
    for iteration in printed:
        if iteration == 3:
            os.kill(process.pid, number)
    process.join()
    assert process.exitcode == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["seed-0"]
    done = info(tmp_path / "seed-0")
    assert done["status"] == "interrupted"
    longer = settings | {"total_steps": (done["iterations"] + 1) * BATCH}
    assert hm.train("TMaze", "gru", seed=0, out=tmp_path / "seed-0", resume=True, **longer).status == "finished"
    assert len(open_run(tmp_path / "seed-0").metrics) == done["iterations"] + 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_exit_codes_of_a_script_and_of_the_command(tmp_path, number):
    """What a shell sees: 130 and 143. Python ends itself by SIGINT, which subprocess shows as -2."""
    script = SEEDS.partition("except")[0].replace("try:", "if True:") \
        .replace("{folder}", str(tmp_path)).replace("tell(row", "print(row").replace('"])', '"], flush=True)') \
        .replace("**settings", f"**{ {**SETTINGS, 'total_steps': 100_000 * BATCH} !r}")
    command = ["-m", "hadamem", "train", "--env", "TMaze", "--memory", "gru", "--out", str(tmp_path / "cli"), "--device", "cpu", "--plain"]
    for words, want in ((["-c", script], (-number if number == signal.SIGINT else 143,)), (command, (exit_code(number),))):
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.startswith(("3", "step")):
                process.send_signal(number)
                break
        _, said = process.communicate(timeout=60)
        assert process.returncode in want, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cli", "seed-0"]
    assert info(tmp_path / "cli")["status"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("at", [2, 4])
def test_hm_train_raises_after_it_has_saved(tmp_path, number, at):
    """Also if the signal came in the last iteration. The exception has the run; a folder is not needed."""
    def report(row):
        if row["iteration"] == at:
            signal.raise_signal(number)

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        for out in (tmp_path / "run", None):
            with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as caught:
                hm.train("TMaze", "gru", out=out, steps=4 * BATCH, report=report, **SETTINGS)
            assert type(caught.value) in (KeyboardInterrupt, SystemExit)      # Python's exit code is that of Ctrl-C for no subclass
            assert getattr(caught.value, "code", 130) == 128 + number
            run = caught.value.run
            assert (run.status, len(run.metrics)) == ("interrupted" if at == 2 else "finished", at)
            assert run.policy is not None
    finally:
        signal.signal(signal.SIGHUP, before)
    assert info(tmp_path / "run")["status"] == run.status
    assert list((tmp_path / "run" / "checkpoints").glob(f"*{at}"))


def test_a_second_signal_raises_what_the_first_asked_for():
    def report(row):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)

    with pytest.raises(Stopped) as stop:
        train(make_config(env="TMaze", memory="gru", steps=9 * BATCH, device="cpu", **TINY), report=report)
    assert stop.value.exit_code == 143
    with pytest.raises(SystemExit) as caught:
        hm.train("TMaze", "gru", steps=9 * BATCH, report=report, **SETTINGS)
    assert caught.value.code == 143


@pytest.fixture
def impatient(monkeypatch):
    for module, name, seconds in ((signals, "STOP_WITHIN", 0.8), (signals, "CHECK_EVERY", 0.05), (pool, "PATIENCE", 0.1)):
        monkeypatch.setattr(module, name, seconds)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_signal_ends_a_run_whose_env_hangs(tmp_path, impatient, workers):
    """What was trained is saved, and the env is named."""
    env = functools.partial(Hangs, os.getpid(), 16 * 3 + 5)
    with pytest.raises(SystemExit) as caught, pytest.warns(RuntimeWarning, match="did not answer"):
        hm.train(env, "gru", out=tmp_path / "run", steps=9 * BATCH, workers=workers, **SETTINGS)
    assert caught.value.code == 143
    found = info(tmp_path / "run")
    assert (found["status"], found["iterations"]) == ("interrupted", 3)
    who = "envs 0 to 3" if workers else "env 0"
    assert found["error"] == f"{who} did not answer for 0.8 s after the signal: stopped in the middle of an iteration; the last " \
                             "checkpoint is of iteration 3"
    assert list((tmp_path / "run" / "checkpoints").glob("*3"))


def test_a_signal_ends_a_run_whose_evaluation_hangs(tmp_path, impatient):
    """The iteration before it is saved."""
    env = functools.partial(Hangs, os.getpid())
    with pytest.raises(SystemExit), pytest.warns(RuntimeWarning, match="env 0 did not answer"):
        hm.train(env, "gru", out=tmp_path / "run", steps=9 * BATCH, workers=0, eval_every=2 * BATCH, eval_episodes=1,
                 eval_env_options={"hangs_after": 2, "only": None}, checkpoint_every=1000.0, **SETTINGS)
    found = info(tmp_path / "run")
    assert (found["status"], found["iterations"]) == ("interrupted", 2)
    assert list((tmp_path / "run" / "checkpoints").glob("*2"))
    assert len(open_run(tmp_path / "run").metrics) == 2


def test_a_signal_ends_a_run_whose_batched_env_hangs(tmp_path, impatient):
    def hang(action):
        signal.raise_signal(signal.SIGTERM)
        while True:
            time.sleep(0.01)

    def report(row):
        trainers[0].env.step = hang

    trainers = []
    config = make_config(env="TMaze", memory="gru", steps=9 * BATCH, device="cpu", **TINY)
    with pytest.warns(RuntimeWarning, match=r"TMaze did not answer for 0.8 s after the signal.* of iteration 1"):
        run = train(config, tmp_path / "run", built=trainers.append, report=report)
    assert (run.status, run.signal) == ("interrupted", signal.SIGTERM)


def test_a_slow_iteration_is_not_a_hanging_env(impatient):
    def report(row):
        signal.raise_signal(signal.SIGTERM)
        time.sleep(1.0)      # the envs are not waited for

    run = train(make_config(env="TMaze", memory="gru", steps=9 * BATCH, device="cpu", **TINY), report=report)
    assert (run.status, len(run.metrics)) == ("interrupted", 1)


CHILD = """
import os, time
from hadamem.training.processes import PARENT, end_with_parent
os.environ[PARENT] = str(os.getpid())
if os.fork() == 0:
    try:
        end_with_parent(every=0.05)
        tell("watching")
        time.sleep(60)
    except KeyboardInterrupt:
        tell("ended")
    os._exit(0)
time.sleep(60)
"""


def test_a_child_ends_with_a_killed_parent():
    process, printed = warm.start(CHILD)
    assert next(printed) == "watching"
    process.kill()
    assert list(printed) == ["ended"]      # and the pipe was closed
    process.join()


def test_a_killed_parent_that_nobody_waited_for_is_dead():
    process = subprocess.Popen([sys.executable, "-c", ""])
    assert is_alive(os.getppid())
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process.pid)
    process.wait()
    assert not is_alive(process.pid)


def test_output_that_nobody_reads_does_not_cost_the_checkpoint():
    def gone():
        raise BrokenPipeError

    with signals.Signals(gone) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    assert stop.asked


@pytest.mark.parametrize(("saves", "words"), [(True, "with a checkpoint"), (False, "nothing is saved, as the run has no folder")])
def test_the_line_after_ctrl_c_says_what_is_saved(saves, words, capfd):
    with signals.Signals(saves=saves):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
    assert words in capfd.readouterr().err
