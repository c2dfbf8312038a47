"""Handling of memory states: NamedTuples of batch-first tensors.

`to_vector` writes a state as plain float32 numbers, for frameworks that carry nothing else, and `from_vector` restores the same state bit
for bit: integers and float64 numbers are stored as four 16-bit pieces, each a small integer that float32 holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

State = Any   # a NamedTuple of tensors, each with the batch as its first axis
S = TypeVar("S")
REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}   # of their parts


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
_WIDE = (torch.float64, torch.int64, torch.int32)   # dtypes that are stored in pieces


def _split(words: Tensor) -> Tensor:
    return torch.stack([(words >> s) & 0xFFFF for s in _PIECES], dim=-1).to(torch.float32)


def _join(pieces: Tensor) -> Tensor:
    parts = pieces.to(torch.int64)
    return parts[..., 0] | parts[..., 1] << 16 | parts[..., 2] << 32 | parts[..., 3] << 48


class _SplitDouble(torch.autograd.Function):
    """float64 [B, n] -> its pieces [B, n, 4]. The first piece carries the gradient, in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _split(x.contiguous().view(torch.int64))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient[..., 0].to(torch.float64)


class _JoinDouble(torch.autograd.Function):
    """The inverse of `_SplitDouble`."""

    @staticmethod
    def forward(ctx: Any, pieces: Tensor) -> Tensor:
        return _join(pieces).view(torch.float64)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.nn.functional.pad(gradient.to(torch.float32)[..., None], (0, len(_PIECES) - 1))


def _to_floats(x: Tensor) -> Tensor:
    if x.is_complex():
        x = torch.view_as_real(x)
    x = x.flatten(1) if x.ndim > 1 else x[:, None]
    if x.dtype == torch.float64:
        return _SplitDouble.apply(x).flatten(1)
    if x.dtype in _WIDE:
        return _split(x.to(torch.int64)).flatten(1)
    return x.to(torch.float32)   # float32, narrower floats and bool fit as they are


def _from_floats(v: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_complex:
        return torch.view_as_complex(_from_floats(v, (*shape, 2), REAL[dtype]).contiguous())
    if dtype in _WIDE:
        pieces = v.unflatten(1, (v.shape[1] // len(_PIECES), len(_PIECES)))
        v = _JoinDouble.apply(pieces) if dtype == torch.float64 else _join(pieces)
    return v.to(dtype).reshape(v.shape[0], *shape)


class _Layout(NamedTuple):
    shapes: tuple[tuple[int, ...], ...]  # of a state's tensors, without the batch
    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[int, ...]               # floats per batch row


def _find_layout(memory: HasInitialState, dtype: torch.dtype | None, identity: int) -> _Layout:
    """How a memory's states lie in a vector. `identity` is id(memory): torch.compile then compiles again for another memory."""
    like = memory.initial_state(1, device="meta", dtype=dtype)
    shapes, dtypes = tuple(tuple(x.shape[1:]) for x in like), tuple(x.dtype for x in like)
    pieces = [(2 if x.is_complex() else 1) * (len(_PIECES) if x.dtype in (*_WIDE, torch.complex128) else 1) for x in like]
    return _Layout(shapes, dtypes, tuple(n * math.prod(shape) for n, shape in zip(pieces, shapes, strict=True)))


# As torch.compiler.assume_constant_result does it, which would import the compiler. Dynamo cannot trace into modules like nn.GRU.
_find_layout._dynamo_marked_constant = True   # type: ignore[attr-defined]


def vector_width(memory: HasInitialState, dtype: torch.dtype | None = None) -> int:
    """How many numbers `to_vector` writes per batch row of this memory's state."""
    return sum(_find_layout(memory, dtype, id(memory)).sizes)


def to_vector(state: State) -> Tensor:
    """The state as one float32 tensor [B, n]; `from_vector` restores it bit for bit.

    Gradients flow through the two of them (those of float64 numbers in float32). Use `detach` on a state to be stored.
    """
    apply(lambda x: x, state)
    return torch.cat([_to_floats(x) for x in state], dim=1)


def from_vector(memory: HasInitialState, vector: Tensor, dtype: torch.dtype | None = None) -> State:
    """The state that `to_vector` wrote, for this memory; `dtype` as it was given to `initial_state`."""
    layout = _find_layout(memory, dtype, id(memory))
    if vector.ndim != 2 or vector.shape[1] != sum(layout.sizes):
        raise ValueError(f"vector must have shape [B, {sum(layout.sizes)}] for this memory, got {list(vector.shape)}")
    parts = vector.split(list(layout.sizes), dim=1)
    kind = getattr(memory, "state_type", None) or type(memory.initial_state(1, device="meta"))
    return kind(*(_from_floats(*part) for part in zip(parts, layout.shapes, layout.dtypes, strict=True)))
