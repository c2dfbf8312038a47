"""Compiled rollout steps record what plain ones do. (Training compiles them on a GPU only; the compiler's front end runs anywhere.)"""

import pytest
import torch

from hadamem import states
from hadamem.envs import trees
from hadamem.runs.config import make_config
from hadamem.training.trainer import Trainer

SMALL = {"num_envs": 4, "num_steps": 40, "num_epochs": 1, "num_minibatches": 2, "memory_size": 8, "memory_output_size": 8,
         "device": "cpu", "joint_actions": "auto"}
GAMES = ("RepeatPrevious", "Autoencode", "Battleship", "Concentration")
TASKS = [*(f"popgym/{game}{level}" for game in GAMES for level in ("Easy", "Medium", "Hard")), "VisualMatch", "TMaze",
         "popgym/NoisyPositionOnlyPendulumEasy"]
MEMORIES = ["shm", "gru", "lstm", "ffm", "s6", "linear_attention", "fwp", "gpt2", "none"]
FAST = {("popgym/RepeatPreviousEasy", "shm")}
CASES = [pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow)
         for case in [*((task, "shm") for task in TASKS), *(("popgym/BattleshipEasy", memory) for memory in MEMORIES[1:])]]


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "task", "steps"), [("sac", "Wind", 40), ("sac", "Wind", 100), ("sac-discrete", "VisualMatch", 40)])
def test_rollouts_of_sac(agent, task, steps):
    """Whole episodes (100 steps), and parts of them, whose observations after every step are recorded."""
    compare(make_config("default", agent=agent, env=task, memory="shm", num_envs=4, num_steps=steps, memory_size=8, memory_output_size=8,
                        device="cpu", replay_size=4000), fullgraph=True)


def test_the_same_rollouts_as_on_a_gpu(monkeypatch):
    """With what a GPU multiplies out before a rollout, and with features that are compared."""
    monkeypatch.setattr("hadamem.agents.networks.FOLDS", ("cpu",))
    monkeypatch.setattr("hadamem.envs.features.SCATTERS", ())
    compare(make_config("popgym-best", env="popgym/BattleshipEasy", memory="shm", **{**SMALL, "memory_size": 16}), fullgraph=True)


@pytest.mark.parametrize(("task", "memory"), CASES)
def test_the_same_rollouts(task, memory):
    compare(make_config("default", env=task, memory=memory, **SMALL),
            fullgraph=memory not in ("gru", "lstm"))      # the compiler leaves PyTorch's RNNs alone


def compare(config, fullgraph):
    plain, compiled = Trainer(config).collector, Trainer(config).collector
    before = compiled.get_state()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled.compile(backend="aot_eager", fullgraph=fullgraph)
    compiled.set_state(before)
    graphs = []
    for iteration in range(2):
        for collector in (plain, compiled):
            collector.draw(iteration)
            collector.collect()
        a, b = plain.rollout, compiled.rollout
        pairs = [*zip(trees.leaves(a.obs), trees.leaves(b.obs), strict=True),
                 *zip(states.tensors(a.state), states.tensors(b.state), strict=True),
                 *((getattr(a, name), getattr(b, name)) for name in ("first", "action", "reward", "terminated", "truncated")),
                 *((a.extras[name], b.extras[name]) for name in a.extras), *((a.final[name], b.final[name]) for name in a.final),
                 *((a.last[name], b.last[name]) for name in a.last),
                 *(() if a.next_obs is None else zip(trees.leaves(a.next_obs), trees.leaves(b.next_obs), strict=True)),
                 *(() if a.terminal is None else [(a.terminal, b.terminal)])]
        for x, y in pairs:
            torch.testing.assert_close(y, x)
        assert plain.episodes() == pytest.approx(compiled.episodes())
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1]      # no step is compiled again in later rollouts
