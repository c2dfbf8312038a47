"""A memory of outer products under one decay, in chunks of matrix products: plain PyTorch, linear in T, no loop over steps.

Within a chunk, M_t q_t is attention without a softmax, (Q Kᵀ ⊙ D) V with D[t, s] = exp(what is left at t of what was gained at s); the
memory is formed between chunks only. It saves the [T, V, K] states of a step-by-step scan; a single step is taken directly.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._chunks import Chunks, carry, chunks, finite, nan_where, seen
from .._single import begin, read, scale, write
from .reference import Outcome

LIMIT = 1e4   # of log gates: exp of it is inf or 0 in every dtype


def additive_scan(
    v: Tensor, k: Tensor, q: Tensor, log_decay: Tensor | None, log_gain: Tensor | None, M0: Tensor, n0: Tensor | None, m0: Tensor | None,
    reset: Tensor | None,
) -> Outcome:
    """See `additive_reference`."""
    B, T = v.shape[:2]
    if T == 1:
        return _step(v, k, q, log_decay, log_gain, M0, n0, m0, reset)
    (v, bad_v), (k, bad_k), (q, bad_q) = finite(v), finite(k), finite(q)
    bad, m = bad_v | bad_k, None
    lay = chunks(B, T, reset, v.device)
    cut, lives = lay.ends()
    V_, K_, Q_ = lay.cut(v), lay.cut(k), lay.cut(q)                                        # [B, N, C, V or K]
    scores, bad_scores = finite(torch.where(lay.sees, Q_ @ K_.mT, 0.0))                    # [B, N, C, C]
    if log_decay is not None and log_gain is not None and m0 is not None:
        gates, bad_gates = finite(torch.stack((log_decay, log_gain), dim=-1))
        lost, bad = ~m0.isfinite(), bad | bad_gates
        M0, m0 = torch.where(lost[:, None, None], torch.nan, M0), torch.where(lost, 0.0, m0)
        D, read, write, keep, m = _decays(gates[..., 0], gates[..., 1], m0, reset, lay)
        scores, Q_, K_ = scores * D, Q_ * read[..., None], K_ * write[..., None]
        m = m[:, :T]
    else:
        keep = None
        K_ = K_ if lives is None else torch.where(lives[..., None], K_, 0.0)
        Q_ = Q_ if lay.fresh is None else torch.where(lay.fresh[..., None], 0.0, Q_)
    update = V_.mT @ K_                                                                    # [B, N, V, K]
    if n0 is not None:                                                                     # n as one more row of M
        M0, update = torch.cat((M0, n0[:, None]), dim=1), torch.cat((update, K_.sum(2, keepdim=True)), dim=2)
    M, M_T = carry(M0, update, keep, cut)                                                  # before each chunk, and at the end
    bad_M = (M.detach() * 0).sum((-2, -1)) != 0                                             # [B, N]
    M, n = torch.where(bad_M[..., None, None], 0.0, M).split((v.shape[-1], M.shape[2] - v.shape[-1]), dim=2)
    h = scores @ V_ + Q_ @ M.mT

    had = seen(bad, reset)
    nans, gone = nan_where(had | bad_q | bad_scores.flatten(1, 2)[:, :T] | lay.reached(bad_M, T), h), nan_where(had[:, -1], h)
    h, M_T = h.flatten(1, 2)[:, :T] + nans[..., None], M_T + gone[:, None, None]
    if n0 is None:
        return h, None, m, M_T, None
    z = scores.sum(-1) + (Q_ @ n.mT)[..., 0]
    return h, z.flatten(1, 2)[:, :T] + nans, m, M_T[:, :-1], M_T[:, -1]


def _step(v: Tensor, k: Tensor, q: Tensor, log_decay: Tensor | None, log_gain: Tensor | None, M: Tensor, n: Tensor | None,
          m: Tensor | None, reset: Tensor | None) -> Outcome:
    """`additive_reference` for T = 1."""
    v, k, q, drop = v[:, 0], k[:, 0], q[:, 0], None if reset is None else reset[:, 0]
    M, own = begin(M, drop, v, k, q, log_decay, log_gain, n)
    if drop is not None:
        n = None if n is None else torch.where(drop[:, None], 0.0, n)
        m = None if m is None else torch.where(drop, 0.0, m)
    if log_decay is not None and log_gain is not None and m is not None:
        carried, new = log_decay[:, 0] + m, log_gain[:, 0]
        m = torch.maximum(carried, new).detach()
        f, k = torch.exp(carried - m), torch.exp(new - m)[:, None] * k
        M = scale(M, f, own)
        n = None if n is None else n * f[:, None]
    M = write(M, v, k, own)
    n = None if n is None else n + k
    z = None if n is None else (n * q).sum(-1)[:, None]
    return read(M, q)[:, None], z, None if m is None else m[:, None], M, n


def _decays(log_decay: Tensor, log_gain: Tensor, m0: Tensor, reset: Tensor | None,
            lay: Chunks) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All factors, none above 1: D [B, N, C, C] from step to step, `read` [B, N, C] of the memory before the chunk at a step, `write`
    [B, N, C] of a step in the memory after it, `keep` [B, N] across the chunk; and m [B, N * C].

    Sums of log gates are taken in float64: the differences that matter may be small between large sums.
    """
    dtype = log_decay.dtype
    wide = torch.float32 if log_decay.device.type == "mps" else torch.float64
    decay, gain = lay.cut(log_decay).to(wide), lay.cut(log_gain, -LIMIT).to(wide)
    m = _maxima(decay.detach().flatten(1), gain.detach().flatten(1), m0.detach().to(wide), reset).to(dtype)   # as it will be carried
    if lay.fresh is None:
        b = decay.cumsum(-1)
    else:
        b = (lay.sees.to(wide) @ decay[..., None])[..., 0]   # a cumsum's backward would leave rounding noise on the other side of a reset
    level = m.to(wide).unflatten(1, (lay.N, lay.C))
    before = torch.cat((m0[:, None].to(wide), level[:, :-1, -1]), dim=1)                         # [B, N]
    at, since = b - level, gain - b
    D = _exp(at[..., :, None] + since[..., None, :], lay.sees, dtype)
    read = _exp(at + before[..., None], None if lay.fresh is None else ~lay.fresh, dtype)
    write = _exp(at[..., -1:] + since, None if lay.fresh is None else lay.sees[..., -1, :], dtype)
    keep = _exp(at[..., -1] + before, None if lay.fresh is None else ~lay.fresh[..., -1], dtype)
    return D, read, write, keep, m


def _exp(x: Tensor, where: Tensor | None, dtype: torch.dtype) -> Tensor:
    x = x.to(dtype)
    return torch.exp(x if where is None else torch.where(where, x, -torch.inf))


def _maxima(log_decay: Tensor, log_gain: Tensor, m0: Tensor, reset: Tensor | None) -> Tensor:
    """m_t = max(log_decay_t + m_{t-1}, log_gain_t), with m = 0 before an episode's first step [B, T]."""
    log_gain, log_decay = torch.cat((m0[:, None], log_gain), dim=1), F.pad(log_decay, (1, 0))   # m0 as a step before the first
    total = ranked = log_decay.cumsum(1)
    if reset is not None:
        reset = F.pad(reset, (1, log_gain.shape[1] - reset.shape[1] - 1))
        log_gain = torch.where(reset, torch.maximum(log_decay, log_gain), log_gain)
        total = torch.where(reset, 0.0, log_decay).cumsum(1)
        ranked = torch.where(reset, -3 * LIMIT, log_decay).cumsum(1)   # so strong a decay that nothing before it can be the largest
    largest = (log_gain - ranked).cummax(1).indices                    # the step whose gain is the largest left
    return (total + (log_gain - total).gather(1, largest))[:, 1:]
