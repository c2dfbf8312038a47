"""Joins an env and an agent: builds both from the settings, and runs one iteration at a time. Knows no algorithm by name."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

from .. import envs, states
from ..agents import AgentSpec, Progress, Rollout, Source
from ..cuda_graphs import capture
from ..devices import find_device
from ..envs import trees
from ..runs.config import TrainConfig
from .collect import Collector, make_inputs
from .replay import LatestRollout, Replay, make_replay
from .seeding import env_seed, own_random_numbers

USUAL_ENVS, SHORTEST = 16, 32      # parts of episodes are so short that this many envs share an iteration, but not shorter than this
COMPILE_STEPS_FROM = 40_000        # steps per env: in shorter runs, compiling a step (about 15 s) takes longer than it saves


class Trainer:
    """One run. `iteration()` collects a rollout, lets the agent learn, and returns one row of numbers."""

    def __init__(self, config: TrainConfig, env: Any = None, graphs: bool = True):
        """env: None for the one that config names, a callable that makes a Gymnasium env, or a batched env, which the caller closes.

        graphs: on a GPU, capture collection and updates in CUDA graphs.
        """
        self.config = config
        self.owns_env = env is None or callable(env)
        self.env: Any = None if self.owns_env else env
        self.acting = False                  # envs are being stepped, and weights do not change
        self.iterations = self.env_steps = 0
        self.capture_seconds = 0.0
        try:
            self._build(env, graphs)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the env and its processes, if the trainer made it."""
        if self.owns_env and self.env is not None:
            self.env.close()

    @property
    def network(self) -> nn.Module:
        return self.agent.network

    @property
    def batch(self) -> int:
        """Env steps of one iteration."""
        return self.num_envs * self.steps

    @property
    def restarted(self) -> int:
        """How often workers of the env were started again, since this trainer exists."""
        return getattr(self.env.unwrapped, "restarted", 0)

    @property
    def done(self) -> bool:
        return self.env_steps >= self.config.total_steps

    def iteration(self) -> dict[str, float]:
        """Collect a rollout and learn from it. Returns statistics and times. The only point where the host waits for the GPU."""
        start, clock = time.perf_counter(), _Clock(self.device)
        restarted = self.restarted
        self.collector.draw(self.iterations)
        self.acting = True
        self._collect()
        self.acting = False
        if self.replay is None:
            self._clean(self.collector.rollout)
        self.collector.limit.apply(self.collector.rollout.reward)
        clock.split()
        if self.replay is not None:
            self.replay.add()
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + self.iterations)
        with self._learning(), own_random_numbers(env_seed(self.config.seed, self.iterations), self.device):      # of dropout
            statistics = self.agent.learn(self.source, Progress(self.env_steps, self.config.total_steps), generator)
        ended = self.collector.ended
        statistics |= self.collector.limit.numbers()
        statistics["bad_steps"] = self.bad if self.replay is None else self.replay.bad                # in all
        numbers = torch.cat([ended, *(torch.as_tensor(x).detach().to(ended).reshape(1) for x in statistics.values())]).tolist()
        seconds = time.perf_counter() - start
        acting = clock.first()
        self.iterations += 1
        self.env_steps += self.batch
        learned = {name: x for name, x in zip(statistics, numbers[len(ended):], strict=True) if x == x}              # nan: nothing measured
        own = {"iteration": self.iterations, "steps": self.env_steps, **self.collector.episodes(numbers[:len(ended)])}
        if self.config.env_restarts:
            own["env_restarts"] = self.restarted - restarted
        times = {"seconds": seconds, "rollout_seconds": acting, "update_seconds": seconds - acting}
        return {**own, **learned, **own, **times}            # in this order; an agent's statistic does not replace ours

    def get_state(self) -> dict[str, Tensor]:
        """Every tensor of the run, as copies: weights, optimiser, env, counters. A replay is not among them: see `Replay.chunk_names`."""
        found = {f"agent.{name}": x for name, x in self.agent.state_dict().items()}
        found |= {f"collector.{name}": x for name, x in self.collector.get_state().items()}
        found |= {"iterations": torch.tensor(self.iterations), "env_steps": torch.tensor(self.env_steps)}
        found["bad_steps"] = self.bad if self.replay is None else self.replay.bad
        return {name: x.detach().clone() for name, x in found.items()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a state of `get_state` of a run with the same configuration."""
        self.agent.load_state_dict(states.under("agent.", state))
        self.iterations, self.env_steps = int(state["iterations"]), int(state["env_steps"])
        bad = self.bad if self.replay is None else self.replay.bad
        bad.copy_(state.get("bad_steps", torch.zeros_like(bad)))      # earlier versions saved it with a replay alone
        self.collector.set_state(states.under("collector.", state), self.iterations)

    # --- internals -------------------------------------------------------------------------------------------------

    def _build(self, env: Any, graphs: bool) -> None:
        config = self.config
        self.device = self.env.device if self.env is not None and config.device == "auto" else find_device(config.device)
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.tf32
        self.steps, whole = self._make_env(env)
        self.num_envs = self.env.num_envs
        self.inputs, images = make_inputs(self.env, config)
        self.spec = AgentSpec(self.inputs.size, self.env.single_action_space, config.network, config.algorithm, images, self.inputs.parts,
                              self.inputs.numbers)
        with torch.random.fork_rng(devices=[]):              # leave the caller's generator alone
            torch.manual_seed(config.seed)
            self.agent = config.agent_class(self.spec, self.device)
        self.agent.network.eval()
        if all(module is not self.agent.actions for module in self.agent.network.modules()):
            raise TypeError(f"{type(self.agent).__name__}.actions must be a submodule of its network: set self.actions there, too")
        wanted = self.agent.replay
        next_obs = "none" if wanted is None else "last" if whole and wanted.length is None else "all"
        self.collector = Collector(self.env, self.agent, self.inputs, self.steps, config.seed, whole, next_obs)
        rollout = self.collector.rollout
        self.replay: Replay | None = None
        if wanted is not None:
            self.replay = make_replay(rollout, wanted, self.inputs, self.agent.actions.to_env, self.collector.dtype)
        self.bad = torch.zeros((), dtype=torch.int64, device=self.device)      # steps that were not finite, in all; a replay has its own
        self.source: Source = LatestRollout(rollout) if self.replay is None else self.replay
        self.agent.attach(self.source)
        self._collect: Callable[[], None] = self.collector.collect
        if graphs and self.device.type == "cuda":
            self._capture()

    def _make_env(self, env: Any) -> tuple[int, bool]:
        """Make `self.env`. Returns the length of rollouts, and whether each of them is exactly one episode."""
        config = self.config
        divisor = 1 if config.agent_class.envs_divisible_by is None else getattr(config.algorithm, config.agent_class.envs_divisible_by)
        if self.owns_env:
            make: Any = functools.partial(envs.make, config.env) if env is None else functools.partial(envs.adapt, env)
            probe = make(num_envs=1, **config.env_options)
            length, fixed = _episodes(probe)
            probe.close()
            steps = self._rollout_steps(length, fixed)
            n = config.num_envs or divisor * max(1, round(config.iteration_steps / steps / divisor))
            options: dict[str, Any] = {"device": self.device, "seed": config.seed, **config.env_options}
            if not probe.unwrapped.restorable:
                options |= worker_options(config)
            self.env = make(num_envs=n, **options)
        else:
            if config.env_restarts or config.env_timeout is not None:
                raise ValueError("env_restarts and env_timeout are for worker processes, but env exists already; pass its class or name to "
                                 "have them made, or leave them out")
            length, fixed = _episodes(env)
            steps = self._rollout_steps(length, fixed)
            if config.num_envs not in (None, env.num_envs):
                raise ValueError(f"num_envs is {config.num_envs}, but env has {env.num_envs}; pass its class or name to have copies made")
            if env.device != torch.empty(0, device=self.device).device:
                raise ValueError(f"env is on {env.device}, but device is {config.device!r}; make them the same")
        mode = self.env.unwrapped.autoreset_mode
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(f"env must reset in the step that ends an episode (autoreset_mode='same_step'), got {mode.name.lower()}; "
                             "pass its id or a callable that makes a single one")
        if self.env.num_envs % divisor:
            raise ValueError(f"num_envs ({self.env.num_envs}) must be a multiple of {config.agent_class.envs_divisible_by} ({divisor})")
        return steps, fixed and steps == length

    def _rollout_steps(self, length: int | None, fixed: bool) -> int:
        """Steps of each env per iteration. length: of the longest episodes; fixed: of all."""
        config, usual = self.config, self.config.agent_class.rollout_steps
        if config.num_steps is not None:
            return config.num_steps
        if usual is not None and not (fixed and length is not None and length <= config.max_num_steps):
            return usual
        if fixed and length is not None and length <= config.max_num_steps:
            return length
        return min(length or 128, config.max_num_steps, max(SHORTEST, config.iteration_steps // USUAL_ENVS))

    def _capture(self) -> None:
        """Replace collection and the agent's updates by CUDA graphs. Capturing runs them; their effects are undone afterwards."""
        start, agent = time.perf_counter(), self.agent
        before = self.get_state()
        if self.env.unwrapped.restorable:            # a foreign env is not on the GPU: only updates are captured
            self.collector.draw(0)
            if self.config.compile and self.config.total_steps >= COMPILE_STEPS_FROM * self.num_envs:
                self._compile_steps()
            self._collect = capture(self.collector.collect, self.device, warm_up=1)
            self.collector.set_state(states.under("collector.", before), self.iterations)
        plain = {name: getattr(agent, name) for name in (*agent.compiled, *agent.graphs)}
        try:
            if self.config.compile:
                for name in agent.compiled:
                    setattr(agent, name, torch.compile(plain[name], dynamic=False, options=_compile_options()))
            self._capture_updates()
        except Exception as error:   # no C compiler, or something that the compiler does not support
            if not self.config.compile:
                raise
            warnings.warn(f"hadamem: torch.compile failed; training continues without it (slower). Cause: {error}"[:500],
                          RuntimeWarning, stacklevel=2)
            for name, call in plain.items():
                setattr(agent, name, call)
            agent.load_state_dict(states.under("agent.", before))
            self._capture_updates()
        agent.load_state_dict(states.under("agent.", before))
        torch.cuda.synchronize(self.device)
        self.capture_seconds = time.perf_counter() - start

    def _compile_steps(self) -> None:
        try:
            self.collector.compile(options=_compile_options())
        except Exception as error:   # the task does something that the compiler does not support
            warnings.warn(f"hadamem: torch.compile failed for acting, which continues without it (slower). Cause: {error}"[:500],
                          RuntimeWarning, stacklevel=2)

    def _capture_updates(self) -> None:
        with self._learning():
            for name in self.agent.graphs:
                setattr(self.agent, name, capture(getattr(self.agent, name), self.device))

    @contextlib.contextmanager
    def _learning(self) -> Iterator[None]:
        """Within a `with` block the network is in training mode, where some memories have dropout. It acts without."""
        self.agent.network.train()
        try:
            yield
        finally:
            self.agent.network.eval()

    def _clean(self, rollout: Rollout) -> None:
        """Rewards that are not finite count as 0, and so do observations (`AgentInputs`). Both are counted, step by step."""
        good = torch.isfinite(rollout.reward)
        for leaf in trees.leaves(rollout.obs):
            if leaf.is_floating_point():
                good = good & torch.isfinite(leaf).flatten(2).all(2) if leaf.ndim > 2 else good & torch.isfinite(leaf)
        self.bad += good.numel() - good.sum()
        rollout.reward.nan_to_num_(0.0, 0.0, 0.0)


def worker_options(config: TrainConfig) -> dict[str, Any]:
    """What `envs.adapt` is told about worker processes. hadamem's tasks need none."""
    found = {"workers": config.workers, "env_restarts": config.env_restarts or None, "env_timeout": config.env_timeout}
    return {name: x for name, x in found.items() if x is not None}


def _compile_options() -> dict[str, Any]:
    """Let Inductor choose kernels without timing them: runs of one seed then agree between builds, at the same speed."""
    from torch._inductor import config

    return {"deterministic": True} if hasattr(config, "deterministic") else {}      # torch 2.9 or newer


def _episodes(env: Any) -> tuple[int | None, bool]:
    """The length of an env's longest episodes, and whether all have it."""
    inner = env.unwrapped
    return inner.episode_steps, inner.fixed_length and inner.max_episode_steps is None


class _Clock:
    """Measures the time until `split`, on a GPU without waiting for it; ask `first` after the host has waited."""

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
