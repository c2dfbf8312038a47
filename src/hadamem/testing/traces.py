"""Replays recorded episodes of published environments in ours; observations, rewards and ends must agree exactly.

A trace is a `.npz` of one episode. A replay puts its layout (everything that was random) into our env, feeds its
actions, and compares everything that was recorded. `*_tasks.npz` hold the fixed tasks of the meta-learning envs. Keys
that a file lacks are not compared.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..envs.base import BatchedEnv
from ..envs.games.key_to_door import DOOR, KeyToDoor
from ..envs.games.point_robot import PointRobot
from ..envs.games.room_tables import APPLE_CELLS, DISTRACTOR
from ..envs.games.rooms import Rooms
from ..envs.games.task_sets import release_tasks
from ..envs.games.visual_match import OBJECTS, VisualMatch
from ..envs.games.wind import Wind

UNREADABLE = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile)
ROUNDING = 4e-16   # tolerance for goals on the unit circle: libraries round sines differently

Data = Mapping[str, np.ndarray]


@dataclass
class TraceResult:
    """The outcome of one file; `compared` names the arrays that were compared."""

    name: str
    kind: str = "?"
    steps: int = 0
    compared: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    failure: str | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None and not self.differences and bool(self.compared)

    def __str__(self) -> str:
        head = f"{self.name:<26} {self.kind:<24} {self.steps:4} steps"
        if self.failure is not None:
            return f"{head}  FAIL  {self.failure}"
        if self.differences:
            return f"{head}  FAIL  {'; '.join(self.differences)}"
        if not self.compared:
            return f"{head}  FAIL  nothing in it could be compared"
        return f"{head}  {len(self.compared):2} arrays ok"

    def compare(self, name: str, data: Data, got: Any, tolerance: float = 0.0) -> None:
        """Compare `got` with data[name]; the first entry that differs is added to `differences`."""
        if name not in data:
            return
        self.compared.append(name)
        want, got = data[name], np.asarray(got)
        if want.shape != got.shape:
            self.differences.append(f"{name} has the shape {list(got.shape)}, recorded {list(want.shape)}")
            return
        same = np.isclose(got, want, rtol=0, atol=tolerance) if tolerance else got == want
        if want.dtype.kind == "f":
            same |= np.isnan(want) & np.isnan(got)
        if not same.all():
            first = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
            place = f"[{', '.join(map(str, first))}]" if want.ndim else ""
            value, recorded = (x[first] if want.ndim else x.item() for x in (got, want))
            self.differences.append(f"{name}{place} is {value}, recorded {recorded} ({int((~same).sum())} of {same.size} differ)")


def check_traces(directory: str | Path, *, device: str = "cpu", report: Callable[[TraceResult], None] | None = None) -> list[TraceResult]:
    """Replay every trace of a folder. report: called with each result. A file of an unknown kind fails."""
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"trace folder {str(directory)!r} does not exist")
    paths = sorted(directory.glob("*.npz"))
    if not paths:
        raise ValueError(f"trace folder {str(directory)!r} holds no .npz files")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    results = []
    for path in paths:
        results.append(check_trace(path, device=device))
        if report is not None:
            report(results[-1])
    return results


def check_trace(path: str | Path, *, device: str = "cpu") -> TraceResult:
    """Replay one trace, or compare one set of tasks."""
    path = Path(path)
    result = TraceResult(path.stem)
    try:
        data = read(path)
        result.kind = kind_of(path.stem, data)
    except UNREADABLE as error:
        result.failure = f"cannot be read: {error}"
        return result
    if result.kind not in CHECKS:
        result.failure = f"unknown kind {result.kind!r}; known are {', '.join(CHECKS)}"
        return result
    try:
        CHECKS[result.kind](data, result, device)
    except Exception as error:   # report it and check the other files
        result.failure = f"{type(error).__name__}: {error}"
    return result


def read(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of a trace."""
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def kind_of(stem: str, data: Data) -> str:
    """The kind of a file: a game, a meta-learning env, or its tasks."""
    for key in ("game", "kind"):
        if key in data:
            return str(data[key])
    return stem if stem.endswith("_tasks") and "tasks" in data else "?"


Watch = Mapping[str, Callable[[dict[str, Any]], Tensor]]   # name -> what to record at a frame, given the env's info ({} at the reset)


def replay(env: BatchedEnv, data: Data, layout: Mapping[str, Any], watch: Watch) -> dict[str, np.ndarray]:
    """Play the recorded actions in a single env, starting from a layout.

    Returns `obs` and the entries of `watch` [T + 1, ...], `rewards`, `terminated` and `truncated` [T], `success` [].
    """
    obs, info = env.reset(seed=0, options={"layout": {name: np.asarray(value)[None] for name, value in layout.items()}})
    frames = [{"obs": obs, **_look(watch, info)}]
    steps: list[dict[str, Tensor]] = []
    for action in data["actions"]:
        obs, reward, terminated, truncated, info = env.step(torch.as_tensor(action)[None])
        frames.append({"obs": obs, **_look(watch, info)})
        steps.append({"rewards": reward, "terminated": terminated, "truncated": truncated})
    played = {name: torch.cat([one[name] for one in rows]).cpu().numpy() for rows in (frames, steps) for name in rows[0]}
    return {**played, "success": np.asarray(info["success"][0].cpu() if "success" in info else False)}


def _look(watch: Watch, info: dict[str, Any]) -> dict[str, Tensor]:
    return {name: look(info).cpu().clone() for name, look in watch.items()}


