"""Properties of gradients: through splits, across resets, over long sequences."""

from __future__ import annotations

import torch

from ..trial import Broken, Trial


def split_gradients(trial: Trial) -> None:
    """Gradients through parts of a sequence equal those through the whole."""
    reset, cotangent = trial.resets(), torch.randn_like(trial.run(trial.x())[0])
    results = []
    for cuts in ([], [trial.T // 3, trial.T - 2]):
        x = trial.x().requires_grad_()
        state, leaves = trial.leaves(trial.state())
        y, _ = trial.pieces(x, state, reset, cuts)
        results.append(trial.gradients(y, [("x", x), *leaves, *trial.module.named_parameters()], cotangent))
    for name, want in results[0].items():
        what = f"gradient of {name} through three parts with the state carried, against the whole"
        trial.same(results[1][name], want, what)


def reset_gradients(trial: Trial) -> None:
    """No gradient flows from after a reset to before it."""
    t = trial.T // 2
    reset = torch.zeros(trial.B, trial.T, dtype=torch.bool, device=trial.device)
    reset[:, t] = True
    x = trial.x().requires_grad_()
    state, leaves = trial.leaves(trial.state())
    y, _ = trial.run(x, state, reset)
    for name, g in trial.gradients(y[:, t:], [("x", x), *leaves], torch.ones_like(y[:, t:])).items():
        before = g[:, :t] if name == "x" else g
        if bool((before != 0).any()):
            raise Broken(f"y from step {t} on has a gradient of up to {before.abs().max().item():.2g} in {name} "
                         f"before the reset at step {t}")


def long_gradients(trial: Trial) -> None:
    """Outputs and gradients of a long sequence are finite."""
    x = trial.x(B=2, T=trial.long_T).requires_grad_()
    state, leaves = trial.leaves(trial.state(B=2, used=False))
    y, _ = trial.run(x, state)
    if not bool(torch.isfinite(y).all()):
        raise Broken(f"y has {int((~torch.isfinite(y)).sum())} entries that are inf or nan")
    trial.finite(y, [("x", x), *leaves, *trial.module.named_parameters()], f"{trial.long_T} steps")
