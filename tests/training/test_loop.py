"""Runs from start to end, through stops, kills and failures: nothing is lost, and nothing comes out different."""

import dataclasses
import errno
import functools
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import hadamem as hm
from hadamem.envs import EnvError
from hadamem.memory import MEMORIES, NoMemory
from hadamem.runs import checkpoint
from hadamem.runs.config import make_config
from hadamem.runs.metrics import TIMES
from hadamem.training.loop import TrainingFailed, train
from hadamem.training.run import open_run

from .. import warm
from ..runs.test_checkpoint import DAMAGES, damage
from .toys import BATCH, TINY, Recall

KEYWORDS = {name.replace(".", "__"): value for name, value in TINY.items()}


def settings(iterations=6, env="popgym/RepeatPreviousEasy", memory="shm", **changes):
    return make_config(env=env, memory=memory, steps=iterations * BATCH, device="cpu", **{**TINY, **changes})


def rows(folder):
    """Metrics without what differs between two runs that are the same."""
    return [{name: x for name, x in row.items() if name not in TIMES} for row in open_run(folder).metrics]


def newest(folder):
    return checkpoint.Checkpoints(Path(folder) / "checkpoints").newest(pytest.fail)


def info(folder):
    return json.loads((Path(folder) / "run.json").read_text())


def assert_same_runs(a, b):
    """Bit for bit: every row, and every tensor of the last checkpoint (weights, optimiser, env, memories, counters)."""
    assert rows(a) == rows(b)
    one, two = newest(a), newest(b)
    assert set(one.tensors) == set(two.tensors)
    for name, x in one.tensors.items():
        assert torch.equal(x, two.tensors[name]), name


def after(n):
    """Says stop after n iterations."""
    return lambda rest=list(range(n - 1)): not rest or bool(rest.pop() and False)


# --- a run ---------------------------------------------------------------------------------------------------------