# --- Visual Match and Key-to-Door


def room(data: Data, **options: Any) -> Rooms:
    """Make our env with the settings of a Visual Match or Key-to-Door trace."""
    explore, distractor, reward = (int(n) for n in data["max_frames"])
    cls = VisualMatch if str(data["game"]) == "visual_match" else KeyToDoor
    return cls(explore=explore, distractor=distractor, reward=reward, final_reward=float(data["final_reward"]),
               apple_reward=float(data["apple_reward"]), respawn_every=int(data["respawn_every"]), num_apples=int(data["num_apples"]),
               **options)


def room_layout(data: Data) -> dict[str, np.ndarray]:
    """The layout of a Visual Match or Key-to-Door trace."""
    names = {"target": "target_index", "target_cell": "target_cell", "door_colours": "door_colours", "key_cell": "key_cell",
             "player": "explore_player", "apple_cells": "apple_cells"}
    known = VisualMatch.layout if str(data["game"]) == "visual_match" else KeyToDoor.layout
    return {name: data[names[name]] for name in known}


def _check_room(data: Data, result: TraceResult, device: str) -> None:
    env = room(data, device=device, autoreset_mode="disabled")
    watch: dict[str, Callable[[dict[str, Any]], Tensor]] = {
        "phase": lambda _: env.phase, "frame": lambda _: env.frame, "player": lambda _: env.player, "apples": lambda _: env.apples,
    }
    if isinstance(env, KeyToDoor):
        watch["has_key"] = lambda _: env.has_key
    played = replay(env, data, room_layout(data), watch)
    result.steps = len(data["actions"])
    result.compare("obs", data, played["obs"].reshape(-1, *env.image_shape).transpose(0, 2, 3, 1))
    result.compare("rewards", data, played["rewards"])
    result.compare("dones", data, played["terminated"])
    result.compare("success", data, played["success"])
    for name in watch:
        result.compare(name, data, played[name])
    explore, distractor, _ = env.frames
    which = [APPLE_CELLS.index((int(r), int(c))) for r, c in data["apple_cells"]]
    apples = played["apples"][explore:explore + distractor + 1, which]         # at the start of the phase and after each action in it
    result.compare("apple_present", data, apples[1:])
    frames, cells = np.nonzero(apples[1:] != apples[:-1])
    result.compare("apple_events", data, np.stack([frames + 1, cells, apples[1:][frames, cells]], axis=1))
    for name, frame in (("explore_player", 0), ("distractor_player", explore), ("reward_player", explore + distractor)):
        result.compare(name, data, played["player"][frame])
    result.compare("door_cells", data, OBJECTS)
    result.compare("door_cell", data, DOOR)
    if (played["phase"] == DISTRACTOR).sum() != distractor or played["truncated"].any():
        result.differences.append("our phases have other lengths, or our env truncates")


# --- Wind and Point Robot


def _plane(kind: str, **options: Any) -> Wind | PointRobot:
    return Wind(**options) if kind == "wind" else PointRobot(dense=kind == "point_robot_dense", **options)


def _check_plane(data: Data, result: TraceResult, device: str) -> None:
    env = _plane(result.kind, device=device, dtype=torch.float64, autoreset_mode="disabled")
    _check_settings(data, result, env)
    inner, rounds = int(data["horizon"]), int(data["rollouts_per_task"])
    states = data["states"]
    layout = {"task": data["task"], "position": states[0], "starts": states[[inner * i for i in range(1, rounds)]].reshape(-1, 2)}
    false = torch.zeros(1, dtype=torch.bool)
    watch: dict[str, Callable[[dict[str, Any]], Tensor]] = {
        "states": lambda _: env.position,
        "done_mdp": lambda info: info.get("done_mdp", false),
        "goal_after_step": lambda info: info.get("goal", false),
        "start_states": lambda info: info.get("start_state", torch.full((1, data["obs"].shape[1]), torch.nan)),
    }
    played = replay(env, data, layout, watch)
    result.steps = len(data["actions"])
    result.compare("obs", data, played["obs"])
    result.compare("rewards", data, played["rewards"])
    result.compare("dones", data, played["terminated"] | played["truncated"])
    result.compare("success", data, played["success"])
    result.compare("states", data, played["states"])
    for name in ("done_mdp", "goal_after_step", "start_states"):
        result.compare(name, data, played[name][1:])
    result.compare("task", data, release_tasks(result.kind)[0][int(data["task_index"])], _rounding(result.kind))


def _check_tasks(data: Data, result: TraceResult, device: str) -> None:
    kind = result.kind.removesuffix("_tasks")
    tasks, permutation = release_tasks(kind)
    result.compare("tasks", data, tasks, _rounding(kind))
    result.compare("permutation", data, permutation)
    _check_settings(data, result, _plane(kind, device=device))


def _check_settings(data: Data, result: TraceResult, env: Wind | PointRobot) -> None:
    result.compare("horizon", data, env.horizon)
    result.compare("rollouts_per_task", data, env.episodes)
    result.compare("goal_radius", data, np.nan if env.radius is None else env.radius)


def _rounding(kind: str) -> float:
    return ROUNDING if kind == "point_robot" else 0.0


CHECKS: dict[str, Callable[[Data, TraceResult, str], None]] = {
    "visual_match": _check_room, "key_to_door": _check_room,
    "wind": _check_plane, "point_robot": _check_plane, "point_robot_dense": _check_plane,
    "wind_tasks": _check_tasks, "point_robot_tasks": _check_tasks, "point_robot_dense_tasks": _check_tasks,
}
