"""Evaluation while training: when it is due, on which episodes, and in an env of its own. Nothing of the training changes through it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import cuda_graphs, envs, states
from ..envs import trees
from .evaluate import Now, Step, advance, begin, check_env, count_episodes, play
from .policy import Policy
from .seeding import own_random_numbers
from .trainer import Trainer, worker_options

COPIES, FOREIGN_COPIES = 256, 8      # of the env, at most; every Gymnasium env takes a process's time and memory
FIRST_SEED = 1 << 29                 # `hadamem eval` has small seeds, and so other episodes


class Evaluator:
    """Evaluates a trainer's policy every `eval_every` env steps. Close it at the end."""

    def __init__(self, trainer: Trainer, env: Any = None):
        """env: as it was given to the trainer: None, or a callable that makes a Gymnasium env."""
        self.trainer, self.config = trainer, trainer.config
        self.policy = Policy.of(trainer)
        self.env = self._make(env)
        try:
            check_env(self.policy, self.env)
        except BaseException:
            self.close()
            raise
        graph = self.trainer.device.type == "cuda" and self.env.unwrapped.restorable and self.config.eval_deterministic
        self.graphed = GraphedPlay(self.policy, self.env) if graph else None

    def due(self, before: int) -> bool:
        """Whether the last iteration, which began at env step `before`, passed a multiple of `eval_every` or was the last one."""
        every, trainer = self.config.eval_every, self.trainer
        return trainer.done or trainer.env_steps // every > before // every

    def evaluate(self) -> dict[str, float]:
        """Play the episodes of this iteration: entries for its row of metrics."""
        start = time.perf_counter()
        seed = FIRST_SEED + self.trainer.iterations % FIRST_SEED
        with own_random_numbers(seed, self.trainer.device):
            steps = play(self.policy, self.env, seed, self.config.eval_deterministic) if self.graphed is None else self.graphed.play(seed)
            found = count_episodes(steps, self.env, self.config.eval_episodes)
        length = sum(found.lengths) / found.episodes
        row = {"eval_return": found.mean, "eval_return_std": found.std, "eval_success": found.success, "eval_length": length,
               "eval_episodes": found.episodes, "eval_seconds": time.perf_counter() - start}
        return {name: x for name, x in row.items() if x is not None}

    def close(self) -> None:
        """Close the env and its processes."""
        self.env.close()

    def _make(self, env: Any) -> Any:
        config, trained = self.config, self.trainer.env.unwrapped
        make: Any = functools.partial(envs.make, config.env) if env is None else functools.partial(envs.adapt, env)
        options: dict[str, Any] = {**config.env_options, **config.eval_env_options}
        if not trained.restorable:
            options = {**worker_options(config), **options}
        copies = COPIES if trained.restorable else FOREIGN_COPIES
        try:
            return make(num_envs=min(config.eval_episodes, copies), device=self.trainer.device, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the env for evaluations cannot be made with eval_env_options {config.eval_env_options}: {error}") from error


class GraphedPlay:
    """`play` with the most likely actions, as a CUDA graph of one step that later evaluations use again.

    Parameters of the network and tensors of the env stay where they are, and what a step passes to the next one is copied to its place.
    """

    def __init__(self, policy: Policy, env: Any):
        self.policy, self.env = policy, env
        self.generator = torch.Generator(policy.device)
        self.now: Now | None = None
        self.last: Step | None = None
        self.step: Callable[[], None] | None = None

    def play(self, seed: int) -> Iterator[Step]:
        """Play the episodes of evaluation `seed`, without end. What a step gives is overwritten by the next one."""
        self._begin(seed)
        if self.step is None:
            self.step = cuda_graphs.capture(self._step, self.policy.device)
            self._begin(seed)      # that made steps
        while True:
            self.step()
            assert self.last is not None
            yield self.last

    def _begin(self, seed: int) -> None:
        now = begin(self.policy, self.env, seed, self.generator.manual_seed(seed))
        if self.now is None:
            self.now = now._replace(obs=trees.apply(torch.clone, now.obs))
        else:
            self._carry(now)

    def _step(self) -> None:
        assert self.now is not None
        now, self.last = advance(self.policy, self.env, self.now, True, self.generator)
        self._carry(now)

    def _carry(self, new: Now) -> None:
        now = self.now
        assert now is not None
        trees.apply(torch.Tensor.copy_, now.obs, new.obs)
        now.reward.copy_(new.reward)
        now.first.copy_(new.first)
        for mine, other in zip(states.tensors(now.state), states.tensors(new.state), strict=True):
            mine.copy_(other)


def check_possible(config: Any, env: Any) -> None:
    """Raise a ValueError if evaluations are wanted, but their env cannot be made. env: see `Trainer`."""
    if config.eval_every and env is not None and not callable(env):
        raise ValueError(f"eval_every is {config.eval_every}, but env exists already, and evaluations need one of their own; pass its "
                         "name, its class or a function that makes it, or set eval_every to 0")
