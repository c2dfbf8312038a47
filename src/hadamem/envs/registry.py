"""Tasks by name: `make`, `list_envs`. A task is a line in its family's table."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import lookup
from .base import BatchedEnv


class Task(NamedTuple):
    """How to build a task: `module:Class` of this package, its options, and a line of text."""

    target: str
    options: Mapping[str, Any]
    text: str

    def find(self) -> type[BatchedEnv]:
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(f".{module}", __package__), name)

    def build(self, num_envs: int, **options: Any) -> BatchedEnv:
        return self.find()(num_envs, **{**self.options, **options})


TASKS: dict[str, Task] = {}


def _levels(name: str, target: str, text: str, table: str = "LEVELS") -> None:
    """POPGym's three levels of one family, from a table of its module."""
    levels = getattr(importlib.import_module(f".{target.partition(':')[0]}", __package__), table)
    for level, options in levels.items():
        TASKS[f"popgym/{name}{level}"] = Task(target, options, text)


_levels("Autoencode", "autoencode:Autoencode", "watch a deck of cards, then recite their suits in reverse")
_levels("Battleship", "battleship:Battleship", "sink all ships by shots, told of each only whether it hit")
_levels("Concentration", "concentration:Concentration", "cards lie face down: turn two at a time and find all pairs")
_levels("CountRecall", "count_recall:CountRecall", "say how many cards of the class asked for have been shown")
_levels("HigherLower", "higher_lower:HigherLower", "guess whether the next card is higher or lower")
_levels("MineSweeper", "minesweeper:MineSweeper", "uncover all cells but the mines, shown only the last one")
_levels("MultiarmedBandit", "multiarmed_bandit:MultiarmedBandit", "find the arm that pays best and stay with it")
_levels("RepeatFirst", "repeat_first:RepeatFirst", "say the suit of the first card, over and over")
_levels("RepeatPrevious", "repeat_previous:RepeatPrevious", "say the suit of the card shown k - 1 cards ago")
_levels("PositionOnlyCartPole", "cartpole:CartPole", "balance a pole, seeing positions but no speeds", "POSITION_LEVELS")
_levels("VelocityOnlyCartpole", "cartpole:CartPole", "balance a pole, seeing speeds but no positions", "VELOCITY_LEVELS")
_levels("NoisyPositionOnlyCartPole", "cartpole:CartPole", "balance a pole, seeing positions through noise", "NOISY_LEVELS")
_levels("PositionOnlyPendulum", "pendulum:Pendulum", "swing a pendulum up, seeing its angle but no speed", "POSITION_LEVELS")
_levels("NoisyPositionOnlyPendulum", "pendulum:Pendulum", "swing a pendulum up, seeing its angle through noise", "NOISY_LEVELS")

TASKS["Wind"] = Task("meta:Wind", {}, "reach a goal although a hidden wind blows")
TASKS["PointRobot"] = Task("meta:PointRobot", {}, "find a hidden goal in the plane, then go there again")
TASKS["PointRobotDense"] = Task("meta:PointRobot", dict(dense=True), "go to a hidden goal that pays by distance")
TASKS["VisualMatch"] = Task("visual_match:VisualMatch", {}, "see a colour, pick apples for long, then walk to the object of that colour")
TASKS["KeyToDoor"] = Task("key_to_door:KeyToDoor", {}, "fetch a key, pick apples for long, then open the door")
TASKS["TMaze"] = Task("tmaze:TMaze", {}, "a cue at the start of a corridor says which way to turn at its end")
TASKS["TMazeActive"] = Task("tmaze:TMaze", dict(active=True), "the same, but the cue lies behind the start")


def list_envs() -> list[str]:
    """The names that `make` knows."""
    return list(TASKS)


def make(name: str, num_envs: int = 1, **options: Any) -> BatchedEnv:
    """A batched task by name, e.g. make("popgym/AutoencodeEasy", num_envs=64, device="cuda", seed=0).

    Options go to the task and to `BatchedEnv`. Other names that Gymnasium knows, e.g. "CartPole-v1", are adapted (see `adapt`), and so is
    a Gymnasium env of your own: "package.module:Class".
    """
    if name not in TASKS:
        return _make_foreign(name, num_envs, options)
    try:
        return TASKS[name].build(num_envs, **options)
    except TypeError as error:
        if "unexpected keyword" in str(error):
            unknown = sorted(set(options) - set(_options(TASKS[name])))
            raise TypeError(f"{name} has no option {', '.join(map(repr, unknown))}; it takes {', '.join(_options(TASKS[name]))}") from error
        raise


def _options(task: Task) -> list[str]:
    """Names of a task's options: its own first."""
    found: list[str] = []
    for cls in task.find().__mro__:
        for parameter in inspect.signature(cls.__init__).parameters.values():      # type: ignore[misc]
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in found:
                found.append(parameter.name)
    return found


def _make_foreign(name: str, num_envs: int, options: dict[str, Any]) -> BatchedEnv:
    """An env that Gymnasium knows; a task of ours under its Gymnasium id is made directly."""
    from . import foreign

    own, missing = _find_class(name)
    if own is not None:
        return foreign.adapt(own, num_envs, **options)
    try:
        spec = foreign.find_spec(name)
    except (ValueError, ImportError, TypeError) as error:      # the last: of the user's module
        near = difflib.get_close_matches(name, TASKS, n=3)
        hint = (f"as 'module:Class' it is not there: {missing}" if missing else f"did you mean {' or '.join(near)}?" if near else
                "hm.envs.list_envs() names ours, an env class of your own is 'module:Class' (for a run of a script's class, too: "
                f"--env module:Class), and {error}")
        raise ValueError(f"unknown env {name!r}; {hint}") from error
    ours = spec.kwargs.get("task") if spec.namespace == "hadamem" else None
    return foreign.adapt(name, num_envs, **options) if ours is None else make(ours, num_envs, **options)


def _find_class(name: str) -> tuple[Any, str]:
    """What makes the env "package.module:Class". Else None, and what is missing, if that is such a name and no id of Gymnasium's."""
    module, _, path = name.partition(":")
    try:
        found = lookup.find(name)
    except ValueError as error:
        return None, str(error) if all(part.isidentifier() for part in path.split(".")) else ""
    except (Exception, SystemExit) as error:
        why = f"{error.msg} in {error.filename}, line {error.lineno}" if isinstance(error, SyntaxError) else repr(error)
        raise ValueError(f"cannot import module {module!r} of env {name!r}: {why}") from error
    return (found, "") if callable(found) else (None, f"{path!r} of module {module!r} is a {type(found).__name__}")
