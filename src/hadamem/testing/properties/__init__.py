"""The properties that `hadamem.Memory` promises, one function each, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ..trial import Trial
from . import calls, gradients, modules, resets, sequences

SELECT = "where reset[:, t] is set, use torch.where to replace the old state by the fresh one before x[:, t] is read"
LIKE_X = "make every new tensor on the device and in the dtype of x, and every state with self.state_options(device, dtype)"
REGISTER = "register everything that y depends on as a parameter, buffer or submodule"


class Property(NamedTuple):
    """A check that raises `Broken`, and what to do if it fails ("" where its message says so)."""

    check: Callable[[Trial], None]
    fix: str


def find_properties(trial: Trial) -> dict[str, Property]:
    """The properties to check, by name.

    They are ordered so that the first failure is closest to the cause: a leak from the future or from another row, or
    an unused state, also breaks the comparisons of splits and resets.
    """
    found = {
        "interface": Property(calls.interface, ""),
        "initial state": Property(calls.initial_state, ""),
        "state=None is a fresh state": Property(calls.fresh_by_default, "with state=None start from self.initial_state(x.shape[0])"),
        "arguments are not changed": Property(calls.arguments_unchanged, "compute new tensors instead of writing into the arguments"),
        "same call, same result": Property(
            calls.repeatable, "compute y from x, state, reset and parameters only; return the state, do not store it"),
        "causality": Property(sequences.causality, "let y[:, t] depend on x and reset up to step t only"),
        "batch rows are independent": Property(
            sequences.batch_rows, "compute every row by itself; no sum, mean or norm over the batch axis"),
        **({"it remembers": Property(
            sequences.remembers, "let y depend on the state, and the state on every x, without detach(), .data or no_grad() between")}
           if trial.expect_memory else
           {"it does not remember": Property(sequences.remembers, "let y[:, t] depend on x[:, t] only, or pass expect_memory=True")}),
        "whole sequence == any split == step by step": Property(
            sequences.splits, "return the state after the last step, with everything in it that later steps need"),
        "step == forward of one step": Property(
            sequences.step, "inherit step() from hadamem.Memory, or return from it what forward() returns for x[:, None]"),
        "reset=None == no reset": Property(resets.no_reset, "treat reset=None as a reset that is False everywhere"),
        "packed episodes == each alone": Property(resets.packed, SELECT),
        "a reset forgets the past": Property(resets.reset_forgets, SELECT),
        "a reset recovers from inf and nan in the state": Property(
            resets.reset_recovers, "drop the old state with torch.where, not with a product: 0 * inf is nan"),
        "non-finite inputs stay in their row and end at a reset": Property(
            resets.poison, "drop the old state with torch.where at a reset, and keep the rows of the batch apart"),
        "gradients of a split == of the whole": Property(
            gradients.split_gradients, "return the state without detaching it; the caller does that"),
        "no gradient crosses a reset": Property(
            gradients.reset_gradients, "drop the old state with torch.where, and carry no part of it across"),
        f"gradients are finite over {trial.long_T} steps": Property(
            gradients.long_gradients, "keep the factor on the state at or below 1 on average, or clip the state"),
        "state_dict round trip": Property(modules.state_dict, REGISTER),
        "deepcopy": Property(modules.deepcopy, REGISTER),
        "state to vector and back": Property(modules.vector, "use float32 or complex64 (and counters) in the state, batch first"),
        "works in float64": Property(modules.float64, LIKE_X),
    }
    if torch.cuda.is_available() and trial.device.type != "cuda":
        found["works on cuda"] = Property(modules.cuda, LIKE_X)
    return found
