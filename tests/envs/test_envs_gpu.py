"""The batched tasks on a GPU: the same episodes as on the CPU, no host synchronisation, and CUDA graphs."""

import pytest
import torch

from hadamem import envs
from hadamem.envs import trees

from ..contract.test_envs import actions, assert_same, flat
from ..cuda_graphs import captured

pytestmark = pytest.mark.gpu
NAMES = envs.list_envs()
N = 37


def cpu(tree):
    return trees.apply(lambda x: x.cpu(), tree)


@pytest.mark.parametrize("name", NAMES)
def test_same_episodes_as_on_the_cpu(name):
    """Whole numbers are equal; floats agree up to rounding, e.g. of cosines and logarithms."""
    here, there = envs.make(name, num_envs=N, seed=4), envs.make(name, num_envs=N, seed=4, device="cuda")
    plan = actions(here, 120)
    compare(here.reset()[0], cpu(there.reset()[0]))
    for action in plan:
        a, b = here.step(action)[:4], cpu(there.step(action.cuda())[:4])
        compare(a, b)
        if any(x.is_floating_point() for x in flat(a[0])):      # chaotic systems diverge: continue from the same state
            there.set_state(here.get_state())


def compare(a, b):
    for x, y in zip(flat(a), flat(b), strict=True):
        if x.is_floating_point():
            torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-4)
        else:
            assert torch.equal(x, y)


@pytest.mark.parametrize("name", NAMES)
def test_a_cuda_graph_gives_the_same_steps(name):
    """Captured once and replayed over the ends of episodes; nothing in it waits for the GPU."""
    env, graphed = (envs.make(name, num_envs=N, seed=2, device="cuda", max_episode_steps=50) for _ in range(2))
    plan = actions(env, 120).cuda()
    env.reset()
    graphed.reset()
    start = graphed.get_state()
    action = plan[0].clone()
    torch.cuda.set_sync_debug_mode("error")
    try:
        graphed.step(action)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    _, result, graph = captured(lambda: graphed.step(action)[:4], warm_up=1)
    graphed.set_state(start)
    for step in plan:
        action.copy_(step)
        graph.replay()
        assert_same(result, env.step(step)[:4], name)


@pytest.mark.parametrize("name", ["popgym/RepeatPreviousEasy", "popgym/ConcentrationEasy"])
def test_wrapped_steps_in_a_graph(name):
    env, graphed = (envs.wrap(envs.make(name, num_envs=N, seed=2, device="cuda")) for _ in range(2))
    plan = actions(env, 130).cuda()
    env.reset()
    graphed.reset()
    start, action = graphed.get_state(), plan[0].clone()
    _, (obs, reward, *_, info), graph = captured(lambda: graphed.step(action), warm_up=1)
    graphed.set_state(start)
    for step in plan:
        action.copy_(step)
        graph.replay()
        want = env.step(step)
        assert_same((obs, reward, info["final_obs"]), (want[0], want[1], want[4]["final_obs"]))
