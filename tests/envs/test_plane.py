"""Wind and Point Robot: recorded trajectories of the published code, task sets and their splits, scripted players."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from hadamem import envs
from hadamem.envs.games.point_robot import PointRobot
from hadamem.envs.games.task_sets import draw_tasks, release_tasks
from hadamem.envs.games.wind import Wind

from ..conftest import golden_folder

ENVS = {"wind": Wind, "point_robot": PointRobot, "point_robot_dense": lambda *a, **k: PointRobot(*a, dense=True, **k)}


@pytest.fixture(scope="module")
def traces() -> Path:
    return golden_folder("envs")


@pytest.mark.parametrize("kind", ENVS)
def test_recorded_trajectories_replay_bit_for_bit(kind, traces):
    files = sorted(traces.glob(f"{kind}_[0-9]*.npz"))
    assert files
    records = [np.load(file) for file in files]
    k = int(records[0]["rollouts_per_task"])
    env = ENVS[kind](len(files), dtype=torch.float64, autoreset_mode="disabled")
    assert (env.episodes, env.horizon) == (k, int(records[0]["horizon"]))
    want = {name: np.stack([r[name] for r in records]) for name in
            ("task", "obs", "actions", "states", "start_states", "rewards", "dones", "done_mdp", "goal_after_step")}
    inner = np.stack([s[np.isfinite(s).all(1)][:, :2] for s in want["start_states"]])       # [N, k - 1, 2]
    obs, _ = env.reset(seed=0, options={"layout": {"task": want["task"], "position": want["states"][:, 0], "starts": inner}})
    np.testing.assert_array_equal(obs, want["obs"][:, 0])
    for t in range(want["actions"].shape[1]):
        obs, reward, terminated, truncated, info = env.step(want["actions"][:, t])
        np.testing.assert_array_equal(obs, want["obs"][:, t + 1])
        np.testing.assert_array_equal(reward, want["rewards"][:, t])
        np.testing.assert_array_equal(truncated, want["dones"][:, t])
        np.testing.assert_array_equal(env.position, want["states"][:, t + 1])
        np.testing.assert_array_equal(info["done_mdp"], want["done_mdp"][:, t])
        np.testing.assert_array_equal(info["goal"], want["goal_after_step"][:, t])
        np.testing.assert_array_equal(info["start_state"], want["start_states"][:, t])
        assert not terminated.any()
    success = np.array([bool(r["success"]) for r in records])
    np.testing.assert_array_equal(info.get("success", torch.zeros(len(files), dtype=torch.bool)), success)


@pytest.mark.parametrize("kind", ENVS)
def test_release_tasks_are_the_published_ones(kind, traces):
    record = np.load(traces / f"{kind}_tasks.npz")
    tasks, permutation = release_tasks(kind)
    np.testing.assert_array_equal(permutation, record["permutation"])
    tolerance = 5e-16 if kind == "point_robot" else 0      # recorded with another numpy, which rounds sines differently
    np.testing.assert_allclose(tasks, record["tasks"], rtol=0, atol=tolerance)
    split = {part: ENVS[kind](1, tasks=part, task_seed="release", num_train=10, num_eval=190, dtype=torch.float64)
             for part in ("train", "eval", "all")}
    for env in split.values():
        env.reset(seed=1)
    np.testing.assert_array_equal(split["train"].tasks[0], tasks[permutation[:10]])
    np.testing.assert_array_equal(split["eval"].tasks[0], tasks[permutation[10:]])
    np.testing.assert_array_equal(split["all"].tasks[0], tasks[permutation])


@pytest.mark.parametrize("kind", ENVS)
def test_train_and_eval_tasks_of_a_run_are_disjoint_and_follow_its_seed(kind):
    def tasks(part, seed, **options):
        env = ENVS[kind](2, tasks=part, num_train=20, num_eval=30, dtype=torch.float64, **options)
        env.reset(seed=seed)
        return env.tasks[0].clone()

    together = torch.cat([tasks("train", 3), tasks("eval", 3)])
    assert torch.equal(together, tasks("all", 3))
    assert len(together.unique(dim=0)) == 50
    assert torch.equal(tasks("eval", 3), tasks("eval", 3, first_env=7))
    assert not torch.equal(tasks("train", 3), tasks("train", 4))
    assert torch.equal(tasks("train", 3, task_seed=5), tasks("train", 4, task_seed=5))


def test_tasks_are_uniform():
    n = 40_000
    for points, low, high in ((draw_tasks("square", 0.1, 0, n), -0.1, 0.1), (draw_tasks("square", 10.0, 1, n), -10, 10)):
        assert low <= points.min()
        assert points.max() < high
        counts = torch.stack([torch.histc(axis, 20, low, high) for axis in points.T])
        assert ((counts - n / 20) ** 2 / (n / 20)).sum(1).max() < 43.8       # chi-square, 19 degrees, 0.1 %
        assert torch.corrcoef(points.T)[0, 1].abs() < 4 / n**0.5
    circle = draw_tasks("half_circle", 1.0, 0, n)
    angle = torch.atan2(circle[:, 1], circle[:, 0])
    torch.testing.assert_close(circle.norm(dim=1), torch.ones(n, dtype=torch.float64))
    counts = torch.histc(angle, 20, 0, torch.pi)
    assert ((counts - n / 20) ** 2 / (n / 20)).sum() < 43.8


@pytest.mark.parametrize("dense", [False, True])
def test_starts_of_point_robot_fill_their_box(dense):
    env = PointRobot(4000, dense=dense)
    env.reset(seed=0)
    low, high = ((-1.0, -1.0), (1.0, 1.0)) if dense else ((-1.5, -0.5), (1.5, 1.5))
    low, high = torch.tensor(low), torch.tensor(high)
    starts = env.starts.flatten(0, 1)
    assert (starts >= low).all()
    assert (starts < high).all()
    error = (high - low) / 12**0.5 / len(starts) ** 0.5
    assert ((starts.mean(0) - (low + high) / 2).abs() < 4 * error).all()


def test_tasks_are_drawn_equally_often():
    env = Wind(4000, num_train=10)
    env.reset(seed=0)
    counts = torch.bincount(env.task_index, minlength=10)
    assert ((counts - 400) ** 2 / 400).sum() < 27.9       # chi-square, 9 degrees, 0.1 %
    assert torch.equal(env.task, env.tasks[0, env.task_index])


@pytest.mark.parametrize("num_envs", [1, 3, 7])
def test_cycle_gives_each_task_one_trajectory(num_envs):
    env = Wind(num_envs, tasks="eval", num_eval=21, cycle=True, horizon=2)
    env.reset(seed=0)
    seen = []
    for _ in range(21 // num_envs):
        seen += env.task_index.tolist()
        for _ in range(2):
            env.step(torch.zeros(num_envs, 2))
    assert seen == list(range(21))
    env.reset(seed=5)
    assert env.task_index.tolist() == list(range(num_envs))


def test_a_player_that_measures_the_wind_reaches_the_goal():
    """It uses observations only: each step shows the wind. Goals are out of reach where the wind blows south too hard."""
    env = Wind(150, tasks="eval", task_seed="release", cycle=True)
    obs, _ = env.reset(seed=0)
    winds, goal = env.task.clone(), torch.tensor([0.0, 1.0])
    before, success = obs, None
    action, total = goal.repeat(150, 1), torch.zeros(150)
    for _ in range(100):
        obs, reward, _, truncated, info = env.step(action)
        total += reward
        last = info["final_obs"]
        wind = last - before - 0.1 * action
        before = last
        action = ((goal - last - wind) / 0.1).clamp(-1, 1)
        success = info["success"]
    possible = 100 * (0.1 + winds[:, 1]) >= 0.99
    assert possible.sum() == 140       # of the release's tasks, the others cannot be solved
    assert not (success & ~possible).any()
    assert success.sum() >= 139        # one needs a perfect first step
    assert truncated.all()
    assert torch.equal(success, total > 0)
    assert total.max() > 80


def test_a_player_that_finds_the_goal_returns_to_it_in_the_next_inner_episode():
    env = PointRobot(64, num_eval=64, tasks="eval", cycle=True)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (64, 3)
    angles = torch.linspace(0.0, torch.pi, 64)
    way = torch.stack([angles.cos(), angles.sin()], 1)      # a sweep along the half circle
    found, place = torch.zeros(64, dtype=torch.bool), torch.zeros(64, 2)
    stop = torch.zeros(64, dtype=torch.int64)
    position = obs[:, :2]
    for t in range(200):
        near = (way[stop] - position).norm(dim=1) < 0.02
        stop = (stop + near.long()).clamp(max=63)
        target = torch.where(found[:, None], place, way[stop])
        obs, reward, _, truncated, info = env.step(((target - position) / 0.1).clamp(-1, 1))
        shown = info["final_obs"]
        first = (reward > 0) & ~found
        place = torch.where(first[:, None], shown[:, :2], place)
        found |= first
        position = torch.where(info["done_mdp"][:, None], info["start_state"][:, :2], shown[:, :2])
        assert torch.equal(shown[:, 2] == 1, info["done_mdp"])
        assert bool(info["done_mdp"].all()) == (t in (99, 199))
    assert truncated.all()
    assert torch.equal(info["success"], found)
    assert found.float().mean() > 0.95


def test_inner_episodes_keep_the_task_and_restart():
    env = PointRobot(5, episodes=3, horizon=4, autoreset_mode="disabled")
    obs, _ = env.reset(seed=2)
    task = env.task.clone()
    for t in range(1, 13):
        before = env.position.clone()
        obs, _, _, truncated, info = env.step(torch.ones(5, 2))
        torch.testing.assert_close(obs[:, :2], before + 0.1)
        assert torch.equal(env.task, task)
        assert bool(truncated.all()) == (t == 12)
        if t in (4, 8):
            assert torch.equal(env.position, env.starts[:, t // 4])
            assert torch.equal(info["start_state"][:, :2], env.position)
        else:
            assert info["start_state"].isnan().all()
            assert torch.equal(env.position, obs[:, :2])


def test_actions_are_clipped_and_a_distance_equal_to_the_radius_counts_as_reached():
    env = Wind(1, dtype=torch.float64, autoreset_mode="disabled", radius=0.5)
    env.reset(seed=0, options={"layout": {"task": np.zeros((1, 2)), "position": [[0.0, 0.5]]}})
    _, reward, *_, info = env.step(np.array([[-0.0, 0.0]]))
    assert reward.item() == 1.0
    assert info["goal"].item()
    assert reward.dtype == torch.float64
    obs, *_ = env.step(np.array([[50.0, -2.0]]))
    np.testing.assert_allclose(obs, [[0.1, 0.4]], atol=1e-7)


@pytest.mark.parametrize("name", ["Wind", "PointRobot", "PointRobotDense"])
def test_a_batch_equals_single_envs_and_a_saved_state_continues_the_same(name):
    make = functools.partial(envs.make, name, horizon=5)
    batch, singles = make(num_envs=3), [make(num_envs=1, first_env=i) for i in range(3)]
    obs = batch.reset(seed=9)[0]
    alone = [env.reset(seed=9)[0] for env in singles]
    assert torch.equal(obs, torch.cat(alone))
    assert obs.dtype == torch.float32
    generator = torch.Generator().manual_seed(0)
    saved, rest = None, []
    for t in range(23):
        if t == 12:
            saved = batch.get_state()
        action = torch.rand(3, 2, generator=generator) * 3 - 1.5
        got = batch.step(action)
        for i, env in enumerate(singles):
            for mine, theirs in zip(got[:4], env.step(action[i:i + 1])[:4], strict=True):
                assert torch.equal(mine[i:i + 1], theirs)
        assert all(batch.single_observation_space.contains(o.numpy()) for o in got[0])
        rest.append((action, got[0]))
    copy = make(num_envs=3)
    copy.set_state(saved)
    for action, want in rest[12:]:
        assert torch.equal(copy.step(action)[0], want)


def test_paper_preset_of_point_robot():
    env = PointRobot(100, preset="paper", tasks="all")
    obs, _ = env.reset(seed=0)
    assert obs.shape == (100, 2)
    assert env.episode_steps == 100
    assert env.radius == 0.01
    assert env.tasks.abs().max() > 9
    assert PointRobot().episode_steps == 200
    assert Wind().episode_steps == Wind(preset="paper").episode_steps == 100


def test_given_tasks_are_used():
    env = PointRobot(50, tasks=[[1.0, 2.0], [3.0, 4.0]])
    env.reset(seed=0)
    assert {tuple(task) for task in env.task.tolist()} == {(1.0, 2.0), (3.0, 4.0)}


@pytest.mark.parametrize(("options", "message"), [
    (dict(preset="best"), "unknown preset 'best'"),
    (dict(tasks="test"), "unknown tasks 'test'"),
    (dict(tasks=[1.0, 2.0]), r"\[n, 2\]"),
    (dict(tasks=[[0.0, float("nan")]]), "finite"),
    (dict(tasks=[[0.0, 1.0]], task_seed=3), "pass only one of them"),
    (dict(task_seed="1337"), "task_seed must be"),
    (dict(task_seed=-3), "task_seed must be"),
    (dict(task_seed="release", num_train=100), "at most 200"),
    (dict(task_seed="release", preset="paper"), "needs preset='release'"),
    (dict(dense=True, preset="paper"), "dense needs"),
    (dict(num_train=0), "num_train"),
    (dict(num_eval=0), "num_eval"),
    (dict(episodes=0), "episodes"),
    (dict(horizon=0), "horizon"),
    (dict(radius=-1.0), "radius"),
    (dict(dtype=torch.float16), "dtype"),
])
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        PointRobot(2, **options)


def test_bad_layouts_and_kinds_are_named():
    env = PointRobot(2)
    with pytest.raises(ValueError, match=r"layout\['starts'\] must be \[2, 1, 2\]"):
        env.reset(seed=0, options={"layout": {"starts": np.zeros((2, 2, 2))}})
    with pytest.raises(ValueError, match="unknown kind of tasks"):
        release_tasks("ant")
