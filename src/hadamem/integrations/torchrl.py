"""hadamem's memories in TorchRL.

    from hadamem.integrations.torchrl import MemoryModule

    memory = MemoryModule(hm.make_memory("shm", 64, 64, memory_size=32), in_key="embed", out_key="remembered")
    env = TransformedEnv(env, Compose(InitTracker(), memory.make_tensordict_primer()))

It is used as `torchrl.modules.GRUModule` is: step by step in collectors, over whole sequences in losses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    from tensordict import TensorDictBase, unravel_key
    from tensordict.nn import TensorDictModuleBase, dispatch
    from torchrl.data import Unbounded
    from torchrl.envs import TensorDictPrimer
    from torchrl.modules import recurrent_mode
except ImportError as error:
    raise ImportError(f"hadamem.integrations.torchrl needs torchrl ({error}): pip install 'hadamem[torchrl]'") from error

from ..memory import Memory
from ._packing import pack, packed_width, renew, unpack


class MemoryModule(TensorDictModuleBase):
    """A memory that reads and writes tensordicts.

    in_key, out_key: of the memory's input [*, input_size] and output [*, output_size]. state_key: of its packed state, read at
    `state_key` and written to ("next", state_key). init_key: of the flags that `InitTracker` writes.

    By default, every entry of a tensordict is one step, and rows that open an episode start with a fresh state, which is also written to
    `state_key` (without a primer the last state of the episode before stands there). In recurrent mode (`set_recurrent_mode`, which
    TorchRL's losses switch on), the last batch dimension is time. A sequence then starts from the state stored with its first step, also
    at every step within it where init_key is set: GAE sets it at the second step of an episode as well, for the values of next steps.
    Stored next states stay as they are; where there are none, those written are zeros (no state) except after the last step of the
    longest sequences.
    """

    def __init__(self, memory: Memory, *, in_key: Any, out_key: Any, state_key: Any = "memory_state", init_key: Any = "is_init",
                 default_recurrent_mode: bool = False):
        super().__init__()
        if not isinstance(memory, Memory):
            raise TypeError(f"memory must be a hm.Memory, got {type(memory).__name__}; make one with hm.make_memory(name, input_size)")
        self.memory = memory
        state_key = unravel_key(state_key)
        after = ("next", *state_key) if isinstance(state_key, tuple) else ("next", state_key)
        self.in_keys = [unravel_key(in_key), state_key, unravel_key(init_key)]
        self.out_keys = [unravel_key(out_key), after]
        self.default_recurrent_mode = default_recurrent_mode

    @property
    def recurrent_mode(self) -> bool:
        """Whether the last batch dimension is time."""
        mode = recurrent_mode()
        return self.default_recurrent_mode if mode is None else mode

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """A transform for the env: every episode starts with a fresh state."""
        fresh = _FreshStates(self.memory, self.in_keys[1])
        spec = Unbounded(shape=(packed_width(self.memory),))
        fresh.primer = TensorDictPrimer({self.in_keys[1]: spec}, default_value=fresh, expand_specs=True)
        return fresh.primer

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        x_key, state_key, init_key = self.in_keys
        shape = tensordict.shape
        T = shape[-1] if self.recurrent_mode else 1
        x = tensordict.get(x_key)
        start, vectors = tensordict.get(init_key, None), tensordict.get(state_key, None)
        if start is None:
            raise KeyError(f"{init_key!r} is missing; add torchrl.envs.InitTracker() to the env's transforms")
        x, start = x.reshape(-1, T, x.shape[-1]), start.reshape(-1, T)
        if vectors is None:
            vectors = x.new_zeros(*x.shape[:2], packed_width(self.memory))
        vectors = vectors.reshape(*x.shape[:2], -1)
        if self.recurrent_mode:
            y, after = self._run(x, start, vectors)
        else:
            before = renew(self.memory, vectors[:, 0], start[:, 0])
            tensordict.set(state_key, before.reshape(*shape, -1))      # learning starts from what acting did
            y, state = self.memory.step(x[:, 0], unpack(self.memory, before))
            after = pack(state)
        y_key, after_key = self.out_keys
        tensordict.set(y_key, y.reshape(*shape, -1))
        if not self.recurrent_mode or tensordict.get(after_key, None) is None:
            tensordict.set(after_key, after.reshape(*shape, -1))
        return tensordict

    def _run(self, x: Tensor, start: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, D], start [B, T], vectors [B, T, W] -> y [B, T, output_size] and the states after each step [B, T, W], where known."""
        B, T, D = x.shape
        start = torch.cat([torch.ones_like(start[:, :1]), start[:, 1:]], dim=1)
        begin = start.flatten().nonzero()[:, 0]                               # [N] first steps of all sequences
        length = torch.diff(begin, append=begin.new_tensor([B * T]))          # [N]
        offset = torch.arange(int(length.max()), device=x.device)
        steps = (begin[:, None] + offset).clamp(max=B * T - 1)                # [N, L] past its end, a sequence reads on: y is not used
        y, state = self.memory(x.reshape(B * T, D)[steps], unpack(self.memory, vectors.flatten(0, 1)[begin]))
        whole = length == offset.shape[0]
        after = torch.zeros_like(vectors).flatten(0, 1).index_copy(0, steps[whole, -1], pack(state)[whole])
        return y[offset < length[:, None]].reshape(B, T, -1), after.reshape(vectors.shape)


class _FreshStates:
    """Makes the fresh states of a primer, one for each env: random parts of a state differ between them."""

    primer: TensorDictPrimer

    def __init__(self, memory: Memory, key: Any):
        self.memory, self.key = memory, key

    @torch.no_grad()
    def __call__(self) -> Tensor:
        spec = self.primer.primers[self.key]
        state = self.memory.initial_state(spec.shape[:-1].numel(), device=spec.device)
        return pack(state, fresh=True).reshape(spec.shape)
