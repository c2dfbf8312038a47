"""What there is, in words: the table behind `hadamem list envs`."""

from __future__ import annotations

from typing import Any, NamedTuple

from gymnasium import Space, spaces

from .registry import TASKS, make


class Row(NamedTuple):
    """A task: its spaces and the longest episode, in words."""

    name: str
    observation: str
    action: str
    steps: str
    text: str


HEAD = Row("name", "observation", "action", "steps", "task")


def rows() -> list[Row]:
    """One for each task, from the tasks themselves."""
    out = []
    for name, task in TASKS.items():
        env = make(name)
        steps = "no limit" if env.episode_steps is None else str(env.episode_steps)
        out.append(Row(name, described(env.single_observation_space), described(env.single_action_space), steps, task.text))
    return out


def described(space: Space[Any]) -> str:
    """A space in a few words: "Discrete 4", "MultiDiscrete 52 of 3", "Box 2", "Box 3 x 5 x 5 uint8"."""
    if isinstance(space, spaces.Tuple):
        return ", ".join(described(inner) for inner in space.spaces)
    if isinstance(space, spaces.Dict):
        return ", ".join(f"{name}: {described(inner)}" for name, inner in space.spaces.items())
    if isinstance(space, spaces.Discrete):
        return f"Discrete {space.n}"
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1).tolist()
        same = len(set(sizes)) == 1 and len(sizes) > 3
        return f"MultiDiscrete {len(sizes)} of {sizes[0]}" if same else f"MultiDiscrete {', '.join(map(str, sizes))}"
    shape = " x ".join(map(str, space.shape or ()))
    kind = "" if str(space.dtype) in ("float32", "int8") else f" {space.dtype}"
    return f"{type(space).__name__} {shape}{kind}"
