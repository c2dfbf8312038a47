"""What memories of outer products share: sizes, states of zeros, projections in one matrix product, the layers of a published block."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import states
from ..states import State
from ._acting import are_linear
from .base import Memory, check_backend, check_flag, check_size, check_state


class MatrixMemory(Memory):
    """A memory whose state is tensors of zeros at first, with sizes `state_shapes`, behind projections of the features."""

    state_type: Any

    def __init__(self, input_size: int, output_size: int | None, memory_size: int, backend: str):
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.memory_size = check_size("memory_size", memory_size)
        self.output_size = self.memory_size if output_size is None else check_size("output_size", output_size)
        self.backend = check_backend("additive", backend)   # "delta" has the same ones

    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each field of the state, without the batch."""
        raise NotImplementedError

    def initial_state(self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
                      generator: torch.Generator | None = None) -> State:
        """An empty memory: zeros."""
        check_size("batch_size", batch_size)
        device, dtype = self.state_options(device, dtype)
        return self.state_type(*(torch.zeros(batch_size, *shape, device=device, dtype=dtype) for shape in self.state_shapes()))

    def begin(self, x: Tensor, state: Any, reset: Tensor | None, resets_only_at_start: bool,
              starts_fresh: bool) -> tuple[Any, Tensor | None]:
        """Check a call; the state to start from, and the resets that are left to do."""
        self.check_inputs(x, state, reset)
        if state is None:
            state = self.initial_state(x.shape[0], device=x.device)
        for name, s, shape in zip(state._fields, state, self.state_shapes(), strict=True):
            check_state(name, s, shape)
        state = self.widen(state)
        if reset is None or not resets_only_at_start or x.shape[1] == 1:
            return state, reset
        fresh = states.apply(torch.zeros_like, state)
        return fresh if starts_fresh else states.where(reset[:, 0], fresh, state), None

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.output_size}, memory_size={self.memory_size}"


def project(x: Tensor, *layers: nn.Linear) -> list[Tensor]:
    """The outputs of all layers for x, by one matrix product. Layers that were replaced, or have a hook, are called instead."""
    if not are_linear(*layers):
        return [layer(x) for layer in layers]
    weight = torch.cat([layer.weight for layer in layers])
    if all(layer.bias is None for layer in layers):
        return list(F.linear(x, weight).split([layer.out_features for layer in layers], dim=-1))
    bias = torch.cat([weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers])
    return list(F.linear(x, weight, bias).split([layer.out_features for layer in layers], dim=-1))


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32 where it is narrower, so that what is read is float32 and can still be divided."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def input_norm(input_size: int, wanted: bool) -> nn.LayerNorm | None:
    """The LayerNorm on the features, if wanted."""
    if check_flag("input_norm", wanted) and input_size == 1:
        raise ValueError("input_norm would make a single feature constant; pass input_norm=False with input_size=1")
    return nn.LayerNorm(input_size) if wanted else None


def perceptron(width: int) -> nn.Sequential:
    """Two layers with relu after each, on what POPGym's blocks read."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
