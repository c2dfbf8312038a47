"""The delta rule in chunks of matrix products (the WY form): plain PyTorch, linear in T, no loop over steps.

What step t writes for its key, u_t = beta_t (v_t - M_{t-1} k_t), depends on the u_s before it through k_s · k_t alone: a triangular system
per chunk, solved for all chunks at once. Between chunks the memory is updated as M <- M A + R. A single step is taken directly.

Whatever is multiplied has been made finite before (see `_chunks`), also what this file itself has computed and may have overflowed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._chunks import chunks, finite, nan_where, seen
from .._single import begin, read, write


def delta_scan(v: Tensor, k: Tensor, q: Tensor, beta: Tensor, M0: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `delta_reference`."""
    B, T, V = v.shape
    if T == 1:
        return _step(v[:, 0], k[:, 0], q[:, 0], beta[:, 0], M0, None if reset is None else reset[:, 0])
    (v, bad_v), (k, bad_k), (q, bad_q), (beta, bad_beta) = finite(v), finite(k), finite(q), finite(beta[..., None])
    bad = [bad_v, bad_k, bad_beta]
    lay = chunks(B, T, reset, v.device)
    cut, lives = lay.ends()
    V_, K_, Q_, beta = lay.cut(v), lay.cut(k), lay.cut(q), lay.cut(beta)                   # [B, N, C, V or K or 1]

    def kept(x: Tensor) -> Tensor:
        """x [B, N, C, any] without the steps that are not finite, which are noted."""
        x, lost = finite(x)
        bad.append(lost.flatten(1, 2)[:, :T])
        return x

    # (I + L) U = beta (V - K Mᵀ), L[t, s] = beta_t k_t · k_s for s < t of the same episode, M the memory before the chunk (if it is seen)
    L = kept(torch.where(lay.sees.tril(-1), beta * (K_ @ K_.mT), 0.0))
    inverse = torch.linalg.solve_triangular(L, torch.diag_embed(beta[..., 0]), upper=False, unitriangular=True)
    inverse = kept(torch.where(lay.sees, inverse, 0.0))                                    # 0 * inf in the solution of another episode
    seen_k = K_ if lay.fresh is None else torch.where(lay.fresh[..., None], 0.0, K_)
    U, W = kept(inverse @ torch.cat((V_, seen_k), dim=-1)).split((V, K_.shape[-1]), dim=-1)                            # U <- U - W Mᵀ
    W = W if lay.fresh is None else torch.where(lay.fresh[..., None], 0.0, W)              # zero already, but not its gradient

    last_k = K_ if lives is None else torch.where(lives[..., None], K_, 0.0)
    A, lost = finite((torch.eye(K_.shape[-1], dtype=v.dtype, device=v.device) - W.mT @ last_k).flatten(-2))
    A = A.unflatten(-1, (K_.shape[-1], -1))                                                # [B, N, K, K]
    R = U.mT @ last_k + nan_where(lost, v)[..., None, None]                                # [B, N, V, K]
    M, before = M0, []
    for n, (A_n, R_n) in enumerate(zip(A.unbind(1), R.unbind(1), strict=True)):
        before.append(M)
        M = torch.baddbmm(R_n, M if cut is None else M.masked_fill(cut[:, n, None, None], 0.0), A_n)
    starts = torch.stack(before, dim=1)                                                    # [B, N, V, K]
    bad_M = (starts.detach() * 0).sum((-2, -1)) != 0                                        # [B, N]
    starts = torch.where(bad_M[..., None, None], 0.0, starts).mT

    scores, bad_scores = finite(torch.where(lay.sees, Q_ @ K_.mT, 0.0))
    Q_ = Q_ if lay.fresh is None else torch.where(lay.fresh[..., None], 0.0, Q_)
    h = scores @ kept(U - W @ starts) + Q_ @ starts
    had = seen(torch.stack(bad).any(0), reset)
    h = h.flatten(1, 2)[:, :T] + nan_where(had | bad_q | bad_scores.flatten(1, 2)[:, :T] | lay.reached(bad_M, T), h)[..., None]
    return h, M + nan_where(had[:, -1], h)[:, None, None]


def _step(v: Tensor, k: Tensor, q: Tensor, beta: Tensor, M: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    M, own = begin(M, reset, v, k, q, beta)
    M = write(M, beta[:, None] * (v - read(M, k)), k, own)
    return read(M, q)[:, None], M
