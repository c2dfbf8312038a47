"""The table behind `hadamem list envs`."""

from __future__ import annotations

from typing import NamedTuple

from .registry import TASKS, make
from .spaces import describe


class Row(NamedTuple):
    """A task: its spaces and its longest episode, as text."""

    name: str
    observation: str
    action: str
    steps: str
    text: str


HEAD = Row("name", "observation", "action", "steps", "task")


def rows() -> list[Row]:
    """One row for each task, read from the task itself."""
    out = []
    for name, task in TASKS.items():
        env = make(name)
        steps = "no limit" if env.episode_steps is None else str(env.episode_steps)
        out.append(Row(name, describe(env.single_observation_space), describe(env.single_action_space), steps, task.text))
    return out
