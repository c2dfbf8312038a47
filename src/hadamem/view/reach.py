"""How far back a memory reaches: how much the input of an earlier step still changes the output of a later one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .. import states
from ..memory import Memory
from ..reports.inspect import Trace, Triangle

TARGETS = 64              # later steps that are looked at
SOURCES = 256             # columns of a triangle: of longer episodes, each is the largest of some steps
PROBES = 4                # random directions of the output, from which the norm is estimated
NUMBERS = 1 << 26         # numbers of state that one backward pass may hold


def gradient_reach(memory: Memory, x: Tensor, state: states.State, seed: int = 0) -> Triangle:
    """The norms of d y_t / d x_i along an episode: x [T, input_size] what the memory saw, state [1, ...] before it.

    The norm of a matrix J is that of J^T w for random w with unit variance, on average: one backward pass gives all sources of a target.
    """
    T = x.shape[0]
    targets = spread(T, TARGETS)
    probes = num_probes(T)
    rows = [(t, probe) for t in targets for probe in range(probes)]
    at_once = int(np.clip(NUMBERS // (T * max(1, memory.state_size)), 1, 4 * TARGETS))
    generator = torch.Generator().manual_seed(seed)
    squares = np.zeros((len(targets), T))
    place = {int(t): k for k, t in enumerate(targets)}
    for start in range(0, len(rows), at_once):
        some = [int(t) for t, _ in rows[start:start + at_once]]
        for t, found in zip(some, _squared_gradients(memory, x, state, some, generator), strict=True):
            squares[place[t]] += found / probes
    norms = np.sqrt(squares)
    norms[np.arange(T) > np.asarray(targets)[:, None]] = np.nan
    help = "norm of d y_t / d x_i: how much the input of step i still changes the memory's output at step t"
    return Triangle("Gradient reach", help, targets, *pool_columns(norms))


def num_probes(T: int) -> int:
    """Random directions of the output that the norms of an episode of T steps are estimated from."""
    return PROBES if T <= SOURCES else 1


def _squared_gradients(memory: Memory, x: Tensor, state: states.State, targets: list[int], generator: torch.Generator) -> np.ndarray:
    """[rows, T]: squared norms of the gradient of one random projection of y at each target, for all inputs."""
    n, T = len(targets), x.shape[0]
    length = max(targets) + 1
    inputs = x[:length].expand(n, -1, -1).clone().requires_grad_()
    reset = torch.zeros(n, length, dtype=torch.bool, device=x.device)
    reset[:, 0] = True
    with torch.enable_grad():
        y, _ = memory(inputs, states.apply(lambda s: s.expand(n, *s.shape[1:]).clone(), state), reset)
        w = torch.randn(n, y.shape[-1], generator=generator).to(y)
        gradient, = torch.autograd.grad((y[torch.arange(n), torch.tensor(targets)] * w).sum(), inputs)
    squares = np.zeros((n, T))
    squares[:, :length] = gradient.double().square().sum(-1).cpu().numpy()
    return squares


def product_reach(trace: Trace) -> Triangle:
    """What is left at step t of the state after step i: the mean over cells of the product of a trace's factors in between."""
    T = trace.values.shape[0]
    factors = np.abs(trace.values.reshape(T, -1).astype(np.float64))
    logs = np.cumsum(np.log(np.maximum(np.nan_to_num(factors, nan=1.0, posinf=1e30), 1e-30)), axis=0)      # [T, cells]
    targets = spread(T, TARGETS)
    left = np.full((len(targets), T), np.nan)
    for k, t in enumerate(targets):
        left[k, :t + 1] = np.exp(np.minimum(logs[t] - logs[:t + 1], 80)).mean(axis=1)
    help = f"what is left at step t of what was in memory after step i: product of {trace.name} from i + 1 to t, mean over the cells drawn"
    return Triangle(f"Product of {trace.name}", help, targets, *pool_columns(left))


def spread(count: int, most: int) -> np.ndarray:
    """At most `most` of the numbers 0 .. count - 1, evenly spread, the first and the last among them."""
    return np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def pool_columns(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first step of each column, and values [K, columns]: the largest of the steps in it, nan where there is none."""
    T = values.shape[1]
    width = -(-T // SOURCES)
    starts = np.arange(0, T, width)
    filled = np.where(np.isnan(values), -np.inf, values)
    pooled = np.maximum.reduceat(filled, starts, axis=1)
    return starts, np.where(pooled == -np.inf, np.nan, pooled)
