"""Runs of SAC: resumed bit for bit with their replay, or without it; and what is refused before a run begins."""

import math
import re
import signal
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from hadamem.cli import main
from hadamem.runs.config import make_config
from hadamem.training import replay as replays
from hadamem.training.loop import train
from hadamem.training.run import open_run
from hadamem.training.trainer import Trainer

from .test_loop import after, assert_same_runs, child, info, newest
from .test_replay import Walk

TINY = {"num_envs": 4, "device": "cpu", "log": (), "memory": "gru", "memory_size": 4, "memory_output_size": None, "hidden_sizes": (8,),
        "obs_embedding": 4, "action_embedding": 3, "reward_embedding": 2, "batch_size": 4, "learning_starts": 40,
        "updates_per_step": 0.1, "previous_reward": True}
RUNS = {      # 8 iterations each; replays go round
    "wind": {**TINY, "agent": "sac", "env": "Wind", "env_options": {"horizon": 5, "radius": 0.9}, "replay_size": 100,
             "total_steps": 8 * 20},
    "wind in windows": {**TINY, "agent": "sac", "env": "Wind", "env_options": {"horizon": 7}, "num_steps": 5, "sequence_length": 6,
                        "memory": "shm-paper", "replay_size": 100, "total_steps": 8 * 20, "burn_in": 2},
    "visual match": {**TINY, "agent": "sac-discrete", "env": "VisualMatch", "env_options": {"distractor": 1}, "num_steps": 5,
                     "sequence_length": 8, "replay_size": 100, "total_steps": 8 * 20, "ent_coef": 0.1},
}


def assert_same_replays(a, b):
    """The chunks of the newest checkpoints hold the same tensors, as far as they are the same rollouts."""
    seals = [{seal["name"]: seal["sha256"] for seal in newest(run).about["chunks"]} for run in (a, b)]
    assert set(seals[0]) == set(seals[1])
    trainers = []
    for run in (a, b):
        trainer = Trainer(open_run(run).config)
        trainer.replay.load_chunks(_chunks(run))
        trainers.append(trainer)
    one, two = (trainer.replay for trainer in trainers)
    assert one.added == two.added > 0
    for name, x in one.tensors.items():
        assert torch.equal(x, two.tensors[name]), name


def _chunks(run):
    from safetensors.torch import load_file

    for seal in newest(run).about["chunks"]:
        yield seal["name"], load_file(Path(run) / "checkpoints" / "chunks" / f"{seal['name']}.safetensors")


@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, monkeypatch, name):
    monkeypatch.setattr(replays, "CHUNK", 40)                                    # two rollouts
    config = make_config(**RUNS[name])
    train(config, tmp_path / "whole")
    train(config, tmp_path / "parts", should_stop=after(3))                      # just after learning began
    train(config, tmp_path / "parts", resume=True, should_stop=after(3))
    run = train(config, tmp_path / "parts", resume=True)
    assert run.status == "finished"
    assert sum(row["updates"] for row in run.metrics) == 12                      # 6 iterations of 2
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")
    assert_same_replays(tmp_path / "whole", tmp_path / "parts")
    assert {name.partition(".")[0] for name in newest(tmp_path / "whole").tensors if name.startswith("agent")} == {"agent"}


def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = make_config(**{**RUNS["wind in windows"], "memory": "gru", "total_steps": 20 * 25, "checkpoint_every": 0.05})
    train(config, whole)
    process, printed = child(whole / "config.yaml", parts)
    for iteration in printed:
        if iteration >= 8 and len(list((parts / "checkpoints").glob("[0-9]*"))) > 1:
            process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    train(config, parts, resume=True)
    assert info(parts)["resumed"][0]["iteration"] > 0
    assert_same_runs(whole, parts)
    assert_same_replays(whole, parts)


def test_a_foreign_env_starts_anew_and_the_replay_goes_on(tmp_path):
    settings = {**TINY, "agent": "sac-discrete", "env": "walk", "num_steps": 5, "sequence_length": 8, "replay_size": 200, "workers": 0}
    Walk.made, said = -1, []
    train(make_config(**settings, total_steps=4 * 20), tmp_path / "run", env=Walk)
    run = train(make_config(**settings, total_steps=8 * 20), tmp_path / "run", env=Walk, resume=True, notify=said.append)
    assert ["its episodes restart at iteration 4" in text for text in said] == [True]
    assert [row["updates"] for row in run.metrics] == [0, 0, 2, 2, 2, 2, 2, 2]
    assert sum(row["skipped"] for row in run.metrics) == 0


