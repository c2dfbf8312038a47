"""Wind and Point Robot (meta-learning): a point in the plane must reach a goal, not knowing the wind or not knowing the goal.

A task (the wind, or the goal) stays hidden for a whole trajectory of k inner episodes. There are train tasks and held-out ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from .. import random
from .base import BatchedEnv, assign, positive
from .task_sets import TaskSet, release_tasks

__all__ = ["PlaneEnv", "PointRobot", "Wind", "release_tasks"]

STEP = 0.1     # longest move along each axis

_WIND = dict(horizon=100, episodes=1, radius=0.01, start=((0.0, 0.0), (0.0, 0.0)), tasks=dict(shape="square", size=0.1, kind="wind"))
WIND = {"release": _WIND, "paper": _WIND}
POINT_ROBOT = {      # start: (lowest x, y), (highest x, y)
    "release": dict(horizon=100, episodes=2, radius=0.05, start=((-1.5, -0.5), (1.5, 1.5)),
                    tasks=dict(shape="half_circle", size=1.0, kind="point_robot")),
    "paper": dict(horizon=100, episodes=1, radius=0.01, start=((-1.5, -0.5), (1.5, 1.5)),
                  tasks=dict(shape="square", size=10.0, kind=None)),
}
POINT_ROBOT_DENSE = dict(horizon=60, episodes=1, radius=None, start=((-1.0, -1.0), (1.0, 1.0)),
                         tasks=dict(shape="square", size=10.0, kind="point_robot_dense"))


class PlaneEnv(BatchedEnv):
    """A point that is moved by `STEP * action`; subclasses say what a task does.

    preset: "release" (the published code) or "paper" (its text); each of `radius`, `horizon` and `episodes` replaces the preset's number.
    tasks: "train", "eval" (held out), "all", or the tasks themselves [n, 2]. num_train, num_eval: how many there are.
    task_seed: None draws the tasks from the seed of the run, so give the train and the eval env of a run the same seed, or their tasks are
    not disjoint; a number draws them from that instead; "release" takes the published code's fixed ones.
    cycle: env i takes task (i + e * num_envs) mod n in its episode e after seeding, so that every task gets its turn; otherwise one is
    drawn for each trajectory.
    horizon: steps of an inner episode. episodes: k. radius: distance up to which the goal counts as reached.
    dtype: of positions, observations and rewards; float64 repeats the published code bit by bit.

    Actions are cut to [-1, 1] and scaled in float32. The published code does the same but advertises ±0.1, so that its random actions
    move a tenth as far. Observations: the position [2], and with k > 1 whether an inner episode ended with this step. Then the point
    starts anew, but the observation still shows where it ended.

    `info` of a step holds, besides BatchedEnv's, `done_mdp` [N] bool (an inner episode ended), `start_state` (the observation at the new
    start where another inner episode begins, nan elsewhere) and `goal` [N] bool (the goal is reached by the position from which the next
    step moves: after an inner episode that is the new start). Success is to have had `goal` once in the trajectory.
    A trajectory ends by truncation; reaching the goal ends nothing.
    """

    layout = ("task", "position", "starts")

    fixed_length = True

    def __init__(self, num_envs: int, settings: Mapping[str, Any], *, tasks: Any = "train", task_seed: int | str | None = None,
                 num_train: int = 50, num_eval: int = 150, cycle: bool = False, episodes: int | None = None, horizon: int | None = None,
                 radius: float | None = None, dtype: torch.dtype = torch.float32, **options: Any):
        super().__init__(num_envs, **options)
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        if radius is not None and not radius > 0:
            raise ValueError(f"radius must be positive, got {radius}")
        self.dtype, self.cycle = dtype, cycle
        self.horizon = positive("horizon", settings["horizon"] if horizon is None else horizon)
        self.episodes = positive("episodes", settings["episodes"] if episodes is None else episodes)
        self.radius: float | None = settings["radius"] if radius is None else radius
        self.reward_dtype = self.dtype
        self.episode_steps: int = self.horizon * self.episodes
        width = 2 if self.episodes == 1 else 3
        self.single_observation_space = Box(-np.inf, np.inf, (width,), np.float64 if dtype == torch.float64 else np.float32)
        self.single_action_space = Box(-1.0, 1.0, (2,), np.float32)
        self.task_set = TaskSet(tasks, task_seed, num_train, num_eval, **settings["tasks"])
        low, high = torch.tensor(settings["start"], dtype=torch.float64, device=self.device)
        self.start_low, self.start_size = low, high - low
        self.env_index = torch.arange(self.first_env, self.first_env + self.num_envs, device=self.device)

        self.tasks = self.zeros("tasks", len(self.task_set), 2, dtype=dtype)     # the same for all envs, unless each has a seed of its own
        self.episode = self.zeros("episode")                               # number since seeding
        self.task_index = self.zeros("task_index")                         # which of them; -1: the task came by a layout
        self.task = self.zeros("task", 2, dtype=dtype)
        self.starts = self.zeros("starts", self.episodes, 2, dtype=dtype)  # where each inner episode begins
        self.position = self.zeros("position", 2, dtype=dtype)             # the next step moves from here
        self.seen = self.zeros("seen", 2, dtype=dtype)                     # the position on show
        self.done_mdp = self.zeros("done_mdp", dtype=torch.bool)
        self.at_goal = self.zeros("at_goal", dtype=torch.bool)
        self.reached = self.zeros("reached", dtype=torch.bool)             # was at the goal in this trajectory

    def move(self, step: Tensor) -> Tensor:
        """Where a step [N, 2] leads from `position`. [N, 2]"""
        raise NotImplementedError

    def goal(self) -> Tensor:
        """[N, 2] or [2]"""
        raise NotImplementedError

    def pay(self, distance: Tensor) -> Tensor:
        """Reward for being that far from the goal after the move. [N]"""
        assert self.radius is not None
        return (distance <= self.radius).to(self.dtype)

    def prepare(self, seed: int) -> None:
        seeds, which = self.seeds.unique(return_inverse=True)
        self.tasks.copy_(torch.stack([self.task_set.draw(int(run)) for run in seeds])[which])
        self.episode.fill_(-1)

    def start(self, mask: Tensor | None) -> None:
        assign(self.episode, mask, self.episode + 1)
        if self.cycle:
            index = (self.env_index + self.episode * self.num_envs) % len(self.task_set)
        else:
            index = random.integers(self.counter(), len(self.task_set))
        unit = random.uniform(random.spread(self.counter(1), 2 * self.episodes), torch.float64).view_as(self.starts)
        assign(self.task_index, mask, index)
        assign(self.task, mask, _pick(self.tasks, index))
        assign(self.starts, mask, (self.start_low + self.start_size * unit).to(self.dtype))
        for shown in (self.position, self.seen):
            assign(shown, mask, self.starts[:, 0])
        for flag in (self.done_mdp, self.at_goal, self.reached):
            assign(flag, mask, False)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        action = action.to(torch.float32).clamp(-1, 1)
        step = ((action + 1) * 0.5 * (2 * STEP) - STEP).clamp(-STEP, STEP)
        self.seen.copy_(self.move(step))
        distance = self._distance(self.seen)
        reward = self.pay(distance)
        last = self.elapsed >= self.episode_steps
        self.done_mdp.copy_((self.elapsed % self.horizon == 0) | last)
        self.position.copy_(self.seen)
        if self.episodes > 1:
            number = (self.elapsed // self.horizon).clamp(max=self.episodes - 1)
            assign(self.position, self.done_mdp & ~last, _pick(self.starts, number))
            distance = self._distance(self.position)
        if self.radius is not None:
            self.at_goal.copy_(distance <= self.radius)
            self.reached.logical_or_(self.at_goal)
        return reward, torch.zeros_like(last), last

    def observe(self) -> Tensor:
        return self._shown(self.seen, self.done_mdp)

    def success(self) -> Tensor | None:
        return None if self.radius is None else self.reached.clone()

    def extra_info(self) -> dict[str, Any]:
        begins = self.done_mdp & (self.elapsed < self.episode_steps)
        start = self._shown(self.position, torch.zeros_like(begins))
        return {"done_mdp": self.done_mdp.clone(), "goal": self.at_goal.clone(),
                "start_state": start.masked_fill(~begins[:, None], torch.nan)}

    def inject(self, layout: dict[str, Any]) -> None:
        """`task` [N, 2], `position` [N, 2] (the first start), `starts` [N, k - 1, 2] (the others); any of them may be left out."""
        targets = {"task": self.task, "position": self.starts[:, 0], "starts": self.starts[:, 1:]}
        for name, value in layout.items():
            value = torch.as_tensor(value, device=self.device, dtype=self.dtype)
            if value.shape != targets[name].shape:
                raise ValueError(f"layout[{name!r}] must be {list(targets[name].shape)}, got {list(value.shape)}")
            targets[name].copy_(value)
        if "task" in layout:
            self.task_index.fill_(-1)
        self.position.copy_(self.starts[:, 0])
        self.seen.copy_(self.starts[:, 0])

    def _shown(self, position: Tensor, ended: Tensor) -> Tensor:
        return position.clone() if self.episodes == 1 else torch.cat([position, ended[:, None].to(self.dtype)], dim=1)

    def _distance(self, position: Tensor) -> Tensor:
        away = position - self.goal()
        return _sqrt((away * away).sum(1))


class Wind(PlaneEnv):
    """The task is a wind, at most 0.1 along each axis, that is added to every step; the goal (0, 1) pays 1 on every step within the radius.

    The point starts at (0, 0). Presets "release" and "paper" agree: 100 steps, k = 1, radius 0.01. Some winds (one in twenty) blow so hard
    south that the goal is out of reach. For the options see `PlaneEnv`.
    """

    def __init__(self, num_envs: int = 1, *, preset: str = "release", **options: Any):
        super().__init__(num_envs, _chosen(WIND, preset), **options)
        self.target = torch.tensor([0.0, 1.0], dtype=self.dtype, device=self.device)

    def move(self, step: Tensor) -> Tensor:
        return self.position + step + self.task

    def goal(self) -> Tensor:
        return self.target


class PointRobot(PlaneEnv):
    """The task is the goal, which pays 1 on every step within the radius.

    Preset "release": goals on the upper half of the unit circle, radius 0.05, k = 2. Preset "paper": goals in the square [-10, 10) x
    [-10, 10), radius 0.01, k = 1 (starts as in the release: the paper names none); hardly anything ever finds such a goal. Both: 100 steps,
    starts in [-1.5, 1.5) x [-0.5, 1.5).
    dense: minus the distance on every step instead, goals in the square, starts in [-1, 1) x [-1, 1), 60 steps, k = 1, and no success
    unless a radius is given. For the options see `PlaneEnv`.
    """

    def __init__(self, num_envs: int = 1, *, preset: str = "release", dense: bool = False, **options: Any):
        settings = _chosen(POINT_ROBOT, preset)
        if dense and preset != "release":
            raise ValueError(f"dense needs preset='release', got {preset!r}: only the published code has a dense variant")
        self.dense = dense
        super().__init__(num_envs, POINT_ROBOT_DENSE if dense else settings, **options)

    def move(self, step: Tensor) -> Tensor:
        return self.position + step

    def goal(self) -> Tensor:
        return self.task

    def pay(self, distance: Tensor) -> Tensor:
        return -distance if self.dense else super().pay(distance)


def _chosen(presets: Mapping[str, Mapping[str, Any]], preset: str) -> Mapping[str, Any]:
    if preset not in presets:
        raise ValueError(f"unknown preset {preset!r}; choose from {', '.join(presets)}")
    return presets[preset]


def _pick(points: Tensor, index: Tensor) -> Tensor:
    """points[i, index[i]] of [N, n, 2], for each i. [N, 2]"""
    return points.gather(1, index[:, None, None].expand(-1, 1, 2))[:, 0]


def _sqrt(x: Tensor) -> Tensor:
    """Rounded correctly everywhere: torch's own on a CPU may be off by one in the last bit."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()
