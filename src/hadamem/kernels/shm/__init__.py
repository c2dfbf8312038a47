"""SHM's fused recurrence from vectors: M_t = M_{t-1} ⊙ C_t + v_t ⊗ k_t, C_t = 1 + tanh(theta_t ⊗ vc_t), h_t = M_t q_t.

No [B, T, V, K] tensor is ever formed by the `cpu` and `triton` backends. This file checks the arguments and picks one.
"""

from __future__ import annotations

from torch import Tensor

from .. import _backends
from .._checks import check_clip, check_reset, check_tensor, compute_dtype, without_autocast
from .._probe import check, filled
from .forms import find_form
from .reference import shm_reference
from .scan import shm_scan


def shm(
    theta: Tensor | None,
    vc: Tensor | None,
    v: Tensor,
    k: Tensor,
    q: Tensor,
    M0: Tensor | None = None,
    reset: Tensor | None = None,
    clip: float | None = None,
    calibration: str = "tanh",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run Stable Hadamard Memory over whole sequences: theta, v [B, T, V] and vc, k, q [B, T, K] -> h [B, T, V], M_T [B, V, K].

    At every step, in this order: where `reset[b, t]`, the memory of row b is dropped; it is multiplied by
    C_t = 1 + tanh(theta_t ⊗ vc_t) (eq. 14); v_t ⊗ k_t is added (eqs. 8, 9: v comes with its gate multiplied in); with `clip`,
    entries are limited to ±clip, and gradients of M to ±1e12, at least every 32 steps; h_t = M_t q_t is read (eq. 2). V and K, the value
    and key widths, may differ.

    M0 [B, V, K] is the memory before the first step (None: zeros). `calibration` is "tanh", "sigmoid" (C = sigmoid(z)), "none" (C = 1;
    theta and vc may be None), "exp" (e^z bent to [1/2, 2], log C is odd) or "drift" (the same of z + b ⊗ 1; theta is [B, T, 2 V], b its
    second half); "exp:1.5" and "drift:1.5" lie in [1/1.5, 1.5]. `backend` is "auto", "reference", "scan", "cpu" or "triton";
    `hm.kernels.backends()` lists those usable here. Everything is differentiable, M0 and M_T included; only "reference" and "scan" twice.

    The computation runs in the widest dtype of the inputs, at least float32, autocast or not; h comes back in v's dtype, M_T stays wide.
    """
    if not isinstance(v, Tensor) or v.ndim != 3:
        raise ValueError(f"v must be a tensor of shape [B, T, V], got {list(v.shape) if isinstance(v, Tensor) else type(v).__name__}")
    if not isinstance(k, Tensor) or k.ndim != 3:
        raise ValueError(f"k must be a tensor of shape [B, T, K], got {list(k.shape) if isinstance(k, Tensor) else type(k).__name__}")
    B, T, V = v.shape
    K = k.shape[-1]
    form = find_form(calibration)
    if min(B, T, V, K) < 1:
        raise ValueError(f"v {list(v.shape)} and k {list(k.shape)} must not have empty axes")
    check_tensor("v", v, (B, T, V), v, "v")
    check_tensor("k", k, (B, T, K), v, "v")
    check_tensor("q", q, (B, T, K), k, "k")
    if calibration == "none":
        theta = vc = None
    else:
        check_tensor("theta", theta, (B, T, 2 * V if form.drift else V), v, "v")
        check_tensor("vc", vc, (B, T, K), k, "k")
    if M0 is not None:
        check_tensor("M0", M0, (B, V, K), v, "v")
    check_reset(reset, B, T, v.device)
    check_clip(clip)
    _backends.check_name("shm", backend, v.device.type)

    dtype = compute_dtype(theta, vc, v, k, q, M0)
    vectors = [None if x is None else x.to(dtype) for x in (theta, vc, v, k, q, M0)]
    with without_autocast(v.device.type):
        h, M = _backends.run("shm", backend, v.device.type, BACKENDS,
                             (*vectors, reset, None if clip is None else float(clip), calibration), _probe)
    return h.to(v.dtype), M


def _cpu(*args):
    from .fused_cpu import shm_cpu

    return shm_cpu(*args)


def _triton(*args):
    from .triton import shm_triton

    return shm_triton(*args)


BACKENDS = _backends.register("shm", {"reference": shm_reference, "scan": shm_scan, "cpu": _cpu, "triton": _triton})


def _probe(backend: str, device_type: str) -> None:
    x = filled(1, 2, 4, device=device_type)
    check(BACKENDS[backend], shm_reference, (x, x, x, x, x, None, None, 10.0, "tanh"))   # with a limit, as SHM's default form has one
