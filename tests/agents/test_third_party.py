"""Agents of other people: one file each, and everything else works with them unchanged."""

import itertools
import sys
from pathlib import Path

import pytest
import torch

import hadamem as hm
from hadamem.agents import AGENTS, Agent, find_agent, register_agent
from hadamem.cli import main
from hadamem.runs.config import make_config
from hadamem.training import replay as replays
from hadamem.training.evaluate import evaluate
from hadamem.training.loop import train
from hadamem.training.replay import LatestRollout
from hadamem.training.run import open_run
from hadamem.training.trainer import Trainer

from ..training.test_loop import after, assert_same_runs

EXAMPLES = Path(__file__).parents[2] / "examples"
ENV = "popgym/RepeatPreviousEasy"
TINY = {"num_envs": 8, "num_steps": 16, "memory_size": 8, "encoder_size": 16, "layer_size": 16, "memory_output_size": 16, "log": (),
        "device": "cpu", "memory": "gru", "env": ENV}
BATCH = 8 * 16


@pytest.fixture
def reinforce(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import own_agent

    register_agent("reinforce", own_agent.Reinforce)
    yield own_agent.Reinforce
    del AGENTS["reinforce"], sys.modules["own_agent"]


Q = "tests.agents.q_learning:QLearning"


def test_reinforce_learns_with_memory_and_not_without(reinforce):
    """The example as it stands, until it is better than any agent without memory can be."""
    found = {}
    for memory in ("gru", "none"):
        settings = {"total_steps": 300_000, "num_envs": 32, "memory_size": 32, "gamma": 0.0, "device": "cpu"}
        trainer = Trainer(make_config(env=ENV, memory=memory, agent="reinforce", **settings))
        while not trainer.done and found.get(memory, -1) < 0.1:
            found[memory] = trainer.iteration()["return"]
            if memory == "none" and trainer.env_steps > 100_000:
                break
    assert found["gru"] > 0.1
    assert found["none"] < -0.2


def test_reinforce_is_trained_resumed_and_evaluated(reinforce, tmp_path, capsys):
    config = make_config(agent="reinforce", total_steps=4 * BATCH, **TINY)
    whole = train(config, tmp_path / "whole")
    train(config, tmp_path / "parts", should_stop=after(2))
    assert train(config, tmp_path / "parts", resume=True).status == "finished"
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")
    assert set(whole.metrics[-1]) >= {"return", "loss", "entropy"}
    saved = evaluate(open_run(tmp_path / "parts").policy, ENV, episodes=4, seed=2)
    assert saved.returns == evaluate(whole.policy, ENV, episodes=4, seed=2).returns
    assert main(["eval", str(tmp_path / "parts"), "--episodes", "2"]) == 0
    assert "return" in capsys.readouterr().out


def test_an_agent_by_its_module_has_its_options_on_the_command_line(reinforce, tmp_path, capsys):
    options = [word for name, value in TINY.items() if name not in ("log", "env", "memory")
               for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["train", "--agent", "own_agent:Reinforce", "--env", ENV, "--plain", "--log", "none", "--steps", "256", *options]
    assert main([*command, "--out", str(tmp_path / "run"), "--ent-coef", "0.5", "--reinforce.gamma", "0.25"]) == 0
    settings = open_run(tmp_path / "run").config.algorithm
    assert (type(settings).__name__, settings.ent_coef, settings.gamma) == ("ReinforceConfig", 0.5, 0.25)
    assert "reinforce:\n  learning_rate" in (tmp_path / "run" / "config.yaml").read_text()
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--steps", "384", "--plain"]) == 0
    assert "entropy" in capsys.readouterr().out
    assert main([*command, "--out", str(tmp_path / "other"), "--clip-range", "0.2"]) == 2      # PPO's
    assert "unknown argument '--clip-range'" in capsys.readouterr().err


def test_what_is_no_agent_is_refused():
    with pytest.raises(ValueError, match=r"unknown agent 'pop'; did you mean 'ppo'\?"):
        find_agent("pop")
    with pytest.raises(TypeError, match=r"agent 'hadamem:SHM' must be a subclass of hadamem.agents.Agent"):
        find_agent("hadamem:SHM")
    with pytest.raises(TypeError, match=r"agent 'half' must define act, learn; hadamem/agents/agent\.py says"):
        register_agent("half", type("Half", (Agent,), {"__init__": lambda self, spec, device="cpu": None}))
    with pytest.raises(TypeError, match=r"agent 'bare' needs a dataclass with its settings: set Bare\.Config"):
        register_agent("bare", type("Bare", (hm.agents.PPO,), {"Config": None}))
    with pytest.raises(ValueError, match="agent 'ppo' is PPO already"):
        register_agent("ppo", type("Other", (hm.agents.PPO,), {}))


# --- learning from a replay ----------------------------------------------------------------------------------------


def q_settings(iterations, **changes):
    settings = {**TINY, "replay_size": 24 * 16, "sequence_length": 16, "env": "popgym/RepeatFirstEasy", **changes}
    return make_config(agent=Q, total_steps=iterations * BATCH, **settings)


@pytest.mark.parametrize("rollouts", [1, 2])
@pytest.mark.parametrize("stops", [(2,), (3, 4, 5)])
def test_a_run_with_a_replay_resumes_bit_for_bit(tmp_path, monkeypatch, stops, rollouts):
    """The replay holds three rollouts of 8 envs, so it wraps around between the stops. A chunk holds one or two."""
    monkeypatch.setattr(replays, "CHUNK", rollouts * BATCH)
    train(q_settings(7), tmp_path / "whole")
    for i, stop in enumerate(stops):
        train(q_settings(7), tmp_path / "parts", should_stop=after(stop - (stops[i - 1] if i else 0)), resume=i > 0)
    train(q_settings(7), tmp_path / "parts", resume=True)
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")
    chunks = [sorted(p.name for p in (tmp_path / run / "checkpoints" / "chunks").iterdir()) for run in ("whole", "parts")]
    last = [(4, 5), (5, 6), (6, 7)] if rollouts == 1 else [(4, 6), (6, 7)]
    assert chunks[0][-len(last):] == chunks[1][-len(last):] == [f"{i:08}-{j:08}.safetensors" for i, j in last]


def test_a_checkpoint_writes_only_what_is_new_of_a_replay(tmp_path, monkeypatch):
    monkeypatch.setattr(replays, "CHUNK", BATCH)
    times = []

    def look(row):
        chunks = tmp_path / "run" / "checkpoints" / "chunks"
        times.append({p.name: p.stat().st_mtime_ns for p in chunks.iterdir()} if chunks.is_dir() else {})

    train(q_settings(6, checkpoint_every=0.0, replay_size=10_000), tmp_path / "run", report=look)
    for earlier, later in itertools.pairwise(times):
        assert earlier.items() <= later.items()      # none was touched again
        assert len(later) == len(earlier) + 1


def test_the_latest_rollout_can_be_sampled_too():
    trainer = Trainer(make_config(total_steps=BATCH, num_minibatches=2, num_epochs=1, **TINY))
    trainer.iteration()
    source = trainer.source
    assert isinstance(source, LatestRollout)
    chosen = source.choose(3, torch.Generator().manual_seed(0))
    assert len(set(chosen.tolist())) == 3
    batch = source.take(chosen)
    assert torch.equal(batch.features(), trainer.collector.rollout.features()[chosen])


def test_a_replay_too_small_for_a_sequence_is_refused():
    with pytest.raises(ValueError, match=r"replay_size must be at least 256 env steps to hold sequences of 16 steps \(8 envs"):
        Trainer(q_settings(1, replay_size=255))


def test_features_of_a_rollout_are_those_that_the_agent_acted_on():
    """For every kind of observation and action: Discrete, tuples, images, boxes, masks of previous actions across episodes."""
    for env in (ENV, "popgym/AutoencodeEasy", "popgym/BattleshipEasy", "popgym/PositionOnlyPendulumEasy", "VisualMatch", "TMaze"):
        trainer = Trainer(make_config(total_steps=10_000, num_minibatches=2, num_epochs=1, **{**TINY, "env": env, "num_steps": 40}))
        seen, plain = [], trainer.agent.explore
        trainer.agent.explore = lambda features, *rest, seen=seen, plain=plain: (seen.append(features.clone()), plain(features, *rest))[1]
        for _ in range(2):
            seen.clear()
            trainer.iteration()
            assert torch.equal(torch.stack(seen[:40], 1), trainer.collector.rollout.features()), env


def test_a_run_is_resumed_with_its_own_agent(reinforce, tmp_path, capsys):
    train(make_config(agent="reinforce", total_steps=BATCH, **TINY), tmp_path / "run")
    with pytest.raises(ValueError, match="was trained with agent 'reinforce', got agent='ppo'"):
        hm.train(out=tmp_path / "run", resume=True, agent="ppo")
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--agent", "ppo"]) == 2
    assert "was trained with agent 'reinforce', got --agent ppo; leave it out" in capsys.readouterr().err
    assert main(["train", "--config", str(tmp_path / "run" / "config.yaml"), "--agent", "ppo", "--out", str(tmp_path / "other")]) == 2
    assert "config.yaml: 'reinforce' belongs to agent 'reinforce', but the agent is 'ppo'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="'ppo' belongs to agent 'ppo', but the agent is 'reinforce'"):
        make_config(agent="reinforce", ppo={"gamma": 0.9})
    longer = hm.train(out=tmp_path / "run", resume=True, steps=2 * BATCH, quiet=True)
    assert longer.metrics[-1]["steps"] == 2 * BATCH


def test_a_replay_does_not_fit_another_env(tmp_path):
    train(q_settings(2), tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("popgym/RepeatFirstEasy", "popgym/AutoencodeEasy"))
    with pytest.raises(ValueError, match="other settings: env"):
        train(q_settings(3, env="popgym/AutoencodeEasy"), tmp_path / "run", resume=True)


def test_actions_must_be_part_of_the_network(reinforce, monkeypatch):
    plain = reinforce.__init__

    def broken(self, spec, device="cpu"):
        plain(self, spec, device)
        del self.network.actions

    monkeypatch.setattr(reinforce, "__init__", broken)
    with pytest.raises(TypeError, match=r"Reinforce\.actions must be a submodule of its network"):
        Trainer(make_config(agent="reinforce", total_steps=BATCH, **TINY))


def test_reinforce_trains_the_deviation_of_a_box(reinforce):
    trainer = Trainer(make_config(agent="reinforce", total_steps=BATCH, **{**TINY, "env": "popgym/PositionOnlyPendulumEasy"}))
    before = trainer.network.actions.log_std.clone()
    trainer.iteration()
    assert not torch.equal(before, trainer.network.actions.log_std)
    assert "agent.adam.actions.log_std.exp_avg" in trainer.get_state()


@pytest.mark.gpu
@pytest.mark.parametrize("agent", ["own_agent:Reinforce", Q])
def test_on_a_gpu(reinforce, agent):
    small = {**TINY, "device": "cuda", **({"replay_size": 1024} if agent == Q else {})}
    trainer = Trainer(make_config(agent=agent, total_steps=6 * BATCH, **small))
    while not trainer.done:
        row = trainer.iteration()
    assert row["loss"] == row["loss"]


def test_agents_are_listed(capsys):
    assert main(["list", "agents"]) == 0
    assert "ppo" in capsys.readouterr().out
    assert hm.agents.AGENTS["ppo"] is hm.agents.PPO
