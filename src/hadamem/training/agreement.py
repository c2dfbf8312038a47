"""Whether an exported program does what its policy does: both play the same random observations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..envs.foreign.spaces import choices
from .step import Step

STEPS, ENVS = 100, 3       # of a comparison
RESETS = 0.05              # share of steps that open an episode
TOLERANCE = 1e-4           # largest difference after one step, see `difference`
HUGE = 1e30                # beyond it are log-probabilities of actions that a mask forbids

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], Arrays]      # inputs by name -> outputs by name


class ExportError(RuntimeError):
    """A policy that cannot be exported, or a program that does something else than its policy."""


@torch.no_grad()
def compare(step: Step, run: Run, steps: int = STEPS, n: int = ENVS, seed: int = 0) -> float:
    """The largest `difference` between what a program and the policy's own step return; an ExportError if it is large.

    Every step starts from the policy's state: else rounding would grow with the memories that multiply it up. Integers must be equal, and
    so must discrete actions; where rounding decides between two that are equally likely, the program's must follow from its own
    distribution.
    """
    floats, places = sum(step.layout.sizes), np.cumsum(step.layout.sizes)[:-1]      # of a state; the rest of it is integers
    state, worst = torch.zeros(n, step.layout.size, dtype=step.layout.dtype), 0.0
    for t, given in enumerate(random_inputs(step, steps, n, seed)):
        wanted = step({**{name: torch.from_numpy(x) for name, x in given.items()}, "state": state})
        got = run({**given, "state": state.numpy()})
        state = wanted["next_state"]
        want = {name: x.numpy() for name, x in wanted.items()}
        if choices(step.policy.action_space) and not np.array_equal(got["action"], want["action"]):
            chosen = _chosen(step, got, given)
            if chosen is None or not np.array_equal(got["action"], chosen):
                raise ExportError(f"the program chose {got['action'].tolist()} at step {t}, and the policy {want['action'].tolist()}")
            del want["action"], want["next_state"]      # which has the action in it
        pairs = [(name, got[name], x) for name, x in want.items() if name != "next_state"]
        if "next_state" in want:
            mine, theirs = want["next_state"], got["next_state"]
            if not np.array_equal(theirs[:, floats:], mine[:, floats:]):
                raise ExportError(f"the program's next_state has other integers than the policy's at step {t}")
            pairs += [("next_state", x, y) for x, y in zip(*(np.split(s[:, :floats], places, 1) for s in (theirs, mine)), strict=True)]
        for name, x, y in pairs:
            error = difference(x, y)
            worst = max(worst, error)
            if not error <= TOLERANCE:
                raise ExportError(f"the program's {name} differs from the policy's by {error:.2g} of the largest entry at step {t}")
    return worst


def difference(x: np.ndarray, y: np.ndarray) -> float:
    """The largest |x - y| in units of 1 + the largest |y| of its row; inf if one of them is nan or has another shape.

    The large entries of a row are what rounds the small ones. Those beyond HUGE, which stand for minus infinity, do not count among them.
    """
    if x.shape != y.shape:
        return np.inf
    size = np.abs(y.reshape(len(y), -1))
    scale = 1.0 + np.where(size < HUGE, size, 0.0).max(axis=1, keepdims=True, initial=0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(x == y, 0.0, np.abs(x - y)).reshape(size.shape) / np.maximum(scale, np.where(size < HUGE, 0.0, size))
    return float(np.nan_to_num(error, nan=np.inf, posinf=np.inf).max(initial=0.0))


def random_inputs(step: Step, steps: int, n: int, seed: int = 0) -> Iterator[Arrays]:
    """Inputs of a program, without the state: observations of the space, and a new episode now and then."""
    random = np.random.default_rng(seed)
    policy = step.policy
    space: Any = copy.deepcopy(policy.observation_space)
    space.seed(seed)
    for t in range(steps):
        seen = [_by_path(space.sample()) for _ in range(n)]
        reset = (random.random(n) < RESETS) | (t == 0)
        given: Arrays = {}
        for port in step.inputs:
            if port.name in step.paths:
                given[port.name] = np.stack([one[step.paths[port.name]] for one in seen]).astype(port.kind)
            elif port.name == "reset":
                given["reset"] = reset
            elif port.name == "mask":
                given["mask"] = _mask(random, n, choices(policy.action_space))
            elif port.name in ("reward", "noise"):
                given[port.name] = random.standard_normal((n, *port.shape)).astype(port.kind)
        places = [given[name] for name in step.masks if name in step.paths]      # an observation says what is allowed
        if places:
            flags = _mask(random, n, choices(policy.action_space))
            for place, part in zip(places, np.split(flags, np.cumsum([x[0].size for x in places])[:-1], 1), strict=True):
                place[:] = part.reshape(place.shape)
        yield given


def _chosen(step: Step, got: Arrays, given: Arrays) -> np.ndarray | None:
    """The actions that follow from a program's own distributions; None if it does not tell them."""
    actions = step.policy.agent.actions
    names = list(actions.named(torch.zeros(1, actions.width)))
    if not all(name in got for name in names):
        return None
    dist = torch.cat([torch.from_numpy(got[name]) for name in names], -1)
    action = actions.sample(dist, torch.from_numpy(given["noise"])) if "noise" in given else actions.mode(dist)
    return actions.to_env(action).to(step.policy.inputs.action_dtype).numpy()


def _mask(random: np.random.Generator, n: int, sizes: list[int]) -> np.ndarray:
    """Allowed actions [n, A], at least one in each part."""
    parts = []
    for size in sizes:
        part = random.random((n, size)) < 0.7
        part[np.arange(n), random.integers(size, size=n)] = True
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _by_path(tree: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """The leaves of an observation by their path."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple) else None
    if entries is None:
        return {path: tree}
    return {key: leaf for name, inner in entries for key, leaf in _by_path(inner, (*path, name)).items()}
