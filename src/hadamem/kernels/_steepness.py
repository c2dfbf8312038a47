"""A limit to the gradient of a memory whose entries are limited, too.

Where nothing is ever written, the gradient of M grows as products of C do, up to inf in some hundred steps, and a key of 0 times inf is
nan: for all weights of the layer, though that gradient concerns none of them. A number that stays finite is all it takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

STEEPEST = 1e12     # far above gradients that mean something; a product with those of 32 steps of any bounded C fits into float32


class _Limited(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].clamp(-STEEPEST, STEEPEST)


class _WithTangents(_Limited):
    """For forward-mode differentiation, too, which torch.compile does not take."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return tangents[0].view_as(tangents[0])


def limit_gradient(x: Tensor) -> Tensor:
    """x itself; its gradient is limited to ±STEEPEST on the way back."""
    return (_Limited if torch.compiler.is_compiling() else _WithTangents).apply(x)
