"""Tasks by name: `make`, `list_envs`, `register_env`. The table has one line per task; each is registered with Gymnasium as well."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium

from .. import lookup
from ..names import close_names, shorten
from .base import BatchedEnv


class Task(NamedTuple):
    """How to build a task: its class, or "module:Class" (a module that starts with a dot is relative to this package); options; a text."""

    target: str | type[BatchedEnv]
    options: Mapping[str, Any]
    text: str

    def find(self) -> type[BatchedEnv]:
        if not isinstance(self.target, str):
            return self.target
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(module, __package__), name)

    def build(self, num_envs: int, **options: Any) -> BatchedEnv:
        return self.find()(num_envs, **{**self.options, **options})


TASKS: dict[str, Task] = {}


def register_env(name: str, target: str | type[BatchedEnv], options: Mapping[str, Any] | None = None, text: str = "") -> None:
    """Make a task known to `make`, `list_envs`, `play` and training under `name`, and to Gymnasium as `gymnasium_id(name)`.

    target: a subclass of `BatchedEnv`, or "package.module:Class", which is imported when first needed. options: defaults for its
    constructor. text: one line for `hadamem list envs`.
    """
    if name in TASKS:
        raise ValueError(f"name {name!r} is registered already; choose another one")
    if not isinstance(target, str) and not (isinstance(target, type) and issubclass(target, BatchedEnv)):
        raise TypeError(f"target must be a BatchedEnv class or 'package.module:Class', got {target!r}; "
                        "a Gymnasium env needs no registration here: pass it to hm.envs.adapt or hm.train")
    _register_with_gymnasium(name)
    TASKS[name] = Task(target, dict(options or {}), text)


def gymnasium_id(task: str) -> str:
    """The id under which Gymnasium knows a task: "popgym/AutoencodeEasy" -> "hadamem/AutoencodeEasy-v0"."""
    return f"hadamem/{task.rpartition('/')[2]}-v0"


def _register_with_gymnasium(task: str) -> None:
    """For `gymnasium.make` and `make_vec`. An id that this task has already stays, e.g. when a module is loaded again."""
    name = gymnasium_id(task)
    known = gymnasium.registry.get(name)
    if known is None:
        module = f"{__package__}.gymnasium"
        try:
            gymnasium.register(name, entry_point=f"{module}:TaskEnv", vector_entry_point=f"{module}:TaskVectorEnv", kwargs={"task": task})
        except gymnasium.error.Error as error:
            raise ValueError(f"name {task!r} makes no Gymnasium id ({name!r}); use letters, digits, '_', '-', '.' and ':'") from error
    elif known.kwargs.get("task") != task:
        raise ValueError(f"name {task!r} has the same Gymnasium id as {known.kwargs.get('task')!r} ({name!r}); choose another name")


def _levels(name: str, target: str, text: str, table: str = "LEVELS") -> None:
    """Register POPGym's three levels of one task, from a table in its module."""
    for level, options in getattr(importlib.import_module(target.partition(":")[0], __package__), table).items():
        register_env(f"popgym/{name}{level}", target, options, text)


_levels("Autoencode", ".games.autoencode:Autoencode", "watch a deck of cards, then name their suits in reverse order")
_levels("Battleship", ".games.battleship:Battleship", "sink all ships, seeing only whether the last shot hit")
_levels("Concentration", ".games.concentration:Concentration", "cards lie face down: turn two at a time and find all pairs")
_levels("CountRecall", ".games.count_recall:CountRecall", "say how many cards of the class asked for have been shown")
_levels("HigherLower", ".games.higher_lower:HigherLower", "guess whether the next card is higher or lower")
_levels("MineSweeper", ".games.minesweeper:MineSweeper", "uncover all cells without mines, seeing only the last number")
_levels("MultiarmedBandit", ".games.multiarmed_bandit:MultiarmedBandit", "find the arm that pays most often and keep pulling it")
_levels("RepeatFirst", ".games.repeat_first:RepeatFirst", "say the suit of the first card at every step")
_levels("RepeatPrevious", ".games.repeat_previous:RepeatPrevious", "say the suit of the card shown k - 1 cards ago")
_levels("PositionOnlyCartPole", ".games.cartpole:CartPole", "balance a pole, seeing positions but no speeds", "POSITION_LEVELS")
_levels("VelocityOnlyCartpole", ".games.cartpole:CartPole", "balance a pole, seeing speeds but no positions", "VELOCITY_LEVELS")
_levels("NoisyPositionOnlyCartPole", ".games.cartpole:CartPole", "balance a pole, seeing positions with noise", "NOISY_LEVELS")
_levels("PositionOnlyPendulum", ".games.pendulum:Pendulum", "swing a pendulum up, seeing its angle but no speed", "POSITION_LEVELS")
_levels("NoisyPositionOnlyPendulum", ".games.pendulum:Pendulum", "swing a pendulum up, seeing its angle with noise", "NOISY_LEVELS")

