"""Handling of memory states: NamedTuples of batch-first tensors.

`to_vector` writes a state as plain float32 numbers, for frameworks that carry nothing else, and `from_vector` restores the same state bit
for bit: integers and float64 numbers are stored as four 16-bit pieces, each a small integer that float32 holds exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

State = Any   # a NamedTuple of tensors, each with the batch as its first axis
S = TypeVar("S")


class HasInitialState(Protocol):
    def initial_state(self, batch_size: int, device: Any = None, dtype: torch.dtype | None = None, generator: Any = None) -> State: ...


def apply(fn: Callable[[Tensor], Tensor], state: S) -> S:
    """The state with `fn` applied to every tensor. A NamedTuple may hold other NamedTuples, or None, as the states of whole networks do."""
    if isinstance(state, tuple) and all(x is None or isinstance(x, (Tensor, tuple)) for x in state):
        parts: list[Any] = [None if x is None else fn(x) if isinstance(x, Tensor) else apply(fn, x) for x in state]
        return type(state)(*parts)
    raise TypeError(f"state must be a NamedTuple of tensors as initial_state() returns it, got {type(state).__name__}")


def tensors(state: State) -> list[Tensor]:
    """All tensors of a state, in order."""
    found: list[Tensor] = []
    apply(lambda x: found.append(x) or x, state)   # type: ignore[func-returns-value]
    return found


def index(state: S, i: Any) -> S:
    """The batch rows `i` (an int keeps no batch axis; a slice, list or tensor does) of every tensor."""
    return apply(lambda x: x[i], state)


def select(state: S, rows: Tensor) -> S:
    """The batch rows of an index tensor [N], as a copy."""
    return apply(lambda x: x.index_select(0, rows), state)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, by the rest of their names: a part of a checkpoint."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def detach(state: S) -> S:
    """The same state, detached from the autograd graph."""
    return apply(Tensor.detach, state)


def where(reset: Tensor, new: S, old: S) -> S:
    """Row by row: `new` where reset [B] is true, else `old`. A selection, so that inf and nan in `old` are gone."""
    return type(old)(*(torch.where(reset.reshape(-1, *[1] * (o.ndim - 1)), n, o) for n, o in zip(new, old, strict=True)))  # type: ignore[call-overload]


_PIECES = (0, 16, 32, 48)


def _to_floats(x: Tensor) -> Tensor:
    x = x.detach().flatten(1) if x.ndim > 1 else x.detach()[:, None]
    if x.is_complex():
        x = torch.view_as_real(x).flatten(1)
    if x.dtype == torch.float64:
        x = x.contiguous().view(torch.int64)
    if x.dtype in (torch.int64, torch.int32):
        words = x.to(torch.int64)
        return torch.stack([(words >> s) & 0xFFFF for s in _PIECES], dim=-1).flatten(1).to(torch.float32)
    return x.to(torch.float32)   # float32, narrower floats and bool fit as they are


def _from_floats(v: Tensor, like: Tensor) -> Tensor:
    shape = (v.shape[0], *like.shape[1:])
    if like.is_complex():
        part = torch.view_as_real(like)
        return torch.view_as_complex(_from_floats(v, part).contiguous())
    if like.dtype in (torch.float64, torch.int64, torch.int32):
        pieces = v.to(torch.int64).unflatten(1, (-1, len(_PIECES)))
        words = sum(pieces[..., n] << s for n, s in enumerate(_PIECES))
        words = words.view(torch.float64) if like.dtype == torch.float64 else words.to(like.dtype)
        return words.reshape(shape)
    return v.to(like.dtype).reshape(shape)


def _floats_per_row(x: Tensor) -> int:
    n = x[0].numel() * (2 if x.is_complex() else 1)
    wide = x.dtype in (torch.float64, torch.complex128, torch.int64, torch.int32)
    return n * (len(_PIECES) if wide else 1)


def to_vector(state: State) -> Tensor:
    """The state as one float32 tensor [B, n], detached. `from_vector` restores it bit for bit."""
    apply(lambda x: x, state)
    return torch.cat([_to_floats(x) for x in state], dim=1)


def from_vector(memory: HasInitialState, vector: Tensor, dtype: torch.dtype | None = None) -> State:
    """The state that `to_vector` wrote, for this memory; `dtype` as it was given to `initial_state`."""
    like = memory.initial_state(1, device="meta", dtype=dtype)
    sizes = [_floats_per_row(x) for x in like]
    if vector.ndim != 2 or vector.shape[1] != sum(sizes):
        raise ValueError(f"vector must have shape [B, {sum(sizes)}] for this memory, got {list(vector.shape)}")
    return type(like)(*(_from_floats(v, x) for v, x in zip(vector.split(sizes, dim=1), like, strict=True)))
