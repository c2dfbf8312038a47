"""Turns a pair of kernels into PyTorch operators: visible to torch.compile, vmap and autograd, without a graph break."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

NO_DOUBLE_BACKWARD = (
    "backend {backend!r} of {op} has no second derivative; call it with backend='scan' (or 'reference') to differentiate twice"
)


def forbid_double_backward(op: Any, name: str, backend: str) -> None:
    """Make differentiating a backward operator raise an error that names the alternative."""

    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(NO_DOUBLE_BACKWARD.format(backend=backend, op=name))

    op.register_autograd(backward, setup_context=lambda ctx, inputs, output: None)


def fold_batch(op: Any, outputs: int) -> None:
    """vmap for an operator whose tensors are all batch-first: the mapped axis is folded into the batch.

    A tensor of zero elements (an absent checkpoint or gradient) is passed through as it is.
    """

    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        n = info.batch_size

        def fold(x: Any, dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            x = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
            return x[0] if x.numel() == 0 else x.flatten(0, 1)

        results = op(*(fold(x, d) for x, d in zip(args, in_dims, strict=True)))
        if outputs == 1:
            results = (results,)
        unfolded = tuple(x if x.numel() == 0 else x.unflatten(0, (n, -1)) for x in results)
        dims = tuple(None if x.numel() == 0 else 0 for x in results)
        return (unfolded[0], dims[0]) if outputs == 1 else (unfolded, dims)

    op.register_vmap(vmap)


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow, so that checkpoints are worth keeping."""
    return torch.is_grad_enabled() and any(x is not None and (x.requires_grad or _wraps_grad(x)) for x in tensors)


def _wraps_grad(x: Tensor) -> bool:
    """Whether a tensor inside vmap wraps one that requires grad: its own flag does not show it."""
    while not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
        if x.requires_grad:
            return True
    return False


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether these are ordinary tensors in eager mode, so that a kernel can be called without the operator around it.

    The operator is what torch.compile, export, vmap and tensor subclasses need; in eager mode it costs more than a small kernel.
    """
    if not undisturbed():
        return False
    return all(x is None or type(x) is Tensor or type(x) is torch.nn.Parameter for x in tensors)


def undisturbed() -> bool:
    """Whether operations on tensors just run: nothing compiles, traces, transforms or differentiates them forward."""
    return not (
        torch.compiler.is_compiling()
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def forbid_forward_mode(name: str, backend: str, *tensors: Tensor | None) -> None:
    """Raise where a forward-mode derivative would be dropped."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise RuntimeError(f"backend {backend!r} of {name} has no forward-mode derivative; use backend='scan' (or 'reference')")


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """Launch kernels on the GPU of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def as_bytes(reset: Tensor) -> Tensor:
    """Flags in a dtype that Triton loads, contiguous."""
    return reset.contiguous().view(torch.uint8)