register_env("Wind", ".games.wind:Wind", {}, "reach a goal although a hidden wind blows")
register_env("PointRobot", ".games.point_robot:PointRobot", {}, "find a hidden goal in the plane, then go there again")
register_env("PointRobotDense", ".games.point_robot:PointRobot", dict(dense=True), "go to a hidden goal; a step costs the distance to it")
register_env("VisualMatch", ".games.visual_match:VisualMatch", {}, "see a colour, pick apples, then walk to the object of that colour")
register_env("KeyToDoor", ".games.key_to_door:KeyToDoor", {}, "take a key, pick apples, then open the door")
register_env("TMaze", ".games.tmaze:TMaze", {}, "a cue at the start of a corridor shows which way to turn at its end")
register_env("TMazeActive", ".games.tmaze:TMaze", dict(active=True), "like TMaze, but the cue is one step behind the start")


def list_envs() -> list[str]:
    """The names of all registered tasks."""
    return list(TASKS)


def make(name: str, num_envs: int = 1, **options: Any) -> BatchedEnv:
    """Make a batched task by name, e.g. make("popgym/AutoencodeEasy", num_envs=64, device="cuda", seed=0).

    Options go to the task and to `BatchedEnv`. Gymnasium ids such as "CartPole-v1", and your own Gymnasium env as "package.module:Class",
    are adapted (see `adapt`).
    """
    if name not in TASKS:
        return _make_foreign(name, num_envs, options)
    known = _options(TASKS[name])
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"{name} has no option {', '.join(map(repr, unknown))}; it takes {', '.join(known)}")
    return TASKS[name].build(num_envs, **options)


def _options(task: Task) -> list[str]:
    """Names of a task's options: its own first, then those of its base classes."""
    found: list[str] = []
    for cls in task.find().__mro__:
        for parameter in inspect.signature(cls.__init__).parameters.values():      # type: ignore[misc]
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in found:
                found.append(parameter.name)
    return found


def _make_foreign(name: str, num_envs: int, options: dict[str, Any]) -> BatchedEnv:
    """Make an env by its Gymnasium id or as "module:Class". A task of ours under its Gymnasium id is made directly."""
    from . import foreign

    own, missing = (None, "") if name in gymnasium.registry else _find_class(name)
    if own is not None:
        lookup.require(name, own, (BatchedEnv, gymnasium.Env), "gymnasium.Env or hm.envs.BatchedEnv")
        if isinstance(own, type) and issubclass(own, BatchedEnv):
            lookup.check_options(name, own, options)
            return own(num_envs, **options)
        return foreign.adapt(own, num_envs, **options)
    try:
        spec = foreign.find_spec(name)
    except lookup.UntrustedName:
        raise
    except (ValueError, ImportError, TypeError) as error:      # TypeError: raised by the user's module
        near = close_names(name, TASKS, n=3)
        hint = (f"it was not found as 'module:Class': {missing}" if missing else f"did you mean {' or '.join(near)}?" if near else
                f"hm.envs.list_envs() lists the tasks here, your own env class is 'module:Class' (also as --env module:Class), and {error}")
        raise ValueError(f"unknown env {shorten(name)}; {hint[:1000]}") from error
    ours = spec.kwargs.get("task") if spec.namespace == "hadamem" else None
    return foreign.adapt(name, num_envs, **options) if ours is None else make(ours, num_envs, **options)


def _find_class(name: str) -> tuple[Any, str]:
    """The callable that "package.module:Class" names, and "". If there is none: None, and the reason if `name` has that form."""
    module, _, path = name.partition(":")
    try:
        found = lookup.load(name)
    except lookup.UntrustedName:
        raise
    except ValueError as error:
        return None, str(error) if all(part.isidentifier() for part in path.split(".")) else ""
    except (Exception, SystemExit) as error:
        why = f"{error.msg} in {error.filename}, line {error.lineno}" if isinstance(error, SyntaxError) else repr(error)
        raise ValueError(f"cannot import module {module!r} of env {name!r}: {why}") from error
    return (found, "") if callable(found) else (None, f"{path!r} of module {module!r} is a {type(found).__name__}")
