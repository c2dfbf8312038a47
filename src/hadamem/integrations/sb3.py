"""hadamem's memories in sb3-contrib's RecurrentPPO.

    from sb3_contrib import RecurrentPPO
    from hadamem.integrations.sb3 import MemoryPolicy

    model = RecurrentPPO(MemoryPolicy, env, policy_kwargs=dict(memory="shm", memory_size=64))
    model.learn(100_000)

RecurrentPPO carries the state of an LSTM: two tensors h and c [layers, batch, width], zero at first. Here they are the two halves of a
memory's state as a vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

try:
    from gymnasium import spaces
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
    from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
except ImportError as error:
    raise ImportError(f"hadamem.integrations.sb3 needs sb3-contrib ({error}): pip install 'hadamem[sb3]'") from error

from .. import states
from ..memory import Memory, make_memory
from ._packing import pack, packed_width, unpack

Pair = tuple[Tensor, Tensor]   # h and c, each [1, B, hidden_size]


class MemoryCell(nn.Module):
    """A memory with the attributes and the state of an `nn.LSTM` of one layer."""

    num_layers = 1

    def __init__(self, memory: Memory):
        super().__init__()
        self.memory = memory
        self.input_size = memory.input_size
        self.width = packed_width(memory)
        self.hidden_size = (self.width + 1) // 2

    def pack(self, state: states.State) -> Pair:
        """The state as h and c: the halves of its vector."""
        vector = pack(state)
        vector = nn.functional.pad(vector, (0, vector.shape[1] % 2))
        h, c = vector[None].chunk(2, dim=-1)
        return h, c

    def unpack(self, pair: Pair) -> states.State:
        """The state that `pack` wrote; a fresh one in the rows that are zero."""
        vector = torch.cat(pair, dim=-1)[0]                                   # [B, 2 * hidden_size]
        return unpack(self.memory, vector[:, :self.width])

    def forward(self, x: Tensor, pair: Pair, reset: Tensor) -> tuple[Tensor, Pair]:
        """x [B, T, input_size], reset [B, T] bool -> y [B, T, output_size] and the state after step T."""
        if x.shape[1] == 1:
            y, state = self.memory.step(x[:, 0], self.unpack(pair), reset[:, 0])
            return y[:, None], self.pack(state)
        hints = self.memory.hints(resets_only_at_start=not reset[:, 1:].any(), starts_fresh=False)
        y, state = self.memory(x, self.unpack(pair), reset, **hints)
        return y, self.pack(state)


class MemoryPolicy(RecurrentActorCriticPolicy):
    """Actor and critic with a hadamem memory each, in place of sb3-contrib's LSTMs.

    memory: a name of `hm.list_memories()`, or package.module:Class. memory_size, memory_output_size: widths of the memory and of its
    output; None: the memory's own defaults. memory_options: further options of `hm.make_memory`.

    All other options are those of `RecurrentActorCriticPolicy`, also `shared_lstm` (one memory, trained by the actor's loss alone) and
    `enable_critic_lstm` (False: a critic without memory). features_extractor_class None: chosen by the observation space, as sb3's
    MlpPolicy, CnnPolicy and MultiInputPolicy do.
    """

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, *args: Any, memory: str = "shm",
                 memory_size: int | None = None, memory_output_size: int | None = None, memory_options: dict[str, Any] | None = None,
                 features_extractor_class: Any = None, **options: Any):
        for name in {"lstm_hidden_size", "n_lstm_layers", "lstm_kwargs"} & options.keys():
            raise TypeError(f"{name} does not apply to MemoryPolicy; set memory, memory_size, memory_output_size or memory_options")
        self.memory_arguments: dict[str, Any] = dict(
            memory=memory, memory_size=memory_size, memory_output_size=memory_output_size, memory_options=dict(memory_options or {}))
        observation_space = _widened(observation_space)
        options["features_extractor_class"] = features_extractor_class or _choose_extractor(observation_space)
        super().__init__(observation_space, action_space, lr_schedule, *args, lstm_hidden_size=1, **options)   # makes LSTMs, replaced here
        self.lstm_actor = MemoryCell(self._make_memory())
        if self.enable_critic_lstm:
            self.lstm_critic = MemoryCell(self._make_memory())
        elif not self.shared_lstm:
            self.critic = nn.Linear(self.features_dim, self.lstm_output_dim)
        self.lstm_hidden_state_shape = (1, 1, self.lstm_actor.hidden_size)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def make_features_extractor(self) -> Any:
        extractor = super().make_features_extractor()
        if not isinstance(extractor.features_dim, int):      # of a MultiDiscrete: NumPy's integer, which no layer takes
            obs = preprocess_obs(self.obs_to_tensor(self.observation_space.sample())[0], self.observation_space, self.normalize_images)
            with torch.no_grad():
                extractor._features_dim = extractor(obs).shape[-1]
        return extractor

    def _make_memory(self) -> Memory:
        name, size, output_size, options = self.memory_arguments.values()
        return make_memory(name, self.features_dim, output_size, **({} if size is None else {"memory_size": size}), **options)

    def _build_mlp_extractor(self) -> None:
        self.lstm_output_dim = self._make_memory().output_size   # known only now: it may depend on features_dim
        super()._build_mlp_extractor()

    @staticmethod
    def _process_sequence(features: Tensor, lstm_states: Pair, episode_starts: Tensor, lstm: MemoryCell) -> tuple[Tensor, Pair]:
        B = lstm_states[0].shape[1]
        y, after = lstm(features.reshape(B, -1, lstm.input_size), lstm_states, episode_starts.reshape(B, -1) > 0)
        return y.flatten(0, 1), after

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.memory_arguments,
                "shared_lstm": self.shared_lstm, "enable_critic_lstm": self.enable_critic_lstm}


def _widened(space: Any) -> Any:
    """The space with MultiDiscrete parts in int64: sb3 adds up their sizes, and a sum in a smaller dtype would overflow."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _widened(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec.astype(np.int64), start=space.start.astype(np.int64))
    return space


def _choose_extractor(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return CombinedExtractor
    return NatureCNN if is_image_space(space) else FlattenExtractor
