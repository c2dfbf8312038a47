"""Observations may be tensors or tuples and dicts of them: the few operations on such trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def apply(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """fn on every leaf, with the leaves of `others` at the same place beside it."""
    if isinstance(tree, dict):
        return {key: apply(fn, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(apply(fn, *values) for values in zip(tree, *others, strict=True))
    return fn(tree, *others)


def leaves(tree: Any) -> list[Any]:
    """All leaves, in order."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    return [leaf for value in tree for leaf in leaves(value)] if isinstance(tree, tuple) else [tree]


def where(mask: Tensor, a: Any, b: Any) -> Any:
    """Leaves [N, ...] of `a` where mask [N] is true, of `b` elsewhere."""
    return apply(lambda x, y: torch.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x, y), a, b)
