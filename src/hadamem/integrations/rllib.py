"""hadamem's memories in RLlib (the new API stack).

    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from hadamem.integrations.rllib import MemoryModule

    spec = RLModuleSpec(module_class=MemoryModule, model_config=dict(memory="shm", memory_size=64, max_seq_len=32))
    config = PPOConfig().environment(...).rl_module(rl_module_spec=spec)

RLlib stores the state after every step with the episode, gives a new episode the initial state, and cuts episodes into sequences of at most
`max_seq_len` steps, padded at their ends. So states never need to be reset within a sequence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

try:
    from gymnasium.spaces import Box
    from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.models.base import ENCODER_OUT
    from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
    from ray.rllib.core.rl_module.torch import TorchRLModule
except ImportError as error:
    raise ImportError(f"hadamem.integrations.rllib needs RLlib ({error}): pip install 'hadamem[rllib]'") from error

from ..memory import Memory, make_memory
from ._packing import pack, packed_width, starts_at_random, unpack

DEFAULTS: dict[str, Any] = {"memory": "shm", "memory_size": None, "memory_output_size": None, "memory_options": None, "max_seq_len": 20}
SEED = "memory_seed"      # column of the seeds of fresh states, for memories that have random ones


class Trunk(nn.Module):
    """RLlib's encoder of observations, then a memory."""

    def __init__(self, encoder: nn.Module, memory: Memory):
        super().__init__()
        self.encoder, self.memory = encoder, memory

    def forward(self, obs: Tensor, vector: Tensor, seeds: Tensor | None) -> tuple[Tensor, Tensor]:
        """obs [B, T, ...], packed states [B, W], seeds [B] of fresh ones -> y [B, T, output_size] and the packed states after step T."""
        x = _apply(lambda steps: self.encoder({Columns.OBS: steps})[ENCODER_OUT], obs)
        state = unpack(self.memory, vector, seeds=seeds)
        if x.shape[1] == 1:
            y, state = self.memory.step(x[:, 0], state)
            return y[:, None], pack(state)
        y, state = self.memory(x, state)
        return y, pack(state)


class MemoryModule(TorchRLModule, ValueFunctionAPI):
    """Actor and critic with a hadamem memory each, or with one for both, for PPO and other algorithms that need policy and values.

    Options in `model_config`:

    - memory: a name of `hm.list_memories()`, or package.module:Class. memory_size, memory_output_size: widths of the memory and of its
      output; None: the memory's own defaults. memory_options: further options of `hm.make_memory`.
    - max_seq_len: longest sequence to learn from, in steps (default 20); gradients do not reach further back.
    - vf_share_layers: True for one encoder and memory for actor and critic. PPO's default is False.
    - RLlib's options of encoders and heads: fcnet_hiddens, conv_filters, head_fcnet_hiddens, free_log_std and so on.
    """

    def setup(self) -> None:
        given: Any = self.model_config or {}
        config = self.model_config = {**DEFAULTS, **(given if isinstance(given, dict) else dataclasses.asdict(given))}
        _check(config)
        catalog: Any = self.catalog or _make_catalog(self.observation_space, self.action_space, config)
        encoder = catalog.actor_critic_encoder_config.base_encoder_config
        names = ["actor"] if config.get("vf_share_layers", True) else ["actor", "critic"]
        trunks = {name: Trunk(encoder.build(framework="torch"), _make_memory(config, encoder.output_dims[0])) for name in names}
        memory = trunks["actor"].memory
        self.trunks: Any = nn.ModuleDict(trunks)
        self.starts_at_random = starts_at_random(memory)
        catalog.latent_dims = catalog.vf_head_config.input_dims = (memory.output_size,)      # heads read the memory
        self.pi = catalog.build_pi_head(framework="torch")
        self.vf = catalog.build_vf_head(framework="torch")
        self.action_dist_cls = catalog.get_action_dist_cls(framework="torch")

    def get_initial_state(self) -> dict[str, np.ndarray]:
        """No state yet, as zeros: the first step makes a fresh one."""
        return {name: np.zeros(packed_width(trunk.memory), np.float32) for name, trunk in self.trunks.items()}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if self.starts_at_random:      # drawn here, stored by RLlib, and found in the batch when learning
            batch = {**batch, SEED: torch.randint(1 << 31, batch[Columns.OBS].shape[:2])}
        y, after = self._run(batch, list(self.trunks))
        seeds = {SEED: batch[SEED]} if self.starts_at_random else {}
        return {Columns.ACTION_DIST_INPUTS: _apply(self.pi, y["actor"]), Columns.STATE_OUT: after, **seeds}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        y, after = self._run(batch, list(self.trunks))
        return {Columns.ACTION_DIST_INPUTS: _apply(self.pi, y["actor"]), Columns.STATE_OUT: after, Columns.EMBEDDINGS: y[self._critic]}

    def compute_values(self, batch: dict[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """Values [B, T]. embeddings: from `forward_train` on this batch."""
        if embeddings is None:
            y, _ = self._run(batch, [self._critic])
            embeddings = y[self._critic]
        return _apply(self.vf, embeddings).squeeze(-1)

    @property
    def _critic(self) -> str:
        return "critic" if "critic" in self.trunks else "actor"

    def _run(self, batch: dict[str, Any], names: list[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Outputs [B, T, output_size] and packed states of these trunks."""
        seeds = batch[SEED][:, 0] if SEED in batch else None
        done = {name: self.trunks[name](batch[Columns.OBS], batch[Columns.STATE_IN][name], seeds) for name in names}
        return {name: y for name, (y, _) in done.items()}, {name: after for name, (_, after) in done.items()}


def _apply(net: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A network of RLlib on x [B, T, ...]: some of them take single steps [B, ...] only."""
    return net(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _check(config: dict[str, Any]) -> None:
    unknown = sorted(name for name in config if name.startswith("memory") and name not in DEFAULTS)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r} in model_config; options of the memory are {', '.join(DEFAULTS)}")
    if config.get("use_lstm"):
        raise TypeError("use_lstm does not apply to MemoryModule; set memory='lstm' in model_config for an LSTM")


def _make_catalog(observation_space: Any, action_space: Any, config: dict[str, Any]) -> PPOCatalog:
    """What builds RLlib's encoders and heads."""
    if not isinstance(observation_space, Box) or len(observation_space.shape) not in (1, 3):
        raise ValueError(f"observation_space must be a Box of one or three dimensions, got {observation_space}; set "
                         "env_to_module_connector=lambda env, spaces, device: FlattenObservations() in config.env_runners")
    return PPOCatalog(observation_space, action_space, config)


def _make_memory(config: dict[str, Any], input_size: int) -> Memory:
    size = config["memory_size"]
    return make_memory(config["memory"], input_size, config["memory_output_size"], **({} if size is None else {"memory_size": size}),
                       **(config["memory_options"] or {}))
