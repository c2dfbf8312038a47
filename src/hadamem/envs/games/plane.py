"""Meta-learning in the plane: what Wind and Point Robot share.

A point must reach a goal. A hidden task (the wind, or the goal) stays the same for a whole trajectory of k inner episodes. There are
training tasks and held-out ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from ... import random
from ..base import BatchedEnv, assign
from ..checks import positive
from ..render.blocks import BLUE, Block, Caption, Plane, Spot, Stroke, numbers
from .task_sets import TaskSet

STEP = 0.1                      # longest move along each axis
AXIS, GOAL = (226, 226, 222), (52, 140, 84)      # colours

class PlaneEnv(BatchedEnv):
    """A point that is moved by `STEP * action`; subclasses define what a task does.

    preset: "release" (the code published with the SHM paper) or "paper" (its text); `radius`, `horizon` and `episodes` override it.
    tasks: "train", "eval" (held out), "all", or the tasks themselves [n, 2]. num_train, num_eval: how many there are.
    task_seed: None draws the tasks from the seed of the run: give the training and the evaluation env the same seed, or their tasks may
    overlap. A number: draw them from that seed instead. "release": the fixed tasks of the published code.
    cycle: env i takes task (i + e * num_envs) mod n in its episode e after seeding, so that all tasks are used equally often; otherwise one
    is drawn for each trajectory.
    horizon: steps of an inner episode. episodes: k, inner episodes per trajectory. radius: distance up to which the goal counts as reached.
    dtype: of positions, observations and rewards; float64 reproduces the published code bit for bit.

    Actions are clipped to [-1, 1] and scaled in float32. The published code does the same, but its action space is ±0.1, so that its random
    actions move a tenth as far. Observation: the position [2], and with k > 1 whether an inner episode ended with this step. The point then
    moves to a new start, while the observation still shows where the inner episode ended.

    `info` of a step also holds `done_mdp` [N] bool (an inner episode ended), `start_state` (the observation at the new start where another
    inner episode begins, nan elsewhere) and `goal` [N] bool (the position from which the next step moves is at the goal; after an inner
    episode that is the new start). Success: `goal` was true at least once in the trajectory.
    Trajectories end by truncation only; reaching the goal does not end them. For learners that bootstrap it is the end all the same, as in
    the published code: `terminal` [N] bool is equal to `goal`.
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

        self.tasks = self.zeros("tasks", len(self.task_set), 2, dtype=dtype)     # the same for all envs, unless each has its own seed
        self.episode = self.zeros("episode")                               # episodes since seeding
        self.task_index = self.zeros("task_index")                         # index into tasks; -1: the task came from a layout
        self.task = self.zeros("task", 2, dtype=dtype)
        self.starts = self.zeros("starts", self.episodes, 2, dtype=dtype)  # start of each inner episode
        self.position = self.zeros("position", 2, dtype=dtype)             # the next step moves from here
        self.seen = self.zeros("seen", 2, dtype=dtype)                     # the position in the observation
        self.done_mdp = self.zeros("done_mdp", dtype=torch.bool)
        self.at_goal = self.zeros("at_goal", dtype=torch.bool)
        self.reached = self.zeros("reached", dtype=torch.bool)             # the goal was reached in this trajectory

    def move(self, step: Tensor) -> Tensor:
        """The position [N, 2] after a step [N, 2] from `position`."""
        raise NotImplementedError

    def goal(self) -> Tensor:
        """The goal, [N, 2] or [2]."""
        raise NotImplementedError

    def pay(self, distance: Tensor) -> Tensor:
        """The reward [N] for a distance [N] to the goal after the move."""
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
        return {"done_mdp": self.done_mdp.clone(), "goal": self.at_goal.clone(), "terminal": self.at_goal.clone(),
                "start_state": start.masked_fill(~begins[:, None], torch.nan)}

    def inject(self, layout: dict[str, Any]) -> None:
        """`task` [N, 2], `position` [N, 2] (the first start), `starts` [N, k - 1, 2] (the others); each is optional."""
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

    def scene(self, i: int, hidden: bool) -> list[Block]:
        x, y = self.seen[i].tolist()
        blocks: list[Block] = [Caption(f"step {int(self.elapsed[i])} of {self.episode_steps}"), numbers(("x", "y"), (x, y))]
        if self.episodes > 1:
            ended = bool(self.done_mdp[i])
            blocks.append(Caption(f"try {min(int(self.elapsed[i]) // self.horizon + (not ended), self.episodes)} of {self.episodes}"
                                  + (" has just ended" if ended else "")))
        goal = self.goal().expand(self.num_envs, 2)[i].tolist()
        reach = max(1.6, abs(x) + 0.2, abs(y) + 0.2, *(abs(g) + 0.2 for g in goal if hidden))
        unit = reach / 1.6
        shapes: list[Stroke | Spot] = [Stroke(-reach, 0, reach, 0, AXIS, mark="-"), Stroke(0, -reach, 0, reach, AXIS, mark="|")]
        if hidden:
            shapes.append(Spot(goal[0], goal[1], max(self.radius or 0.0, 0.04 * unit), GOAL, "G"))
            more_blocks, more_shapes = self.hidden_parts(i, unit)
            blocks += more_blocks
            shapes += more_shapes
            if self.radius is not None:
                blocks.append(Caption(f"the goal is {'reached' if bool(self.at_goal[i]) else 'not reached'}"))
        shapes.append(Spot(x, y, 0.05 * unit, BLUE, "@"))
        return [*blocks, Plane(shapes, (-reach, -reach), (reach, reach), 280)]

    def hidden_parts(self, i: int, unit: float) -> tuple[list[Block], list[Stroke | Spot]]:
        """What else of the task a scene shows, besides the goal. unit: scale of the picture, 1 if it shows ±1.6."""
        return [], []

    def _shown(self, position: Tensor, ended: Tensor) -> Tensor:
        return position.clone() if self.episodes == 1 else torch.cat([position, ended[:, None].to(self.dtype)], dim=1)

    def _distance(self, position: Tensor) -> Tensor:
        away = position - self.goal()
        return _sqrt((away * away).sum(1))


def choose_preset(presets: Mapping[str, Mapping[str, Any]], preset: str) -> Mapping[str, Any]:
    if preset not in presets:
        raise ValueError(f"unknown preset {preset!r}; choose from {', '.join(presets)}")
    return presets[preset]


def _pick(points: Tensor, index: Tensor) -> Tensor:
    """points[i, index[i]] for each i: [N, n, 2], [N] -> [N, 2]."""
    return points.gather(1, index[:, None, None].expand(-1, 1, 2))[:, 0]


def _sqrt(x: Tensor) -> Tensor:
    """Correctly rounded on every device: torch's CPU version may be off by one in the last bit."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()
