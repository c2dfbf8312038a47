"""Every memory trains: stopped runs resume bit for bit, whatever their states look like, and policies can be loaded."""

import pytest
import torch

import hadamem as hm
from hadamem import states
from hadamem.cli import main
from hadamem.training.loop import train

from .test_loop import after, assert_same_runs, newest, settings

MEMORIES = hm.list_memories()


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_stopped_run_resumes_and_its_policy_acts(tmp_path, memory):
    whole = train(settings(3, memory=memory), tmp_path / "whole")
    assert whole.status == "finished"
    assert whole.summary()["skipped"] == 0
    train(settings(3, memory=memory), tmp_path / "parts", should_stop=after(2))
    assert train(settings(3, memory=memory), tmp_path / "parts", resume=True).status == "finished"
    assert_same_runs(tmp_path / "whole", tmp_path / "parts")
    saved = newest(tmp_path / "parts").tensors
    moments = [x for name, x in saved.items() if name.startswith("agent.adam.trunk.memory") and "exp_avg" in name]
    assert memory == "none" or any(bool((x != 0).any()) for x in moments)
    assert_same_policies(whole.policy, hm.load_policy(tmp_path / "parts"))


def assert_same_policies(one, two):
    """The same actions over more than an episode of a task, and the same states after it."""
    env = hm.envs.make("popgym/RepeatPreviousEasy", num_envs=3, seed=5)
    obs, _ = env.reset()
    kept, reset = [policy.initial_state(3, torch.Generator().manual_seed(0)) for policy in (one, two)], torch.ones(3, dtype=torch.bool)
    for _ in range(60):
        (a, kept[0]), (b, kept[1]) = (p.act(obs, s, reset, deterministic=True) for p, s in zip((one, two), kept, strict=True))
        assert torch.equal(a, b)
        obs, _, terminated, truncated, _ = env.step(a)
        reset = terminated | truncated
    for a, b in zip(states.tensors(kept[0]), states.tensors(kept[1]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("memory", MEMORIES)
def test_from_the_command_line_with_its_own_sizes(tmp_path, memory, capsys):
    """Nothing but the name: the memory's own width and output, one iteration."""
    small = ["--num-envs", "4", "--num-steps", "8", "--steps", "32", "--ppo.num-epochs", "1", "--ppo.num-minibatches", "2", "--log", "none"]
    sizes = ["--memory-size", "none", "--memory-output-size", "none"]
    options = ["--memory-option", "window=64"] if memory == "gpt2" else []      # states as large as the window: 1024 by itself
    command = ["train", "--env", "popgym/RepeatPreviousEasy", "--memory", memory, "--device", "cpu", "--plain"]
    run = str(tmp_path / "run")
    assert main([*command, "--out", run, *small, *sizes, *options]) == 0
    assert main(["eval", run, "--episodes", "4"]) == 0
    assert "return" in capsys.readouterr().out
