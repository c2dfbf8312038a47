"""Properties over time and batch: causality, independent rows, remembering, splits, single steps."""

from __future__ import annotations

import torch

from ... import states
from ..trial import Broken, Trial


def causality(trial: Trial) -> None:
    """y at step t does not depend on later inputs or resets."""
    x, state, reset = trial.x(), trial.state(), trial.resets()
    for t in (1, trial.T // 2, trial.T - 1):
        other, late = x.clone(), reset.clone()
        other[:, t:] = trial.x(seed=3)[:, t:]
        late[:, t:] = ~late[:, t:]
        want = trial.run(x, state, reset)[0][:, :t]
        trial.same(trial.run(other, state, reset)[0][:, :t], want, f"y before step {t}, with other x from {t} on")
        trial.same(trial.run(x, state, late)[0][:, :t], want, f"y before step {t}, with other resets from {t} on")


def batch_rows(trial: Trial) -> None:
    """A row of a batch gives what it gives alone, in any order of rows."""
    x, state, reset = trial.x(), trial.state(), trial.resets()
    want, want_state = trial.run(x, state, reset)
    for b in range(trial.B):
        row = slice(b, b + 1)
        got, got_state = trial.run(x[row], states.index(state, row), reset[row])
        trial.same(got, want[row], f"y of row {b} run alone")
        trial.same_state(got_state, states.index(want_state, row), f"row {b} run alone")
    order = torch.arange(trial.B - 1, -1, -1, device=trial.device)
    got, got_state = trial.run(x[order], states.index(state, order), reset[order])
    trial.same(got, want[order], "y with the batch in reverse order")
    trial.same_state(got_state, states.index(want_state, order), "the batch in reverse order")


def remembers(trial: Trial) -> None:
    """y depends on earlier inputs and on the given state; the opposite for a module without memory."""
    x, state = trial.x(), trial.state(used=False)
    other = x.clone()
    other[:, 0] = trial.x(seed=3)[:, 0]
    with torch.no_grad():
        (a, _), (b, _) = trial.run(x, state), trial.run(other, state)
        pasts = [trial.run(trial.x(T=5, seed=s), state)[1] for s in (101, 12)]
        carried = [trial.run(x, past)[0] for past in pasts]
    if not trial.expect_memory:
        trial.same(b[:, 1:], a[:, 1:], "y after the first step, for two different first inputs")
        trial.same(carried[1], carried[0], "y for two different initial states")
        return
    near = (a[:, 1:] - b[:, 1:]).abs().amax()
    if not float(near) > 1e-7 * float(a.abs().max()):
        raise Broken("two sequences that differ in their first input give the same y afterwards "
                     f"(largest difference {float(near):.2g})")
    if all(torch.equal(a, b) for a, b in zip(*pasts, strict=True)):
        raise Broken("forward() returns the same state after two different sequences")
    if torch.equal(carried[0], carried[1]):
        raise Broken("y does not depend on the given state")
    _gradients_reach_the_past(trial)


def _gradients_reach_the_past(trial: Trial) -> None:
    """Earlier inputs and the given state get a gradient; otherwise the checks of gradients compare 0 with 0."""
    x, t, used = trial.x().requires_grad_(), trial.T // 2, trial.state()   # a fresh state may have no gradient
    y, _ = trial.run(x, used)
    cotangent = torch.randn_like(y)      # not ones: the sum of a normalised y is constant
    if not bool(trial.gradients(y[:, t:], [("x", x)], cotangent[:, t:])["x"][:, :t].any()):
        raise Broken(f"y from step {t} on depends on x before it, but has no gradient there; the memory cannot learn what to store")
    state, leaves = trial.leaves(used)
    y, _ = trial.run(x, state)            # all of y: a memory of few steps uses the state at the first ones only
    if leaves and not any(bool(g.any()) for g in trial.gradients(y, leaves, cotangent).values()):
        raise Broken("y depends on the given state, but has no gradient there")


def splits(trial: Trial) -> None:
    """A sequence in one call, in parts, or step by step gives the same y and state."""
    x, state, T = trial.x(), trial.state(), trial.T
    for what, reset in (("without resets", None), ("with resets", trial.resets())):
        want, want_state = trial.run(x, state, reset)
        ways = {"two parts": [T // 2], "three parts": [1, T - 3], "single steps": list(range(1, T))}
        for name, cuts in ways.items():
            got, got_state = trial.pieces(x, state, reset, cuts)
            trial.same(got, want, f"y in {name} {what}")
            trial.same_state(got_state, want_state, f"{name} {what}")
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    trial.same(trial.run(strided, state)[0], trial.run(x, state)[0], "y for a non-contiguous x")


def step(trial: Trial) -> None:
    """step() equals forward() on one step, with and without gradients."""
    x, state = trial.x(T=1), trial.state()
    for reset in (None, torch.arange(trial.B, device=trial.device) % 2 == 0):
        want, want_state = trial.run(x, state, None if reset is None else reset[:, None])
        got, got_state = trial.module.step(x[:, 0], state, reset)
        trial.same(got, want[:, 0], "y of step()")
        trial.same_state(got_state, want_state, "step()")
        with torch.no_grad():     # the path of acting, which may use another kernel
            got, got_state = trial.module.step(x[:, 0], state, reset)
        trial.same(got, want[:, 0], "y of step() without gradient")
        trial.same_state(got_state, want_state, "step() without gradient")
