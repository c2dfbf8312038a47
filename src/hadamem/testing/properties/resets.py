"""Properties of resets: each starts an episode from a fresh state, whatever was before."""

from __future__ import annotations

import torch

from ... import states
from ..trial import Trial, is_real


def no_reset(trial: Trial) -> None:
    """reset=None equals a reset that is False everywhere."""
    x, state = trial.x(), trial.state()
    want, want_state = trial.run(x, state, None)
    got, got_state = trial.run(x, state, torch.zeros(trial.B, trial.T, dtype=torch.bool, device=trial.device))
    trial.same(got, want, "y with an all-False reset")
    trial.same_state(got_state, want_state, "an all-False reset")


def packed(trial: Trial) -> None:
    """Episodes packed into one sequence give what each gives alone.

    Each one runs alone from a fresh state, so that a memory which ignores resets fails here too.
    """
    x, state, reset, fresh = trial.x(), trial.state(), trial.resets(), trial.state(used=False)
    got, got_state = trial.run(x, state, reset)
    for b in range(trial.B):
        row = slice(b, b + 1)
        alone, new = states.index(state, row), states.index(fresh, row)
        starts = sorted({0, *reset[b].nonzero()[:, 0].tolist()})
        for start, end in zip(starts, [*starts[1:], trial.T], strict=True):
            opens = torch.zeros(1, end - start, dtype=torch.bool, device=trial.device)
            opens[0, 0] = reset[b, start]
            if reset[b, start]:     # keep the counters: what a reset draws may depend on them
                alone = type(alone)(*(n if is_real(n) else old for n, old in zip(new, alone, strict=True)))
            y, alone = trial.run(x[row, start:end], alone, opens)
            what = f"y of row {b}, steps {start} to {end - 1}, against that episode alone"
            trial.same(got[row, start:end], y, what)
        trial.same_state(states.index(got_state, row), alone, f"row {b}, against its last episode alone")


def reset_forgets(trial: Trial) -> None:
    """After a reset, nothing depends on what was before it."""
    x, start, T = trial.x(), trial.state(used=False), trial.T
    opens = torch.zeros(trial.B, T, dtype=torch.bool, device=trial.device)
    opens[:, 0] = True
    pasts = [trial.run(trial.x(T=5, seed=s), start)[1] for s in (11, 12)]   # different pasts with the same counters
    (want, want_state), (got, got_state) = (trial.run(x, past, opens) for past in pasts)
    trial.same(got, want, "y after a reset at the first step, for two different states before it")
    trial.same_state(got_state, want_state, "after a reset at the first step")
    late = torch.roll(opens, 3, dims=1)
    inside = [trial.run(torch.cat((trial.x(T=3, seed=s), x[:, 3:]), dim=1), start, late)[0][:, 3:] for s in (11, 12)]
    trial.same(inside[1], inside[0], "y after a reset at step 3, for two different inputs before it")
    fresh, fresh_state = trial.run(x, start)
    got, got_state = trial.run(x, start, opens)
    counters = [(a, b) for a, b in zip(got_state, fresh_state, strict=True) if not is_real(a)]
    if all(torch.equal(a, b) for a, b in counters):   # otherwise the reset drew new random numbers, and y may differ
        trial.same(got, fresh, "y after a reset, against y from initial_state()")


def reset_recovers(trial: Trial) -> None:
    """A reset drops a state of inf or nan, also from the gradients."""
    x, start = trial.x(), trial.state()
    for at in (0, trial.T // 2):
        reset = torch.zeros(trial.B, trial.T, dtype=torch.bool, device=trial.device)
        reset[:, at] = True
        want, want_state = trial.run(x, start, reset)
        for bad in (float("inf"), float("nan")):
            broken = type(start)(*(torch.full_like(s, bad) if is_real(s) else s for s in start))
            leaf = x.clone().requires_grad_()
            got, got_state = trial.run(leaf, broken, reset)
            trial.same(got[:, at:], want[:, at:], f"y from a reset at step {at} on, after a state of {bad}")
            trial.same_state(got_state, want_state, f"after a state of {bad} and a reset at step {at}")
            if at == 0:
                what = f"a state of {bad} that a reset at step 0 has dropped"
                trial.finite(got, [("x", leaf), *trial.module.named_parameters()], what)


def poison(trial: Trial) -> None:
    """An input of inf or nan stays in its row, and only until the next reset."""
    x, state, T = trial.x(), trial.state(), trial.T
    reset = torch.zeros(trial.B, T, dtype=torch.bool, device=trial.device)
    reset[1, T // 2 + 1] = True
    with torch.no_grad():
        want, want_state = trial.run(x, state, reset)
        for bad in (float("nan"), float("inf")):
            poisoned = x.clone()
            poisoned[1, 3] = bad
            got, got_state = trial.run(poisoned, state, reset)
            others = [b for b in range(trial.B) if b != 1]
            trial.same(got[others], want[others], f"y of the other rows, with an input of {bad} in row 1")
            trial.same(got[1, :3], want[1, :3], f"y before an input of {bad}")
            after = slice(T // 2 + 1, None)
            trial.same(got[1, after], want[1, after], f"y after the reset that follows an input of {bad}")
            trial.same_state(got_state, want_state, f"after a reset that follows an input of {bad}")
