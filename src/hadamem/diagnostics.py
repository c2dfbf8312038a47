"""Stability of a Hadamard memory: the paper's critical gradients over time, for any SHM and any input.

Gradients through M_t = M_{t-1} ⊙ C_t + U_t carry two factors. G1 is the product of the calibrations since a step,
prod_j C_j: how much of what was written, and of its gradient, is left. G2 is the derivative of that product with
respect to theta, sum_j dC_j ⊙ (product of the other C): how strongly the product depends on what is learned.

Proposition 4 says E[prod C] = 1 for SHM. That is the mean, and the distribution is heavy-tailed: the typical product
decays like exp(t E[log C]) while a few huge ones keep the mean at 1. So every curve has a mean, a median and a mean
logarithm, and the paper's mean over entries below 1.

Nothing of size [B, T, V, K] is formed: steps are processed in chunks, products in float64. The logarithm of a product
is kept as well, so curves stay right where the product leaves float64's range; nothing is divided by C.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kernels.shm.forms import calibrate, logits, slope
from .memory import _inside
from .memory.calibration import Factors
from .memory.shm import SHM, SHMState

FLOAT32_TINY, FLOAT32_MAX = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Curves:
    """Statistics after 1, 2, ..., T steps, each a float64 tensor [T] on the CPU, over all batch rows and entries.

    A reset restarts the products of its row. G2 and the state are None where there are none.
    """

    mean: Tensor           # of prod C: the paper's E[prod C]
    error: Tensor          # standard error of that mean, over batch rows
    median: Tensor         # of |prod C|: what a typical entry keeps
    mean_log: Tensor       # of log |prod C|, zeros of C left out
    mean_log_C: Tensor     # of log |C_t| at this step alone, zeros left out: the typical rate of decay
    mean_below_one: Tensor  # of |prod C| over entries below 1, as the paper plots it; nan where there are none
    underflow: Tensor      # share of entries with |prod C| below float32's smallest normal number
    overflow: Tensor       # share above float32's largest
    G2_mean: Tensor | None      # of |d prod C / d theta|, theta as one vector shared by all steps
    G2_median: Tensor | None
    G2_max: Tensor | None
    largest_state: Tensor | None   # largest |M_t| of any entry

    @property
    def typical(self) -> Tensor:
        """exp(sum of the mean log C): the decay of a typical entry, had each step's C been drawn independently."""
        return self.mean_log_C.cumsum(0).exp()

    def __len__(self) -> int:
        return len(self.mean)


@torch.no_grad()
def cumulative_products(
    C: Tensor | Iterable[Tensor], dC: Tensor | Iterable[Tensor] | None = None, reset: Tensor | None = None
) -> Curves:
    """Curves of prod C for raw calibrations: C [B, T, ...], or its steps C_t [B, ...] one after the other.

    `dC`, of the same form, is dC_t / dtheta entry by entry, and adds G2. reset [B, T] restarts the products of a row.
    """
    steps = C.unbind(1) if isinstance(C, Tensor) else C
    slopes = dC.unbind(1) if isinstance(dC, Tensor) else dC
    pairs = ((c, None) for c in steps) if slopes is None else zip(steps, slopes, strict=True)
    return _collect((c, d, None) for c, d in pairs) if reset is None else _collect(_with_reset(pairs, reset))


def _with_reset(pairs: Iterable[Any], reset: Tensor) -> Iterator[Any]:
    for (c, d), r in zip(pairs, reset.unbind(1), strict=True):
        yield c, d, r


