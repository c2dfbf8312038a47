"""The replay of recorded episodes: the recorded files, and files written here, unchanged and damaged."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from hadamem.envs.games.key_to_door import KEYS, PLAYERS, KeyToDoor
from hadamem.envs.games.point_robot import PointRobot
from hadamem.envs.games.room_tables import APPLE_CELLS
from hadamem.envs.games.task_sets import release_tasks
from hadamem.envs.games.wind import Wind
from hadamem.testing.__main__ import main
from hadamem.testing.traces import check_trace, check_traces, read

from ..conftest import golden_folder

FOLDER = golden_folder("envs")
FILES = sorted(path.name for path in FOLDER.glob("*.npz"))


@pytest.mark.parametrize("name", FILES)
def test_recorded_episode(name):
    result = check_trace(FOLDER / name)
    assert result.ok, str(result)
    assert len(result.compared) >= 5


# --- the checker itself, on files written here


def record_room(path):
    env = KeyToDoor(explore=4, distractor=30, reward=3, autoreset_mode="disabled", seed=1)
    key, apples = KEYS[3], APPLE_CELLS[5:15]
    layout = {"key_cell": [key], "player": [PLAYERS[1]], "apple_cells": [apples]}
    obs, _ = env.reset(options={"layout": layout})
    frames, rewards, dones, held = [obs], [], [], [env.has_key]
    actions = torch.randint(4, (env.episode_steps,))
    for action in actions:
        obs, reward, terminated, _, info = env.step(action[None])
        frames.append(obs)
        rewards.append(reward)
        dones.append(terminated)
        held.append(env.has_key)
    images = torch.stack(frames).view(-1, 3, 5, 5).permute(0, 2, 3, 1)
    np.savez(path, game="key_to_door", max_frames=env.frames, final_reward=5.0, apple_reward=1.0, respawn_every=20, num_apples=10,
             key_cell=key, explore_player=PLAYERS[1], apple_cells=apples, obs=images, actions=actions, rewards=torch.cat(rewards),
             dones=torch.cat(dones), has_key=torch.cat(held), success=info["success"][0])


def record_plane(path, kind, env):
    tasks, _ = release_tasks(kind)
    start = env.reset(seed=0)[0][0, :2].numpy().copy()
    others = env.starts[:, 1:].clone()
    obs, _ = env.reset(seed=0, options={"layout": {"task": tasks[7][None], "position": start[None], "starts": others}})
    frames, rewards, dones, states = [obs], [], [], [env.position.clone()]
    actions = torch.rand(env.episode_steps, 2) * 2 - 1
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(action[None])
        frames.append(obs)
        rewards.append(reward)
        dones.append(terminated | truncated)
        states.append(env.position.clone())
    np.savez(path, kind=kind, task_index=7, task=tasks[7], horizon=env.horizon, rollouts_per_task=env.episodes,
             goal_radius=np.nan if env.radius is None else env.radius, obs=torch.cat(frames), actions=actions, rewards=torch.cat(rewards),
             dones=torch.cat(dones), states=torch.cat(states), success=info["success"][0] if "success" in info else False)


@pytest.fixture
def folder(tmp_path):
    options = dict(dtype=torch.float64, autoreset_mode="disabled")
    record_room(tmp_path / "key_to_door_0.npz")
    record_plane(tmp_path / "wind_0.npz", "wind", Wind(**options))
    record_plane(tmp_path / "point_robot_0.npz", "point_robot", PointRobot(**options))
    record_plane(tmp_path / "point_robot_dense_0.npz", "point_robot_dense", PointRobot(dense=True, **options))
    tasks, permutation = release_tasks("wind")
    np.savez(tmp_path / "wind_tasks.npz", tasks=tasks, permutation=permutation, horizon=100)
    return tmp_path


def change(path, **arrays):
    np.savez(path, **{**read(path), **arrays})


def test_command_says_ok(folder, capsys):
    assert main(["traces", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(line.endswith("ok") for line in lines[:5])
    assert lines[5].startswith("5 traces: 5 ok, 0 failed")


@pytest.mark.parametrize(("name", "key", "text"), [
    ("key_to_door_0", "obs", r"obs\[0, 0, 0, 0\]"), ("key_to_door_0", "rewards", r"rewards\[0\]"), ("key_to_door_0", "has_key", "has_key"),
    ("key_to_door_0", "dones", "dones"), ("wind_0", "states", "states"), ("point_robot_0", "rewards", "rewards"),
    ("point_robot_dense_0", "obs", "obs"), ("wind_tasks", "tasks", "tasks"), ("wind_tasks", "horizon", "horizon is 100, recorded 101"),
])
def test_a_difference_is_named(folder, capsys, name, key, text):
    data = read(folder / f"{name}.npz")[key]
    change(folder / f"{name}.npz", **{key: ~data if data.dtype == bool else data + 1})
    assert main(["traces", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "5 traces: 4 ok, 1 failed" in out
    result = check_trace(folder / f"{name}.npz")
    assert not result.ok
    assert any(re.search(text, d) for d in result.differences), result.differences


def test_one_changed_bit_is_found(folder):
    path = folder / "point_robot_dense_0.npz"
    rewards = read(path)["rewards"]
    rewards[17] = np.nextafter(rewards[17], 0)
    change(path, rewards=rewards)
    assert check_trace(path).differences[0].startswith("rewards[17]")
    change(path, rewards=rewards[:-1])
    assert "shape" in check_trace(path).differences[0]


def test_bad_files_fail_but_do_not_stop_the_others(folder, capsys):
    np.savez(folder / "chess_0.npz", game="chess")
    np.savez(folder / "nothing.npz", a=1)
    np.savez(folder / "key_to_door_1.npz", game="key_to_door")
    (folder / "broken.npz").write_bytes(b"no archive")
    assert main(["traces", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "9 traces: 5 ok, 4 failed" in out
    assert "unknown kind 'chess'" in out
    assert "cannot be read" in out
    assert "KeyError" in out
    assert [r.ok for r in check_traces(folder)].count(True) == 5


@pytest.mark.parametrize("extra", [[], ["--device", "toaster"]])
def test_bad_usage_is_one_sentence(folder, tmp_path_factory, capsys, extra):
    where = folder if extra else tmp_path_factory.mktemp("empty")
    assert main(["traces", str(where), *extra]) == 2
    assert main(["traces", str(where / "absent"), *extra]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "does not exist" in err
    assert "holds no .npz files" in err or "toaster" in err