# --- without the replay --------------------------------------------------------------------------------------------


def test_without_its_replay_a_resumed_run_fills_it_first(tmp_path):
    config = make_config(**{**RUNS["wind in windows"], "replay_size": 200, "total_steps": 12 * 20, "save_replay": False,
                            "learning_starts": 60})
    said = []
    train(config, tmp_path / "run", should_stop=after(5), notify=said.append)
    assert said == []
    assert "chunks" not in newest(tmp_path / "run").about
    assert not (tmp_path / "run" / "checkpoints" / "chunks").exists()
    trainers = []
    run = train(config, tmp_path / "run", resume=True, notify=said.append, built=trainers.append)
    assert said == ["the checkpoint holds no replay (save_replay was off): it starts empty at iteration 5"]
    # 60 steps, three iterations, are needed before learning begins; it goes on as if nothing had been due meanwhile
    assert [row["updates"] for row in run.metrics] == [0, 0, 0, 2, 2, 0, 0, 2, 2, 2, 2, 2]
    assert sum(row["skipped"] for row in run.metrics) == 0
    assert trainers[0].replay.added == 7
    assert not bool(trainers[0].agent.exploring)                                 # it does not act at random again


def test_saving_the_replay_may_be_turned_off_and_on(tmp_path):
    def config(iterations, save):
        return make_config(**{**RUNS["wind"], "total_steps": iterations * 20, "save_replay": save, "checkpoint_every": 0.0})

    out, said = tmp_path / "run", []
    train(config(4, True), out)
    chunks = out / "checkpoints" / "chunks"
    assert list(chunks.iterdir())
    train(config(7, False), out, resume=True, notify=said.append)
    assert said == []                                                            # the checkpoint still had it
    assert list(chunks.iterdir()) == []                                          # no checkpoint names them any more
    run = train(config(9, True), out, resume=True, notify=said.append)
    assert len(said) == 1
    assert list(chunks.iterdir())
    assert run.status == "finished"


def test_the_command_line_turns_settings_off(tmp_path, capsys):
    words = ["--num-envs", "4", "--device", "cpu", "--log", "none", "--memory-size", "4", "--hidden-sizes", "8", "--batch-size", "4",
             "--learning-starts", "40", "--env-option", "horizon=5", "--replay-size", "100", "--plain", "--memory", "gru"]
    run = ["train", "--env", "Wind", "--agent", "sac", "--out", str(tmp_path / "run"), *words, "--steps", "60"]
    assert main([*run, "--no-save-replay", "--no-previous-action", "--no-sac.catch-up", "--no-shortcut"]) == 0
    config = open_run(tmp_path / "run").config
    assert (config.save_replay, config.previous_action, config.network.shortcut, config.algorithm.catch_up) == (False, False, False, False)
    capsys.readouterr()
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--steps", "80", "--plain", "--save-replay"]) == 0
    assert "it starts empty at iteration 3" in capsys.readouterr().out
    assert open_run(tmp_path / "run").config.save_replay
    assert main(["train", "--help", "--agent", "sac"]) == 0
    shown = capsys.readouterr().out
    assert "--save-replay" in shown
    assert "--no-save-replay" not in shown
    assert main([*run, "--no-batch-size"]) == 2
    assert "unknown argument '--no-batch-size'" in capsys.readouterr().err


# --- steps that are not finite -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["reward", "obs"])
def test_bad_steps_are_told_of_once(tmp_path, what):
    settings = {**TINY, "agent": "sac-discrete", "env": "walk", "num_steps": 5, "sequence_length": 5, "replay_size": 200, "workers": 0,
                "env_options": {"bad": 12, "what": what}}
    Walk.made, said = -1, []
    count = 4 if what == "reward" else 7                                         # two each, but one ended its episode
    run = train(make_config(**settings, total_steps=6 * 20), tmp_path / "run", env=Walk, notify=said.append)
    assert said == [f"{count} steps had observations or rewards that are not finite; these numbers count as zeros and are not learned from"]
    assert [row["bad_steps"] for row in run.metrics] == [0, 0, count, count, count, count]
    assert sum(row["skipped"] for row in run.metrics) == 0
    assert math.isfinite(run.metrics[-1]["critic_loss"])
    said.clear()
    settings["env_options"] = {"bad": 12, "what": what}
    run = train(make_config(**settings, total_steps=7 * 20), tmp_path / "run", env=Walk, notify=said.append, resume=True)
    assert run.metrics[-1]["bad_steps"] == count                                 # the count goes on
    assert len(said) == 1                                                        # of the episodes that restart, not of this again