def test_a_run_and_its_folder(tmp_path):
    seen, built = [], []
    config = settings(6, checkpoint_every=0.0, keep_checkpoints=3, log=("tensorboard",))
    run = train(config, tmp_path / "run", report=seen.append, built=built.append)
    folder = run.folder
    names = {p.name for p in folder.iterdir()}
    assert {"config.yaml", "run.json", "metrics.jsonl", "checkpoints"} < names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert [p.name for p in sorted((folder / "checkpoints").iterdir())] == ["00000004", "00000005", "00000006"]
    assert run.metrics == seen == open_run(folder).metrics
    assert [row["steps"] for row in seen] == [BATCH * i for i in range(1, 7)]
    assert sorted(row["elapsed"] for row in seen) == [row["elapsed"] for row in seen]
    assert run.status == open_run(folder).status == info(folder)["status"] == "finished"
    assert {"hadamem", "git", "python", "torch", "numpy"} <= set(info(folder)["versions"])
    assert info(folder)["seed"] == 0
    assert info(folder)["device"] == "cpu"
    assert info(folder)["started"] <= info(folder)["ended"]
    assert open_run(folder).config == config
    assert run.summary() == open_run(folder).summary()
    assert run.summary()["steps"] == 6 * BATCH
    assert run.summary()["best_return"] >= run.summary()["return"]
    assert "finished at 768 steps" in repr(run)
    assert built[0].iterations == 6
    for policy in (open_run(folder).policy, hm.load_policy(folder), hm.load_policy(folder / "checkpoints" / "00000006")):
        for a, b in zip(policy.network.state_dict().values(), run.policy.network.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_the_config_of_a_run_starts_it_again(tmp_path):
    train(settings(3), tmp_path / "a")
    train(open_run(tmp_path / "a").config, tmp_path / "b")
    assert_same_runs(tmp_path / "a", tmp_path / "b")


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = train(settings(3))
    assert run.folder is None
    assert [row["iteration"] for row in run.metrics] == [1, 2, 3]
    assert run.policy.act(torch.zeros(2, dtype=torch.int64))[0].shape == (2,)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="needs the folder"):
        train(settings(3), resume=True)


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match=r"total_steps \(100\) is less than one iteration \(128: 8 envs x 16 steps\)"):
        train(make_config(steps=100, **TINY), tmp_path / "x" / "y")
    assert list(tmp_path.iterdir()) == []      # no folder for a run that never was
    with pytest.raises(ValueError, match="unknown env 'TMaz'; did you mean TMaze"):
        train(settings(env="TMaz"), tmp_path / "x")
    with pytest.raises(ValueError, match="unknown memory 'shn'"):
        train(settings(memory="shn"), tmp_path / "x")
    with pytest.raises(ValueError, match="unknown log 'tensorbord'; did you mean 'tensorboard'"):
        settings(log=("tensorbord",))
    with pytest.raises(ValueError, match="log='wandb' needs the package wandb"):
        train(settings(log=("wandb",)), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    train(settings(1), tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run; continue it with --resume"):
        train(settings(1), tmp_path / "run")
    with pytest.raises(ValueError, match=r"other settings: seed \(0, now 1\), ppo.adam_eps \(.*, now 0.001\)"):
        train(settings(2, seed=1, adam_eps=1e-3), tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="there is no run in"):
        open_run(tmp_path)
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace("format: 1", "format: 2"))
    with pytest.raises(ValueError, match="newer hadamem"):
        train(settings(2), tmp_path / "run", resume=True)


# --- resuming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "memory", "changes"), [
    ("popgym/RepeatPreviousEasy", "shm", {}), ("popgym/RepeatPreviousEasy", "shm-paper", {"separate_memories": True}),
    ("popgym/PositionOnlyPendulumEasy", "gru", {"lr_schedule": "linear", "kl_coef": 0.2}), ("TMaze", "lstm", {"seed": 3}),
    ("popgym/MultiarmedBanditEasy", "none", {"num_steps": None, "reshuffle": False}),
])
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, env, memory, changes):
    config = settings(5, env, memory, **changes)
    if changes.get("num_steps", 0) is None:      # whole episodes
        config = make_config(**{**TINY, **changes}, env=env, memory=memory, steps=5 * 8 * 200, device="cpu")
    train(config, tmp_path / "whole")
    run = train(config, tmp_path / "parts", should_stop=after(2))
    assert run.status == info(tmp_path / "parts")["status"] == "interrupted"
    assert len(run.metrics) == newest(tmp_path / "parts").about["iteration"] == 2
    train(config, tmp_path / "parts", resume=True, should_stop=after(1))
    run = train(config, tmp_path / "parts", resume=True)
    assert run.status == "finished"
    assert [part["iteration"] for part in info(tmp_path / "parts")["resumed"]] == [2, 3]
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")
    elapsed = [row["elapsed"] for row in run.metrics]
    assert sorted(elapsed) == elapsed


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_checkpoints_and_rows(tmp_path, how):
    """The one before is used, and the outcome is the same."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(settings(5), whole)
    train(settings(5, checkpoint_every=0.0), parts, should_stop=after(3))
    with open(parts / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 4, "steps": 51')
    damage(parts / "checkpoints" / "00000003", how)
    with pytest.warns(RuntimeWarning, match="damaged") as warned:
        train(settings(5), parts, resume=True)
    assert len(warned) == 1
    assert info(parts)["resumed"][0]["iteration"] == 2
    assert_same_runs(whole, parts)


def test_without_a_checkpoint_the_run_starts_again(tmp_path):
    train(settings(3), tmp_path / "whole")
    train(settings(3), tmp_path / "parts", should_stop=after(2))
    places = sorted((tmp_path / "parts" / "checkpoints").iterdir())
    assert [place.name for place in places] == ["00000001", "00000002"]      # the first iteration is kept, whatever the time
    for place in places:
        damage(place, "changed")
    rows = (tmp_path / "parts" / "metrics.jsonl").read_text()
    said = []
    with pytest.raises(ValueError, match="are damaged"):      # what there is may still be worth something
        train(settings(3), tmp_path / "parts", resume=True, notify=said.append)
    assert (tmp_path / "parts" / "metrics.jsonl").read_text() == rows
    for place in places:
        shutil.rmtree(place)
    said = []
    train(settings(3), tmp_path / "parts", resume=True, notify=said.append)
    assert len(said) == 1
    assert "from the beginning" in said[0]
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_is_not_redone_but_may_be_prolonged(tmp_path):
    constant = functools.partial(settings, lr_schedule="constant")
    train(constant(2), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert train(constant(2), tmp_path / "run", resume=True, report=pytest.fail).status == "finished"
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
    train(constant(4), tmp_path / "run", resume=True)
    train(constant(4), tmp_path / "whole")
    assert_same_runs(tmp_path / "run", tmp_path / "whole")
    assert open_run(tmp_path / "run").config.total_steps == 4 * BATCH


# --- kills and signals ---------------------------------------------------------------------------------------------


CHILD = """
import torch
torch.set_num_threads(1)
from hadamem.runs.folder import load_config
from hadamem.training.loop import train
run = train(load_config(config), folder, resume=resume, report=lambda row: tell(row["iteration"]))
tell(run.status)
"""


def child(config, folder, resume=False):
    """The process, and the numbers of the iterations that it ends."""
    return warm.start(CHILD, config=config, folder=folder, resume=resume)


def test_killed_again_and_again(tmp_path):
    """SIGKILL in the middle of iterations, twice; then the run is the one that nobody touched."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = settings(60, memory="shm-paper", checkpoint_every=0.1)
    train(config, whole)
    for at in (12, 24):
        process, printed = child(whole / "config.yaml", parts, resume=at > 12)
        for iteration in printed:
            if iteration >= at and any((parts / "checkpoints").glob("[0-9]*")):
                process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert info(parts)["status"] == "running"
        assert len(open_run(parts).metrics) >= at
    train(config, parts, resume=True)
    assert all(part["iteration"] > 0 for part in info(parts)["resumed"])
    assert_same_runs(whole, parts)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """The folder of a run of 40 iterations that no signal reached."""
    return train(settings(40, checkpoint_every=1000.0), tmp_path_factory.mktemp("untouched") / "whole").folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends(untouched, tmp_path, number):
    whole, parts = untouched, tmp_path / "parts"
    process, printed = child(whole / "config.yaml", parts)
    lines = []
    for line in printed:
        lines.append(line)
        if line == 5:
            os.kill(process.pid, number)
    process.join()
    assert process.exitcode == 0
    assert lines[-1] == info(parts)["status"] == "interrupted"
    assert newest(parts).about["iteration"] == len(open_run(parts).metrics) == info(parts)["iterations"] == lines[-2] < 40
    train(open_run(whole).config, parts, resume=True)
    assert_same_runs(whole, parts)


