"""T-Maze: its rules step by step, and players with and without memory."""

from __future__ import annotations

import pytest
import torch

from hadamem import envs
from hadamem.envs.games.tmaze import TMaze

RIGHT, UP, LEFT, DOWN = range(4)


def play(actions, goal=1, **options):
    """Observations, rewards, ends and the last info of one episode."""
    env = TMaze(**options)
    obs, _ = env.reset(seed=0, options={"layout": {"goal": [goal]}})
    seen, rewards, ends, info = [obs[0].tolist()], [], [], {}
    for action in actions:
        obs, reward, terminated, truncated, info = env.step([action])
        assert not truncated
        seen.append((info["final_obs"] if terminated else obs)[0].tolist())
        rewards.append(float(reward))
        ends.append(bool(terminated))
    return seen, rewards, ends, info


@pytest.mark.parametrize("goal", [1, -1])
def test_passive(goal):
    seen, rewards, ends, info = play([RIGHT] * 3 + [UP], goal, corridor=3)
    assert seen == [[0, goal], [0, 0], [0, 0], [1, 0], [1, 1]]
    assert rewards == [0, 0, 0, float(goal == 1)]
    assert ends == [False] * 3 + [True]
    assert bool(info["success"]) == (goal == 1)


@pytest.mark.parametrize("goal", [1, -1])
def test_active(goal):
    seen, rewards, ends, info = play([LEFT] + [RIGHT] * 4 + [DOWN], goal, corridor=3, active=True)
    assert seen == [[0, 0], [0, goal], [0, 0], [0, 0], [0, 0], [1, 0], [1, -1]]
    assert rewards == [0, 0, 0, 0, 0, float(goal == -1)]
    assert ends == [False] * 5 + [True]
    assert bool(info["success"]) == (goal == -1)


def test_the_cue_is_shown_once_and_lagging_costs():
    seen, rewards, _, _ = play([LEFT, RIGHT, LEFT, UP, RIGHT], corridor=4)
    assert seen == [[0, 1]] + [[0, 0]] * 5
    assert rewards == [-0.25] * 4 + [0]
    seen, rewards, _, _ = play([RIGHT, LEFT, LEFT, LEFT, RIGHT], corridor=2, active=True)
    assert seen == [[0, 0], [0, 0], [0, 0], [0, 1], [0, 0], [0, 0]]
    assert rewards == [0, 0, -0.5, -0.5, 0]
    _, rewards, _, _ = play([LEFT] * 3, corridor=2, penalty=-3.0)
    assert rewards == [-3, -3, 0]


def test_walls_and_the_cells_beside_the_junction():
    seen, *_ = play([UP, RIGHT, UP, UP], corridor=1, active=True)
    assert seen == [[0, 0], [0, 0], [1, 0], [1, 1], [1, 1]]      # up in the corridor does nothing
    env = TMaze(corridor=1, active=True, autoreset_mode="disabled")
    env.reset(seed=0)
    places = []
    for action in [RIGHT, RIGHT, UP, UP, RIGHT, LEFT, DOWN, DOWN, DOWN, LEFT, UP, LEFT, LEFT, LEFT, UP]:
        env.step([action])
        places.append((int(env.x), int(env.y)))
    assert places == [(2, 0), (2, 0), (2, 1), (2, 1), (2, 1), (2, 1), (2, 0), (2, -1), (2, -1), (2, -1), (2, 0), (1, 0), (0, 0), (0, 0),
                      (0, 0)]


def test_goals_are_fair():
    env = TMaze(10_000, corridor=1, seed=0)
    env.reset()
    assert abs(env.goal.double().mean()) < 0.05
    first = env.goal.clone()
    env.reset()
    assert abs((env.goal * first).double().mean()) < 0.05


@pytest.mark.parametrize(("name", "corridor"), [("TMaze", 1), ("TMaze", 9), ("TMazeActive", 1), ("TMazeActive", 30)])
def test_memory_decides(name, corridor):
    """A player that remembers the cue always succeeds; one that does not succeeds half of the time."""
    env = envs.make(name, 500, corridor=corridor, seed=1)
    for remembers in (True, False):
        obs, _ = env.reset()
        cue, total = torch.zeros(500), torch.zeros(500)
        for t in range(env.episode_steps):
            far, side = obs.unbind(1)
            cue = torch.where((far == 0) & (side != 0), side, cue)
            action = torch.where((cue if remembers else torch.ones(500)) > 0, UP, DOWN).where(far > 0, torch.tensor(RIGHT))
            action = torch.where(torch.tensor(env.active and t == 0), LEFT, action)
            obs, reward, terminated, _, info = env.step(action)
            total += reward
        assert terminated.all()
        assert torch.equal(total, info["success"].float())
        rate = info["success"].double().mean()
        assert rate == 1 if remembers else abs(rate - 0.5) < 0.1


def test_bad_options_say_what_is_wrong():
    for options, error in ((dict(corridor=0), ValueError), (dict(corridor=2.0), TypeError), (dict(corridor=1 << 20), ValueError)):
        with pytest.raises(error, match="corridor"):
            TMaze(**options)
    with pytest.raises(ValueError, match="penalty"):
        TMaze(penalty=float("inf"))
    for goal in ([0], [1, 1]):
        with pytest.raises(ValueError, match="goal"):
            TMaze().reset(seed=0, options={"layout": {"goal": goal}})
