"""One run of PPO: env, network and optimiser joined; one iteration is a rollout and its updates."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from .. import envs, states
from ..agents import PPO, ActorCritic, Batch, make_actions
from ..agents.ppo import advantages, minibatches
from ..cuda_graphs import capture
from ..devices import find_device
from .collect import Collector
from .config import TrainConfig
from .inputs import agent_env


class Trainer:
    """Builds everything from a configuration; `iteration()` trains on one rollout and says what came out."""

    def __init__(self, config: TrainConfig, env: Any = None, graphs: bool = True):
        """env: None for the one that config names, a callable that makes a Gymnasium env, or a batched env, which stays the caller's."""
        self.config = config
        self.source: Any = None if env is None or callable(env) else env        # the env before it is wrapped for the network
        self.owns_env = self.source is None
        self.acting = False                  # envs are being stepped: weights do not change
        try:
            self._build(env, graphs)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the env and its processes, if it was made here."""
        if self.owns_env and self.source is not None:
            self.source.close()

    def _build(self, env: Any, graphs: bool) -> None:
        config = self.config
        self.device = self.source.device if self.source is not None and config.device == "auto" else find_device(config.device)
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.tf32
        self.env, images, self.steps, self.whole = self._make_env(env)      # whole: every rollout is exactly one episode
        with torch.random.fork_rng(devices=[]):              # the caller's generator stays as it is
            torch.manual_seed(config.seed)
            actions = make_actions(self.env.single_action_space)
            self.network = ActorCritic(self.env.single_observation_space.shape[0], actions, config.network, images).to(self.device)
        self.ppo = PPO(self.network, config.ppo)
        self.collector = Collector(self.env, self.network, self.steps, config.seed)
        self.num_envs = self.env.num_envs
        self.iterations = 0
        self.env_steps = 0
        self.updates = config.ppo.epochs * config.ppo.minibatches
        n = self.num_envs // config.ppo.minibatches
        self.chosen = torch.zeros(n, dtype=torch.int64, device=self.device)     # the envs of the minibatch
        self.advantage = torch.zeros(self.num_envs, self.steps, device=self.device)
        self.target = torch.zeros_like(self.advantage)
        self._collect: Callable[[], None] = self._collect_eagerly
        self._update: Callable[[], None] = self._update_eagerly
        self.capture_seconds = 0.0
        if graphs and self.device.type == "cuda":
            self._capture()

    @property
    def batch(self) -> int:
        """Env steps of one iteration."""
        return self.num_envs * self.steps

    @property
    def done(self) -> bool:
        return self.env_steps >= self.config.steps

    def iteration(self) -> dict[str, float]:
        """Collect a rollout and learn from it. Returns statistics, times included; this is where the host waits for a GPU."""
        start, clock = time.perf_counter(), _Clock(self.device)
        self.collector.draw(self.iterations)
        self.acting = True
        self._collect()
        self.acting = False
        clock.split()
        self.ppo.begin(self.env_steps / self.config.steps)
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + self.iterations)
        sets = torch.stack(list(minibatches(self.num_envs, self.config.ppo, generator))).to(self.device)
        for chosen in sets:
            self.chosen.copy_(chosen)
            self._update()
        ended = self.collector.ended
        sums = torch.cat([ended, self.ppo.sums.to(ended.dtype)]).tolist()         # the one wait of an iteration
        seconds = time.perf_counter() - start
        acting = clock.first()
        self.iterations += 1
        self.env_steps += self.batch
        return {"iteration": self.iterations, "steps": self.env_steps, **self.collector.episodes(sums[:len(ended)]),
                **self.ppo.end(self.updates, sums[len(ended):]),
                "seconds": seconds, "rollout_seconds": acting, "update_seconds": seconds - acting}

    def get_state(self) -> dict[str, Tensor]:
        """All tensors of the run: weights, optimiser, env, counters."""
        found = {f"network.{name}": x.detach() for name, x in self.network.state_dict().items()}
        names = {id(p): name for name, p in self.network.named_parameters()}
        for p, values in self.ppo.optimizer.state.items():
            found |= {f"adam.{names[id(p)]}.{key}": x for key, x in values.items()}
        found |= {f"collector.{name}": x for name, x in self.collector.get_state().items()}
        found |= {"ppo.kl_coefficient": self.ppo.kl_coefficient, "ppo.value_square": self.ppo.value_square,
                  "ppo.learning_rate": self.ppo.learning_rate,
                  "iterations": torch.tensor(self.iterations), "env_steps": torch.tensor(self.env_steps)}
        return {name: x.detach().clone() for name, x in found.items()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Go on from a state of `get_state` of a run with the same configuration."""
        self._set_learner(state)
        self.iterations, self.env_steps = int(state["iterations"]), int(state["env_steps"])
        self.collector.set_state({name[10:]: x for name, x in state.items() if name.startswith("collector.")}, self.iterations)

    # --- inner works -----------------------------------------------------------------------------------------------

    def _make_env(self, env: Any) -> tuple[Any, tuple[Any, ...], int, bool]:
        """The wrapped env, its images, the length of rollouts, and whether each is exactly one episode."""
        config = self.config
        if self.owns_env:
            make: Any = functools.partial(envs.make, config.env) if env is None else functools.partial(envs.adapt, env)
            probe = make(num_envs=1, **config.env_options)
            length, fixed = _episodes(probe)
            probe.close()
            steps = config.rollout or min(length or 128, config.longest_rollout)
            n = config.num_envs or config.ppo.minibatches * max(1, round(config.batch / steps / config.ppo.minibatches))
            options: dict[str, Any] = {"device": self.device, "seed": config.seed, **config.env_options}
            if config.workers is not None and not probe.unwrapped.restorable:      # our own tasks need none
                options["workers"] = config.workers
            self.source = make(num_envs=n, **options)
        else:
            length, fixed = _episodes(env)
            steps = config.rollout or min(length or 128, config.longest_rollout)
            if config.num_envs not in (None, env.num_envs):
                raise ValueError(f"num_envs is {config.num_envs}, but env has {env.num_envs}; pass its class or name to have copies made")
            if env.device != torch.empty(0, device=self.device).device:
                raise ValueError(f"env is on {env.device}, but device is {config.device!r}; make them the same")
        env = self.source
        if env.unwrapped.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise ValueError(f"env must start its episodes anew in the step that ends them (autoreset_mode='same_step'), "
                             f"got {env.unwrapped.autoreset_mode.name.lower()}; pass its id or a callable that makes a single one")
        if env.num_envs % config.ppo.minibatches:
            raise ValueError(f"num_envs ({env.num_envs}) must be a multiple of ppo.minibatches ({config.ppo.minibatches})")
        wrapped, images = agent_env(env, config.previous_action, config.first_step)
        return wrapped, images, steps, fixed and steps == length

    def _set_learner(self, state: dict[str, Tensor]) -> None:
        """Weights, optimiser and what adapts."""
        self.network.load_state_dict({name[8:]: x for name, x in state.items() if name.startswith("network.")})
        self._make_adam_state()
        names = {id(p): name for name, p in self.network.named_parameters()}
        with torch.no_grad():
            for p, values in self.ppo.optimizer.state.items():
                for key, x in values.items():
                    x.copy_(state.get(f"adam.{names[id(p)]}.{key}", torch.zeros(())))
            self.ppo.kl_coefficient.copy_(state["ppo.kl_coefficient"])
            self.ppo.value_square.copy_(state["ppo.value_square"])
            self.ppo.learning_rate.copy_(state["ppo.learning_rate"])

    def _collect_eagerly(self) -> None:
        self.collector.collect()
        found = advantages(self.collector.rollout, self.config.ppo)
        self.advantage.copy_(found.advantage)
        self.target.copy_(found.target)
        self.ppo.follow_values(found.target)

    def _update_eagerly(self) -> None:
        r, i = self.collector.rollout, self.chosen

        skipped = {"state", "reward", "done", "bootstrap", "last_value"}        # the advantages have them
        if self.config.ppo.value_clip_range is None:
            skipped.add("value")
        fields: dict[str, Any] = {name: x if x is None else x.index_select(0, i) for name, x in r._asdict().items() if name not in skipped}
        chosen = r._replace(**fields, state=states.apply(lambda x: x.index_select(0, i), r.state))
        self.ppo.update(Batch(chosen, self.advantage.index_select(0, i), self.target.index_select(0, i)), self.whole)

    def _make_adam_state(self) -> None:
        """Adam's state comes with its first step: take one that is skipped."""
        if not self.ppo.optimizer.state:
            for p in self.ppo.parameters:
                p.grad = torch.zeros_like(p)
            self.ppo.bad.fill_(1)
            self.ppo.optimizer.step()
            self.ppo.optimizer.zero_grad(set_to_none=True)
            self.ppo.bad.zero_()

    def _capture(self) -> None:
        """Rollout and update as CUDA graphs; afterwards everything is as before."""
        start = time.perf_counter()
        self._make_adam_state()
        before = self.get_state()
        if self.env.unwrapped.restorable:            # a foreign env lives outside the GPU: only the updates are captured
            self.collector.draw(0)
            self._collect = capture(self._collect_eagerly, self.device, warm_up=1)
            self.collector.set_state({name[10:]: x for name, x in before.items() if name.startswith("collector.")}, self.iterations)
        plain = self.ppo.loss
        try:
            if self.config.compile:
                self.ppo.loss = torch.compile(plain, dynamic=False)   # type: ignore[method-assign]
            self._update = capture(self._update_eagerly, self.device)
        except Exception as error:   # no C compiler, or something that the compiler cannot do
            if not self.config.compile:
                raise
            warnings.warn(f"hadamem: the loss cannot be compiled and runs as it is (slower). Cause: {error}"[:500],
                          RuntimeWarning, stacklevel=2)
            self.ppo.loss = plain   # type: ignore[method-assign]
            self._set_learner(before)
            self._update = capture(self._update_eagerly, self.device)
        self._set_learner(before)
        self.ppo.totals.zero_()
        torch.cuda.synchronize(self.device)
        self.capture_seconds = time.perf_counter() - start


def _episodes(env: Any) -> tuple[int | None, bool]:
    """The length of an env's episodes, and whether all have it."""
    inner = env.unwrapped
    return inner.episode_steps, inner.fixed_length and inner.max_episode_steps is None


class _Clock:
    """The time until `split`, on a GPU without waiting there: `first` is asked after everything was waited for."""

    def __init__(self, device: torch.device):
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
        self.start = self.end = time.perf_counter()
        if self.events:
            self.events[0].record()

    def split(self) -> None:
        self.end = time.perf_counter()
        if self.events:
            self.events[1].record()

    def first(self) -> float:
        """Seconds."""
        return self.events[0].elapsed_time(self.events[1]) / 1e3 if self.events else self.end - self.start