@torch.no_grad()
def critical_gradients(
    memory: SHM,
    x: Tensor,
    state: SHMState | None = None,
    reset: Tensor | None = None,
    *,
    rows: Tensor | None = None,
    state_curve: bool = True,
    chunk: int | None = None,
) -> Curves:
    """G1, G2 and the largest entry of M over time, for this memory on x [B, T, D].

    Works for every calibration: Factors (G2 with respect to theta), a tensor C and None (no theta, no G2). `chunk` is
    the number of steps processed together (default: what keeps a chunk below 64 MiB); results do not depend on it.
    """
    if not isinstance(memory, SHM):
        raise TypeError(f"memory must be a hm.SHM, got {type(memory).__name__}; for other models pass their C to "
                        "hm.diagnostics.cumulative_products")
    memory.check_inputs(x, state, reset)
    B = x.shape[0]
    if chunk is None:
        chunk = max(1, (1 << 26) // (8 * B * memory.memory_size * memory.key_size))
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk must be a positive number of steps, got {chunk!r}")
    state = memory.initial_state(B, device=x.device) if state is None else state
    return _collect(_steps(memory, x, state, reset, rows, chunk), state=state.M if state_curve else None)


@torch.no_grad()
def calibrations(
    memory: SHM, x: Tensor, state: SHMState | None = None, reset: Tensor | None = None, *, rows: Tensor | None = None
) -> Iterator[Tensor]:
    """C_t [B, V, K] of every step in float64, for this memory on x [B, T, D]."""
    memory.check_inputs(x, state, reset)
    state = memory.initial_state(x.shape[0], device=x.device) if state is None else state
    for C, *_ in _steps(memory, x, state, reset, rows, 1):
        yield C


class LiveEntries(NamedTuple):
    """How many entries of keys and queries are above 0 before relu, at every step: int64 tensors [B, T]."""

    key: Tensor
    query: Tensor


@torch.no_grad()
def live_entries(memory: SHM, x: Tensor) -> LiveEntries:
    """Entries of keys and queries above 0 for this memory on x [B, T, D]: those through which relu passes a gradient.

    With none, or a single one, a key or query has no gradient and cannot change, unless the memory has `soft_keys`. Rotary rows with keys
    of their own are not looked at.
    """
    if not isinstance(memory, SHM) or not memory.normalize_keys:
        got = "normalize_keys=False" if isinstance(memory, SHM) else type(memory).__name__
        raise TypeError(f"memory must be a hm.SHM with normalize_keys=True, got {got}; others have no relu in their keys")
    memory.check_inputs(x, None, None)
    x = x if memory.norm is None else memory.norm(x)
    return LiveEntries(*((layer(x) > 0).sum(-1) for layer in (memory.key, memory.query)))


def _steps(
    memory: SHM, x: Tensor, state: SHMState, reset: Tensor | None, rows: Tensor | None, chunk: int
) -> Iterator[Any]:
    """C_t, dC_t / dtheta and reset_t of every step, and U_t for the state."""
    clock = memory._clocks(state.clock, x.shape[1], reset)
    for start in range(0, x.shape[1], chunk):
        part = slice(start, start + chunk)
        features = x[:, part] if memory.norm is None else memory.norm(x[:, part])
        k, _, v, vc, _, _, turning = memory._project(features)
        found = memory._calibrate(features, clock[:, part], None if rows is None else rows[:, part], vc)
        for t in range(features.shape[1]):
            C, dC = (None if x is None else _inside.paired(memory, x) for x in _at(found, t, v, k))
            reset_t = None if reset is None else reset[:, start + t]
            one = slice(t, t + 1)
            turned = None if turning is None else (turning[0][:, one], turning[1][:, one])
            U = _inside.updates(memory, v[:, one].double(), k[:, one].double(), clock[:, part][:, one], turned)[:, 0]
            yield C, dC, reset_t, U, memory.clip


def _at(found: Factors | Tensor | None, t: int, v: Tensor, k: Tensor) -> tuple[Tensor, Tensor | None]:
    """C and its slope with respect to theta at step t, in float64."""
    if found is None:
        return torch.ones(v.shape[0], v.shape[-1], k.shape[-1], dtype=torch.float64, device=v.device), None
    if isinstance(found, Tensor):
        return found[:, t].double(), None
    vc = found.vc[:, t].double()
    C = calibrate(logits(found.theta[:, t].double(), vc, found.form), found.form)
    return C, slope(C, found.form) * vc[:, None, :]      # dC/dz times dz/dtheta


def _collect(steps: Iterable[Any], state: Tensor | None = None) -> Curves:
    """Run (P, dP, M) -> (P C, dP C + P dC, M C + U) over the steps and keep statistics of each."""
    P: Any = None
    log_P: Any = None
    dP = M = None
    rows: list[dict[str, float]] = []
    if state is not None:
        M = state.double()
    for C, dC, reset, *write in steps:
        C = C.double()
        if P is None:
            P, log_P = torch.ones_like(C), torch.zeros_like(C)
            dP = None if dC is None else torch.zeros_like(C)
        log_C = C.abs().log()
        if reset is not None:
            again = reset.reshape(-1, *[1] * (C.ndim - 1))
            P, log_P = torch.where(again, 1.0, P), torch.where(again, 0.0, log_P)
            dP = None if dP is None else torch.where(again, 0.0, dP)
            M = None if M is None else torch.where(again, 0.0, M)
        if dP is not None:
            dP = dP * C + P * dC.double()
        P, log_P = P * C, log_P + log_C
        if M is not None:
            U, clip = write
            M = M * C + U
            M = M if clip is None else M.clamp(-clip, clip)
        rows.append(_statistics(P, log_P, log_C, dP, M))
    if not rows:
        raise ValueError("there must be at least one step to look at")
    columns = {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}
    return Curves(**{f.name: columns.get(f.name) for f in fields(Curves)})   # type: ignore[arg-type]


def _statistics(P: Tensor, log_P: Tensor, log_C: Tensor, dP: Tensor | None, M: Tensor | None) -> dict[str, float]:
    size = P.abs()
    per_row = P.flatten(1).mean(1) if P.ndim > 1 else P
    below = size < 1
    row = {
        "mean": P.mean(),
        "error": per_row.std() / math.sqrt(len(per_row)) if len(per_row) > 1 else P.new_tensor(math.nan),
        "median": log_P.median().exp(),
        "mean_log": _mean_finite(log_P),
        "mean_log_C": _mean_finite(log_C),
        "mean_below_one": size[below].mean() if bool(below.any()) else P.new_tensor(math.nan),
        "underflow": (log_P < math.log(FLOAT32_TINY)).double().mean(),
        "overflow": (log_P > math.log(FLOAT32_MAX)).double().mean(),
    }
    if dP is not None:
        row |= {"G2_mean": dP.abs().mean(), "G2_median": dP.abs().median(), "G2_max": dP.abs().max()}
    if M is not None:
        row["largest_state"] = M.abs().max()
    names = list(row)
    return dict(zip(names, torch.stack([row[name] for name in names]).tolist(), strict=True))


def _mean_finite(x: Tensor) -> Tensor:
    finite = torch.isfinite(x)
    return x[finite].mean() if bool(finite.any()) else x.new_tensor(-math.inf)


def stability_report(curves: Curves, name: str = "memory") -> str:
    """The curves as a short text: a table at a few times, and remarks."""
    T = len(curves)
    times = sorted({1, T, *(2**n for n in range(1, 20) if 2**n < T)})
    columns: list[tuple[str, Tensor | None]] = [
        ("mean", curves.mean), ("+-", curves.error), ("median", curves.median), ("typical", curves.typical),
        ("below 1", curves.mean_below_one), ("G2 mean", curves.G2_mean), ("G2 max", curves.G2_max),
        ("max |M|", curves.largest_state),
    ]
    shown = [(title, column) for title, column in columns if column is not None]
    lines = [f"{name}: products of C over {T} steps", "  steps" + "".join(f"{title:>11}" for title, _ in shown)]
    lines += [f"{t:>7}" + "".join(f"{column[t - 1].item():>11.3g}" for _, column in shown) for t in times]
    return "\n".join([*lines, *(f"  {remark}" for remark in _remarks(curves))])


def _remarks(curves: Curves) -> list[str]:
    T, median, mean = len(curves), curves.median[-1].item(), curves.mean[-1].item()
    rate = curves.mean_log_C.mean().item()
    remarks = []
    if not math.isfinite(rate):
        remarks.append("every entry of C is 0 somewhere: nothing survives")
    elif median < 0.01:
        remarks.append(f"vanishing: a typical entry keeps {median:.1e} of its value (mean log C = {rate:.3g} a step)")
    elif median > 100:
        remarks.append(f"exploding: a typical entry grows by {median:.1e} (mean log C = {rate:.3g} a step)")
    else:
        remarks.append(f"steady: a typical entry keeps {median:.2g} of its value (mean log C = {rate:.3g} a step)")
    if mean > 100 * max(median, 1e-300) and mean > 0.1:
        remarks.append(f"the mean, {mean:.2g}, comes from a few large products: read the median")
    for share, what in ((curves.underflow[-1].item(), "below"), (curves.overflow[-1].item(), "above")):
        if share > 0:
            remarks.append(f"{share:.1%} of the products are {what} float32's range after {T} steps")
    if curves.largest_state is not None and curves.largest_state.max() > 1e4:
        remarks.append(f"entries of M reach {curves.largest_state.max().item():.1e}: use read_norm or clip")
    return remarks


def plot(curves: Curves | dict[str, Curves], path: str | Path) -> Path:
    """Draw the curves of one or several memories (by name) into an image file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter
    except ImportError as error:
        raise ImportError("plotting needs matplotlib: pip install 'hadamem[plot]'") from error
    named = {"": curves} if isinstance(curves, Curves) else curves
    panels: list[tuple[str, str]] = [("mean", "mean of prod C"), ("median", "median of |prod C|")]
    panels += [(name, title) for name, title in (("G2_mean", "G2: mean |d prod C / d theta|"),
                                                 ("largest_state", "largest |M|"))
               if any(getattr(c, name) is not None for c in named.values())]
    columns = 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes[len(panels):]:
        ax.set_axis_off()
    for ax, (name, title) in zip(axes, panels, strict=False):
        for label, one in named.items():
            values = getattr(one, name)
            if values is not None:
                shown = values.abs().clamp(1e-300, 1e300)
                ax.plot(range(1, len(one) + 1), shown, linewidth=1.8, label=label or None)
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        if high < 100 * low:                     # less than two decades: plain numbers, at 1, 2 and 5 only
            ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("steps")
        ax.grid(True, color="#dddddd", linewidth=0.8)
        ax.spines[["top", "right"]].set_visible(False)
    if "" not in named:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    path = Path(path)
    figure.savefig(path)
    return path