def test_a_second_signal_ends_at_once(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def report(row):
        if row["iteration"] == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(settings(9, checkpoint_every=0.0), tmp_path / "run", report=report)
    assert signal.getsignal(signal.SIGINT) is before
    assert info(tmp_path / "run")["status"] == "interrupted"
    assert newest(tmp_path / "run").about["iteration"] == 2
    assert len(open_run(tmp_path / "run").metrics) == 3
    train(settings(9), tmp_path / "run", resume=True)
    train(settings(9), tmp_path / "whole")
    assert_same_runs(tmp_path / "run", tmp_path / "whole")


# --- what is not finite --------------------------------------------------------------------------------------------


class Poisoned(NoMemory):
    """Sequences come out as nan from the `healthy`-th on, for `ill` of them."""

    healthy, ill = 0, 10**9

    def forward(self, x, state=None, reset=None):
        y, state = super().forward(x, state, reset)
        if x.shape[1] == 1:
            return y, state
        Poisoned.healthy -= 1
        return y * float("nan") if -Poisoned.ill <= Poisoned.healthy < 0 else y, state


def test_a_run_that_learns_nothing_any_more_stops(tmp_path, monkeypatch):
    monkeypatch.setitem(MEMORIES, "poisoned", Poisoned)
    monkeypatch.setattr(Poisoned, "healthy", 3 * 2)      # three iterations of two updates
    config = settings(40, memory="poisoned", checkpoint_every=0.0, max_skipped=7)
    with pytest.raises(TrainingFailed, match=r"not finite in the last 8 updates \(max_skipped: 7\).*checkpoint is of iteration 3"):
        train(config, tmp_path / "run")
    assert info(tmp_path / "run")["status"] == "failed"
    assert "not finite" in info(tmp_path / "run")["error"]
    assert [row["skipped"] for row in open_run(tmp_path / "run").metrics] == [0.0] * 3 + [2.0] * 4
    assert "nan" not in (tmp_path / "run" / "metrics.jsonl").read_text().lower()
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoints").iterdir())] == ["00000002", "00000003"]
    monkeypatch.setattr(Poisoned, "healthy", 10**9)
    assert train(config, tmp_path / "run", resume=True).status == "finished"


def test_a_few_bad_updates_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.setitem(MEMORIES, "poisoned", Poisoned)
    monkeypatch.setattr(Poisoned, "healthy", 4)
    monkeypatch.setattr(Poisoned, "ill", 5)
    run = train(settings(8, memory="poisoned", max_skipped=5), tmp_path / "run")
    assert run.status == "finished"
    assert run.summary()["skipped"] == 5


# --- foreign envs --------------------------------------------------------------------------------------------------


def children():
    """Processes that this one started and that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("kind", ["class", "function", "vector env", "env"])
def test_a_custom_env_trains(tmp_path, kind):
    before = children()
    env = {"class": Recall, "function": lambda: Recall(length=3), "env": Recall(),
           "vector env": SyncVectorEnv([Recall] * 8, autoreset_mode=AutoresetMode.DISABLED)}[kind]
    more = {"workers": 2} if kind in ("class", "function") else {"num_envs": 1, "num_minibatches": 1} if kind == "env" else {}
    run = hm.train(env, "gru", out=tmp_path / "run", steps=3 * BATCH, quiet=True, **{**KEYWORDS, **more})
    assert run.status == "finished"
    assert "success" in run.metrics[-1]
    assert children() == before
    action, _ = run.policy.act(Recall().reset(seed=0)[0])
    assert action in (0, 1)
    with pytest.warns(RuntimeWarning, match="cannot be restored: its episodes restart at iteration"):
        again = hm.train(env, out=tmp_path / "run", resume=True, quiet=True, steps=4 * BATCH)
    assert again.status == "finished"
    assert again.metrics[-1]["steps"] == 4 * BATCH
    assert children() == before


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_worker_that_fails(tmp_path, how):
    """A clear error, all rows, the last weights, and no process left."""
    before = children()
    env = functools.partial(Recall, fails_after=16 * 3 + 5, how=how)
    match = "ZeroDivisionError: the cue fell" if how == "raise" else "worker process of envs 0 to 3 ended with code 3"
    with pytest.raises(EnvError, match=match):
        hm.train(env, "gru", out=tmp_path / "run", steps=9 * BATCH, quiet=True, workers=2, **KEYWORDS)
    assert children() == before
    assert info(tmp_path / "run")["status"] == "failed"
    assert match in info(tmp_path / "run")["error"]
    assert len(open_run(tmp_path / "run").metrics) == newest(tmp_path / "run").about["iteration"] == 3
    said = []
    config = open_run(tmp_path / "run").config
    run = train(config, tmp_path / "run", resume=True, env=Recall, notify=said.append)
    assert len(run.metrics) == 9
    assert ["its episodes restart at iteration 3" in text for text in said] == [True]
    assert children() == before


class Other(Recall):
    pass


class Wider(Recall):
    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(3)


def test_a_run_resumes_with_its_own_env_only(tmp_path):
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recall, "__module__", "__main__")                  # as if a script had defined it: only its name is known
        hm.train(Recall, "gru", out=out, steps=2 * BATCH, quiet=True, workers=0, **KEYWORDS)
    assert open_run(out).config.env == "Recall"
    more = {"out": out, "resume": True, "quiet": True, "steps": 3 * BATCH}
    with pytest.raises(ValueError, match=r"was trained on 'Recall', env is '.*:Other'; pass the same env"):
        hm.train(Other, **more)
    with pytest.raises(ValueError, match="the env's actions do not fit"):
        hm.train(lambda: Wider(), **more)
    with pytest.warns(RuntimeWarning, match="cannot be restored: its episodes restart at iteration"):
        assert hm.train(Recall, **more).status == "finished"
    assert open_run(out).config.env == f"{Recall.__module__}:Recall"      # a name that can be found again


def test_steps_are_the_total_of_a_run(tmp_path):
    train(settings(6), tmp_path / "run", should_stop=after(3))
    with pytest.raises(ValueError, match=r"has done 384 of 768 steps; total_steps \(256\) counts these too and cannot be less"):
        train(settings(2), tmp_path / "run", resume=True)
    assert open_run(tmp_path / "run").config.total_steps == 6 * BATCH
    assert train(settings(5), tmp_path / "run", resume=True).metrics[-1]["iteration"] == 5      # fewer, but not reached yet


def test_a_report_that_raises_costs_no_iteration(tmp_path):
    def report(row):
        if row["iteration"] == 4:
            raise RuntimeError("no more paper")

    with pytest.raises(RuntimeError, match="no more paper"):
        train(settings(6), tmp_path / "run", report=report)
    assert newest(tmp_path / "run").about["iteration"] == 4


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_stops_a_run_unless_it_is_ignored(tmp_path, ignored):
    def report(row):
        if row["iteration"] == 2:
            for _ in range(2):                                            # it may come twice
                os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        run = train(settings(4), tmp_path / "run", report=report)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert run.status == ("finished" if ignored else "interrupted")
    assert newest(tmp_path / "run").about["iteration"] == (4 if ignored else 2)


def test_an_interrupt_stops_a_run_that_a_script_put_in_the_background(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)                 # as shells leave it there
    try:
        run = train(settings(4), tmp_path / "run", report=lambda row: row["iteration"] == 2 and os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert run.status == "interrupted"


def test_the_error_of_a_full_disk_says_what_was_saved(tmp_path, monkeypatch):
    write = checkpoint.Checkpoints.write

    def full(self, iteration, *arguments, **more):
        if iteration > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, iteration, *arguments, **more)

    monkeypatch.setattr(checkpoint.Checkpoints, "write", full)
    with pytest.raises(TrainingFailed, match=r"iteration 4 cannot be written to .*run: No space .*; the checkpoint of iteration 1 is"):
        train(settings(4), tmp_path / "run")


def test_a_second_interrupt_while_foreign_envs_act_keeps_the_weights(tmp_path):
    """A hanging env, say: nothing changes while it is waited for."""
    class Hangs(Recall):
        def step(self, action):
            if Path(tmp_path / "now").exists():
                raise KeyboardInterrupt
            return super().step(action)

    def report(row):
        if row["iteration"] == 3:
            (tmp_path / "now").touch()

    with pytest.raises(KeyboardInterrupt):
        hm.train(lambda: Hangs(), "gru", out=tmp_path / "run", steps=9 * BATCH, quiet=True, workers=0, report=report, **KEYWORDS)
    assert newest(tmp_path / "run").about["iteration"] == 3
    assert "the last checkpoint is of iteration 3" in info(tmp_path / "run")["error"]


def test_a_signal_that_ends_the_workers_first(tmp_path):
    before = children()
    env = functools.partial(Recall, fails_after=16 * 3 + 5, how="terminate")
    with pytest.raises(SystemExit) as caught:
        hm.train(env, "gru", out=tmp_path / "run", steps=9 * BATCH, quiet=True, workers=1, **KEYWORDS)
    run = caught.value.run
    assert run.status == info(tmp_path / "run")["status"] == "interrupted"
    assert len(run.metrics) == newest(tmp_path / "run").about["iteration"] == 3
    assert children() == before


def test_hm_train(tmp_path, capsys):
    run = hm.train("TMaze", "lstm", steps=3 * BATCH, out=tmp_path / "run", seed=4, **KEYWORDS)
    assert "TMaze" in capsys.readouterr().out
    assert run.config.network.memory == "lstm"
    assert run.config.algorithm.num_epochs == 1
    longer = hm.train(out=tmp_path / "run", resume=True, steps=5 * BATCH, quiet=True)
    assert capsys.readouterr().out == ""
    assert longer.config.seed == 4
    assert len(longer.metrics) == 5
    nested = {name: value for name, value in KEYWORDS.items() if name != "num_epochs"} | {"ppo": {"num_epochs": 2}}
    other = hm.train("TMaze", preset="popgym-fair", steps=BATCH, quiet=True, **nested).config.algorithm
    assert (other.gae_lambda, other.num_epochs) == (1.0, 2)
    for bad, match in ((dict(), "env is missing"), (dict(resume=True), "needs out"), (dict(resume=True, out=tmp_path / "no"), "no run in"),
                       (dict(env="TMaze", lerning_rate=1.0), "unknown setting 'lerning_rate'; did you mean 'ppo.learning_rate'\\?"),
                       (dict(env="TMaze", env_options={"seed": 3}), "a setting of the run itself; use seed"),
                       (dict(env="TMaze", checkpoint_every=float("nan")), "checkpoint_every must be"),
                       (dict(env="TMaze", ppo={"ent_coef": float("nan")}), "ppo.ent_coef must be finite"),
                       (dict(env="TMaze", total_timesteps=1), "did you mean 'total_steps'"),
                       (dict(env="TMaze", ppo={"entropy_coefficient": 0.1}), "did you mean 'ent_coef'")):
        with pytest.raises(ValueError, match=match):
            hm.train(quiet=True, **bad)
    with pytest.raises(TypeError, match="env must be a name"):
        hm.train(3)
    with pytest.raises(ValueError, match="autoreset_mode='same_step'"):
        hm.train(hm.envs.make("TMaze", num_envs=8, autoreset_mode="next_step"), quiet=True, steps=BATCH, **KEYWORDS)


def options_of(*args, **settings):
    config = hm.train(*args, quiet=True, steps=BATCH, **KEYWORDS, **settings).config
    return config.env_options, config.network.memory_options


def test_options_are_added_to_those_of_the_preset_that_is_named():
    """And not to those of the default preset, which has others."""
    usual = make_config("default", memory="shm", memory_size=KEYWORDS["memory_size"]).network.memory_options
    assert usual["rotary_gain"] == 0.1
    memory = options_of("TMaze", "shm", preset="popgym-gae", memory_options={"normalize_keys": False})[1]
    assert (memory["rotary"], memory["rotary_gain"], memory["normalize_keys"]) == (True, None, False)
    assert options_of("TMaze", "shm", preset="popgym-fair", memory_options={"clip": 10.0})[1]["rotary"] is False
    assert options_of("TMaze", "shm", memory_options={"clip": 10.0})[1] == {**usual, "clip": 10.0}


def test_another_env_has_none_of_the_preset_s_env_options(tmp_path):
    small = {"preset": "wind-50-150", "quiet": True, "steps": 20, "memory_size": 4, "num_envs": 2, "num_steps": 10, "learning_starts": 1000,
             "eval_every": 0}
    run = hm.train(env_options={"radius": 0.1}, **small)
    assert run.config.env_options == {**make_config("wind-50-150").env_options, "radius": 0.1}
    assert hm.train("PointRobot", **small).config.env_options == {}
    out = tmp_path / "run"
    hm.train("PointRobot", env_options={"num_train": 3}, out=out, **small)
    again = hm.train("PointRobot", out=out, resume=True, quiet=True, steps=40)
    assert again.config.env_options == {"num_train": 3}


# --- other places for metrics --------------------------------------------------------------------------------------


class FakeWandB:
    def __init__(self):
        self.rows, self.starts, self.id = [], [], "abc"

    def init(self, **options):
        self.starts.append(options)
        return self

    def log(self, row, step):
        if step == 3:
            raise ConnectionError("the cloud is gone")
        self.rows.append((step, row["steps"]))

    def finish(self, exit_code):
        self.rows.append(exit_code)


def test_weights_and_biases(tmp_path, monkeypatch):
    """Rows go there, under one id across resumes; a failure there is reported once and stops nothing."""
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    train(settings(2, log=("wandb",)), tmp_path / "run")
    assert fake.rows == [(1, BATCH), (2, 2 * BATCH), 0]
    assert fake.starts[0]["config"]["network"]["memory"] == "shm"
    with pytest.warns(RuntimeWarning, match="wandb failed and gets no more metrics.*the cloud is gone"):
        run = train(settings(5, log=("wandb",)), tmp_path / "run", resume=True)
    assert len(run.metrics) == 5
    assert [start["id"] for start in fake.starts] == [None, "abc"]


def test_mlflow(tmp_path, monkeypatch):
    said = []

    class Client:
        def __getattr__(self, name):
            def call(*args, **options):
                said.append((name, *args, *options.values()))
                thing = type("Thing", (), {"info": type("Info", (), {"run_id": "r1"}), "experiment_id": "e1"})
                return None if name == "get_experiment_by_name" else thing
            return call

    monkeypatch.setitem(sys.modules, "mlflow", type(sys)("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", type("M", (), {"MlflowClient": Client}))
    train(settings(1, log=("mlflow",)), tmp_path / "run")
    assert ("log_param", "r1", "network.memory", "shm") in said
    assert any(call[:3] == ("log_metric", "r1", "loss") and call[-1] == BATCH for call in said)
    assert said[-1] == ("set_terminated", "r1", "FINISHED")


def test_no_tensorboard_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.warns(RuntimeWarning, match="tensorboard is not installed, so it gets no events; pip install tensorboard"):
        assert train(settings(1, log=("tensorboard",)), tmp_path / "run").status == "finished"


# --- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_memory_does_not_grow(tmp_path, iterations):
    """With everything that a run writes; after a warm-up of a quarter."""
    sizes = []

    def report(row):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        sizes.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

    small = {"num_envs": 2, "num_steps": 4, "memory_size": 4, "log": ("tensorboard",), "checkpoint_every": 0.05}
    start = time.monotonic()
    train(make_config(**{**TINY, **small}, steps=8 * iterations, device="cpu"), tmp_path / "run", report=report)
    warm, end = max(sizes[: iterations // 4]), max(sizes[-iterations // 4:])
    assert end - warm < 3.0, f"{warm:.1f} MiB after the warm-up, {end:.1f} at the end ({time.monotonic() - start:.0f} s)"


# --- on a GPU ------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_run_on_a_gpu_stops_resumes_and_moves(tmp_path):
    config = dataclasses.replace(settings(6), device="cuda")
    train(config, tmp_path / "run", should_stop=after(3))
    before = rows(tmp_path / "run")
    run = train(config, tmp_path / "run", resume=True)
    assert run.status == "finished"
    assert rows(tmp_path / "run")[:3] == before
    assert [row["iteration"] for row in run.metrics] == list(range(1, 7))
    obs, moved = torch.arange(4), hm.load_policy(tmp_path / "run")
    assert run.policy.device.type == "cuda"
    here, _ = moved.act(obs, deterministic=True)
    there, _ = run.policy.act(obs.cuda(), deterministic=True)
    assert there.device.type == "cuda"
    assert torch.equal(here, there.cpu())
    assert here.tolist() == moved.to("cuda").act(obs.numpy(), deterministic=True)[0].tolist()
