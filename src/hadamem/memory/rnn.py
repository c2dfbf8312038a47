"""GRU and LSTM behind the memory interface, on fused kernels even when episodes end inside a sequence.

On a GPU, sequences of a GRU with up to 128 units run in `kernels.gru`, and so do those of any GRU or LSTM (`kernels.lstm`) in which
episodes may end, or which have more units and become part of a CUDA graph. Everything else runs in PyTorch's kernels, and these cannot
reset a state in the middle. Eagerly, a sequence with resets is cut into episodes, each a row of one packed call; without resets inside it
is one plain call. Under torch.compile or graph capture the positions of resets cannot be read, so the cell runs step by step with a masked
state, unless the hint `resets_only_at_start` says that only the first step can open an episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .. import kernels
from ..cuda_graphs import planned
from .base import Memory, check_backend, check_size, check_state
from .inspection import Shown


class GRUState(NamedTuple):
    h: Tensor   # [B, H]


class LSTMState(NamedTuple):
    h: Tensor   # [B, H]
    c: Tensor   # [B, H]


class _RNN(Memory):
    """What GRU and LSTM share; a subclass names its library module, its state and its kernel, and has a cell."""

    kind: Callable[..., nn.RNNBase]
    state_type: Any
    op: str                                     # in `hadamem.kernels`

    def __init__(self, input_size: int, output_size: int | None = None, memory_size: int = 256, *, backend: str = "auto"):
        super().__init__()
        self.backend = check_backend(self.op, backend, "torch")
        self.input_size = check_size("input_size", input_size)
        self.memory_size = check_size("memory_size", memory_size)
        self.output_size = self.memory_size if output_size is None else check_size("output_size", output_size)
        self.rnn = self.kind(self.input_size, self.memory_size, batch_first=True)
        self.out = None if output_size is None else nn.Linear(self.memory_size, self.output_size)

    def train(self, mode: bool = True):
        """The library module stays in training mode: cuDNN gives no gradients otherwise, and without dropout nothing else differs."""
        super().train(mode)
        self.rnn.train()
        return self

    def initial_state(self, batch_size, device=None, dtype=None, generator=None):
        check_size("batch_size", batch_size)
        device, dtype = self.state_options(device, dtype)
        return self.state_type(*(torch.zeros(batch_size, self.memory_size, device=device, dtype=dtype) for _ in self.state_type._fields))

    def _scattered(self) -> bool:
        """Whether cuDNN would have to gather the weights. Moving them without need would pull them from under a captured CUDA graph."""
        return len({w.untyped_storage().data_ptr() for w in self.rnn.parameters()}) > 1

    def forward(self, x, state=None, reset=None, *, resets_only_at_start=False):
        self.check_inputs(x, state, reset)
        state = self.initial_state(x.shape[0], device=x.device) if state is None else state
        for name, s in zip(state._fields, state, strict=True):
            check_state(name, s, (self.memory_size,))
        state = self.widen(state)
        if x.is_cuda and not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing() and self._scattered():
            self.rnn.flatten_parameters()     # a copied module's weights are not contiguous
        wide, narrow = state[0].dtype, self.rnn.weight_ih_l0.dtype
        x, state = x.to(narrow), tuple(s.to(narrow) for s in state)
        if self._has_kernel(x, whole=reset is None or resets_only_at_start):
            y, state = self._kernel(x, state, reset)
        elif reset is None or x.shape[1] == 1 or resets_only_at_start:
            y, state = self._plain(x, state if reset is None else _clear(reset[:, 0], state))
        elif torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            y, state = self._masked_loop(x, state, reset)
        else:
            state = _clear(reset[:, 0], state)
            inside = reset[:, 1:]
            y, state = self._episodes(x, state, inside) if bool(inside.any()) else self._plain(x, state)
        y = y if self.out is None else self.out(y)
        return y, self.state_type(*(s.to(wide) for s in state))

    def _has_kernel(self, x: Tensor, whole: bool) -> bool:
        """Whether x goes through a kernel of our own. whole: no episode ends inside x."""
        if self.backend != "auto":
            return self.backend != "torch"
        if not x.is_cuda or x.shape[1] == 1 or torch.is_autocast_enabled("cuda"):
            return False
        return self._kernel_is_faster(x.dtype, whole)

    def _kernel_is_faster(self, dtype: torch.dtype, whole: bool) -> bool:
        """A kernel for each step is faster than cuDNN in a CUDA graph alone, and not for a small layer, all steps of which cuDNN joins."""
        return (not whole or (self.memory_size > 128 and planned())) and self._kernel_works(dtype)

    def _kernel_works(self, dtype: torch.dtype) -> bool:
        raise NotImplementedError

    def _kernel(self, x: Tensor, state: tuple[Tensor, ...], reset: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        raise NotImplementedError

    def _plain(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, last = self.rnn(x, self._pack_state(state))
        return y, self._unpack_state(last)

    def _episodes(self, x: Tensor, state: tuple[Tensor, ...], inside: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Every episode as its own row of one packed call: x [B, T, D], inside [B, T-1] the resets after the first step."""
        B, T, D = x.shape
        opens = torch.cat((inside.new_ones(B, 1), inside), dim=1)                     # [B, T] an episode's first step here
        start = opens.flatten().nonzero()[:, 0]                                       # [E] places in the flattened batch
        length = torch.diff(start, append=start.new_full((1,), B * T))                # [E]
        place = start[:, None] + torch.arange(int(length.max()), device=x.device)     # [E, longest]
        padded = x.reshape(B * T, D)[place.clamp(max=B * T - 1)]
        carried = (start % T == 0)[:, None]                                           # a row's first piece continues from its state
        state = tuple(torch.where(carried, s[start // T], 0.0) for s in state)
        packed = pack_padded_sequence(padded, length.cpu(), batch_first=True, enforce_sorted=False)
        y, last = self.rnn(packed, self._pack_state(state))
        y, _ = pad_packed_sequence(y, batch_first=True)                               # [E, longest, H]
        episode = opens.flatten().cumsum(0) - 1                                       # [B * T]
        y = y[episode, torch.arange(B * T, device=x.device) - start[episode]].reshape(B, T, -1)
        final = episode.reshape(B, T)[:, -1]
        return y, tuple(s[final] for s in self._unpack_state(last))

    def _masked_loop(self, x: Tensor, state: tuple[Tensor, ...], reset: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y = []
        for x_t, reset_t in zip(x.unbind(1), reset.unbind(1), strict=True):
            state = self._cell(x_t, _clear(reset_t, state))
            y.append(state[0])
        return torch.stack(y, dim=1), state

    def _weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rnn = self.rnn
        return rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0   # type: ignore[return-value]

    def _cell(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _gates(self, x: Tensor, h: Tensor) -> list[Tensor]:
        """What inputs and the state before the step give to each gate, before the sigmoid."""
        W_ih, W_hh, b_ih, b_hh = self._weights()
        count = W_hh.shape[0] // self.memory_size
        return list((F.linear(x.to(W_ih.dtype), W_ih, b_ih) + F.linear(h.to(W_hh.dtype), W_hh, b_hh)).chunk(count, dim=-1))

    def _pack_state(self, state):
        raise NotImplementedError

    def _unpack_state(self, state):
        raise NotImplementedError


class GRU(_RNN):
    """Gated recurrent unit: y = h, or with `output_size` a linear map of it. `memory_size` is the hidden size.

    backend: of `hm.kernels.gru`, or "torch" for PyTorch's own kernels (cuDNN on a GPU). "auto" is `kernels.gru` for sequences on a GPU in
    float32 that have up to 128 units, in which episodes may end, or which a trainer makes a CUDA graph of, and "torch" for all else, so
    always on a CPU.
    """

    kind, state_type, op = nn.GRU, GRUState, "gru"

    def _kernel_works(self, dtype):
        return kernels.gru_has_kernel(self.memory_size, dtype, "cuda")

    def _kernel_is_faster(self, dtype, whole):
        return kernels.gru_is_fused(self.memory_size, dtype, "cuda") or super()._kernel_is_faster(dtype, whole)

    def _kernel(self, x, state, reset):
        W_ih, W_hh, b_ih, b_hh = self._weights()
        y = kernels.gru(F.linear(x, W_ih, b_ih), W_hh, b_hh, state[0], reset, self.backend)
        return y, (y[:, -1],)

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        r, z, _ = self._gates(x, self.reopened(state, reset).h)     # the third is not linear in h
        return {"h": Shown(self.step(x, state, reset)[1].h, "state", "the hidden state"),
                "z": Shown(z.sigmoid(), "factor", "the update gate: the share of the old state that stays"),
                "r": Shown(r.sigmoid(), "gate", "the reset gate: how much of the old state the new value sees")}

    def _cell(self, x, state):
        return (torch.gru_cell(x, state[0], *self._weights()),)

    def _pack_state(self, state):
        return state[0][None].contiguous()

    def _unpack_state(self, state):
        return (state[0],)


class LSTM(_RNN):
    """Long short-term memory: y = h, or with `output_size` a linear map of it. `memory_size` is the hidden size.

    backend: of `hm.kernels.lstm`, or "torch" for PyTorch's own kernels (cuDNN on a GPU). "auto" is `kernels.lstm` for sequences on a GPU in
    float32 in which episodes may end, or which have more than 128 units and which a trainer makes a CUDA graph of; "torch" for all else, so
    always on a CPU.
    """

    kind, state_type, op = nn.LSTM, LSTMState, "lstm"

    def _kernel_works(self, dtype):
        return kernels.lstm_has_kernel(dtype, "cuda")

    def _kernel(self, x, state, reset):
        W_ih, W_hh, b_ih, b_hh = self._weights()
        y, c = kernels.lstm(F.linear(x, W_ih, b_ih + b_hh), W_hh, state[0], state[1], reset, self.backend)
        return y, (y[:, -1], c)

    @torch.no_grad()
    def inspect(self, x, state, reset=None):
        h, c = self.step(x, state, reset)[1]
        i, f, _, o = self._gates(x, self.reopened(state, reset).h)
        return {"c": Shown(c, "state", "the cell state"), "h": Shown(h, "read", "what the output gate lets out"),
                "f": Shown(f.sigmoid(), "factor", "the forget gate: the share of the old cell state that stays"),
                "i": Shown(i.sigmoid(), "gate", "the input gate"), "o": Shown(o.sigmoid(), "gate", "the output gate")}

    def _cell(self, x, state):
        return torch.lstm_cell(x, list(state), *self._weights())

    def _pack_state(self, state):
        return tuple(s[None].contiguous() for s in state)

    def _unpack_state(self, state):
        return tuple(s[0] for s in state)


def _clear(reset: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.where(reset[:, None], 0.0, s) for s in state)