# --- what is refused -----------------------------------------------------------------------------------------------


class Boundless(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-np.inf, np.inf, (2,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}


class ManyParts(Boundless):
    action_space = spaces.MultiDiscrete([100, 100])


WIND, MATCH = RUNS["wind"], RUNS["visual match"]
HERE = __name__
REFUSED = [
    ({**WIND, "env": "VisualMatch", "env_options": {}}, r"agent 'sac' needs continuous actions \(a Box\), but .* Discrete\(4\); use agent "
                                                        "'sac-discrete'"),
    ({**MATCH, "env": "Wind", "env_options": {}}, r"agent 'sac-discrete' needs Discrete or MultiDiscrete actions, but .* Box.*; use agent "
                                                  "'sac'"),
    ({**WIND, "env": f"{HERE}:Boundless", "env_options": {}}, "needs actions with bounds, but .*finite bounds, or use agent 'ppo'"),
    ({**MATCH, "env": f"{HERE}:ManyParts", "env_options": {}}, "10,000 combinations, and at most 1024 can be one choice; use agent 'ppo'"),
    ({**WIND, "sequence_length": 4, "burn_in": 4}, r"burn_in must be less than sequence_length \(4\), got 4; lower it, or raise"),
    ({**WIND, "burn_in": 5}, "burn_in must be less than the 5 steps of a sequence, got 5; lower it, or set sequence_length"),
    ({**WIND, "num_steps": 4, "burn_in": 64, "replay_size": 400}, "burn_in must be less than the 64 steps of a sequence, got 64"),
    ({**WIND, "updates_per_step": 0.0}, "updates_per_step must be above 0: updates per env step, such as 0.25, got 0.0"),
    ({**WIND, "updates_per_step": -1.0}, "updates_per_step must be above 0.*, got -1.0"),
    ({**WIND, "updates_per_step": float("nan")}, "updates_per_step must be finite.*, got nan"),
    ({**WIND, "updates_per_step": float("inf")}, "updates_per_step must be finite.*, got inf"),
    ({**WIND, "replay_size": 19}, r"replay_size must be at least 20 env steps to hold sequences of 5 steps .*, got 19; "
                                  "raise replay_size, or lower num_envs"),
    ({**WIND, "gamma": 1.5}, "gamma must be between 0 and 1, got 1.5"),
    ({**WIND, "tau": 0.0}, "tau must be above 0 and at most 1, got 0.0"),
    ({**WIND, "actor_memory_size": 3}, "actor_memory must be named where its size or options are given"),
    ({**WIND, "actor_memory": "gru", "shared_memory": True}, "actor_memory must be 'same' with shared_memory, got 'gru'; leave one"),
]


@pytest.mark.parametrize(("settings", "said"), REFUSED, ids=range(len(REFUSED)))
def test_bad_input(tmp_path, settings, said):
    """One sentence that names the setting, what came, and the fix; and no folder is left."""
    with pytest.raises(ValueError, match=said) as error:
        train(make_config(**{**settings, "workers": 0}), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def options(settings):
    """Settings as words of the command line."""
    words = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "env_options":
            words += [word for key, x in value.items() for word in ("--env-option", f"{key}={x}")]
        else:
            words += [flag, ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)]
    return words


@pytest.mark.parametrize("number", [0, 1, 2, 4, 5, 9, 11])
def test_bad_input_on_the_command_line(tmp_path, capsys, number):
    settings, said = REFUSED[number]
    assert main(["train", "--plain", "--out", str(tmp_path / "run"), *options({**settings, "workers": 0})]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(said, err)
    assert list(tmp_path.iterdir()) == []


def test_a_replay_larger_than_memory_is_refused_before_anything_is_allocated(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(replays, "free_memory", lambda device: 2**30)
    made = []
    plain = replays.Replay.allocate
    monkeypatch.setattr(replays.Replay, "allocate", lambda self: made.append(self) or plain(self))
    command = ["train", "--plain", "--out", str(tmp_path / "run"), *options({**WIND, "replay_size": 10**9, "total_steps": 100})]
    assert main(command) == 2
    assert not made[0].tensors
    err = capsys.readouterr().err
    assert "a replay of 1,000,000,000 steps needs" in err
    assert "but only 1.0 GiB are free on cpu; lower replay_size to" in err
    assert list(tmp_path.iterdir()) == []
