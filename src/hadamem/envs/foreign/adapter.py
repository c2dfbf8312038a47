"""`adapt` makes a batched env of a Gymnasium env or vector env: `hm.envs.adapt("CartPole-v1", num_envs=8)`."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs import registration
from gymnasium.vector import AutoresetMode
from torch import Tensor

from ... import lookup
from .. import trees
from ..base import BatchedEnv
from ..checks import checked_mode, checked_seed, positive
from .backends import Backend, InProcess
from .group import failures
from .pool import Workers
from .vector import Vector


def adapt(env: str | Callable[..., gymnasium.Env[Any, Any]] | gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any],
          num_envs: int = 1, *, device: torch.device | str = "cpu", workers: int | None = None, seed: int | None = None,
          autoreset_mode: str | AutoresetMode | None = None, max_episode_steps: int | None = None, validate: bool = False,
          first_env: int = 0, env_restarts: int = 0, env_timeout: float | None = None, **options: Any) -> AdaptedEnv:
    """Make a batched env of `num_envs` copies of a Gymnasium env, stepped in worker processes.

    env: a Gymnasium id, a callable that makes an env, a single env (num_envs is 1), or a vector env (which has its own num_envs).
    workers: number of processes, each with several envs. 0: step them in this process. None: one for each available CPU, 0 for a single
    env. Workers are new Python processes: a callable is sent by cloudpickle, and modules that it needs are imported again there.
    env_restarts: how often a worker that dies, or takes longer than env_timeout seconds (None: no limit) for a step or reset, is started
    again, with new envs and other seeds. The episodes of its envs end truncated, with the last observation, reward 0, and
    {"env_restarted": True} in final_info. Without restarts left, it is an EnvError. Needs autoreset_mode "same_step".
    autoreset_mode: None is "same_step" where possible; some vector envs can only use their own mode.
    max_episode_steps: longer episodes are truncated; it is passed to `gymnasium.make`, and to a callable that takes it, which is then in
    charge of it. options: passed to `gymnasium.make` or to the callable. Other arguments are as in `BatchedEnv`. Env i gets the seed
    seed + first_env + i, as in Gymnasium: use seeds for different runs that are further apart than num_envs.
    """
    mode = None if autoreset_mode is None else checked_mode(autoreset_mode)
    backend: Backend
    if isinstance(env, gymnasium.vector.VectorEnv):
        if workers is not None or options or env_restarts or env_timeout or num_envs not in (1, env.num_envs):
            raise TypeError("a vector env is used as it is: leave out num_envs, workers, env_restarts, env_timeout and further options")
        backend = Vector(env, mode)
    else:
        num_envs = positive("num_envs", num_envs)
        limit: dict[str, Any] = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
        if isinstance(env, str):
            make: Any = functools.partial(gymnasium.make, _checked_spec(env, options), **limit, **options)
        elif isinstance(env, gymnasium.Env):
            if num_envs != 1 or workers or options or env_restarts or env_timeout:
                raise ValueError("a single env cannot be copied or sent to a worker: pass a callable that makes it, or leave out "
                                 "num_envs, workers, env_restarts, env_timeout and further options")
            make = _Given(env)
        elif callable(env):
            if limit and "max_episode_steps" in lookup.option_names(env)[0]:      # the env ends its episodes itself
                options, max_episode_steps = {**limit, **options}, None
            lookup.check_options(f"env {getattr(env, '__qualname__', env)}", env, options)
            make = functools.partial(env, **options)
        else:
            raise TypeError(f"env must be a Gymnasium id, a callable, a gymnasium.Env or a VectorEnv, got {type(env).__name__}")
        count = _processes(workers, num_envs, bool(env_restarts or env_timeout))
        pool = functools.partial(Workers, workers=count, restarts=env_restarts, timeout=env_timeout) if count else InProcess
        backend = pool(make, num_envs, mode or AutoresetMode.SAME_STEP)
    try:
        return AdaptedEnv(backend, device=device, seed=seed, max_episode_steps=max_episode_steps, validate=validate, first_env=first_env)
    except BaseException:
        backend.close()
        raise


class AdaptedEnv(BatchedEnv):
    """Gymnasium envs as a batched env; made by `adapt`.

    Observations keep their dtypes (images stay uint8; only uint16 and larger become int32 or int64). Rewards are float32. Discrete
    actions count from 0 even if the env's own actions start elsewhere, and continuous actions are clipped to their Box.

    `info` of a step: `final_obs` and `_final_obs` as in `BatchedEnv`. `action_mask` [N, A] bool for the current observation, if the env
    gives one in its info or observation (for MultiDiscrete, the masks of the parts side by side). `success` [N] bool, if the last info of
    an episode has `success` or `is_success`. `final_info`: a list with the last info of each episode that ended, None for other envs.

    Gymnasium envs cannot be saved: `restorable` is False, `get_state` returns {} and `set_state` raises.
    """

    restorable = False

    def __init__(self, backend: Backend, *, device: torch.device | str = "cpu", seed: int | None = None,
                 max_episode_steps: int | None = None, validate: bool = False, first_env: int = 0):
        self.backend = backend
        super().__init__(backend.num_envs, device=device, seed=seed, first_env=first_env, autoreset_mode=backend.mode,
                         max_episode_steps=max_episode_steps, validate=validate)
        self.single_observation_space = backend.observation_space
        self.single_action_space = _from_zero(backend.action_space)
        self.episode_steps = backend.episode_steps
        self.render_mode = backend.render_mode
        self._masked = self._knows_success = False
        self._interrupted = False      # the last step or reset failed or was interrupted: some envs may be a step ahead of others
        self.waiting_since: float | None = None      # when the step or reset began that the envs have not finished (`time.monotonic`)

    @property
    def restarted(self) -> int:
        """How often worker processes were started again."""
        return self.backend.restarted

    @property
    def max_episode_steps(self) -> int | None:
        """Truncate longer episodes. Not possible for vector envs that reset themselves."""
        return self._limit

    @max_episode_steps.setter
    def max_episode_steps(self, limit: int | None) -> None:
        if limit is not None:
            positive("max_episode_steps", limit)
        self.backend.limit(limit)
        self._limit = limit

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As in `BatchedEnv`, but all options except `reset_mask` are passed to the envs."""
        self._check_open()
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if mask is not None:
            mask = np.asarray(mask.cpu() if isinstance(mask, Tensor) else mask)
            if mask.dtype != bool or mask.shape != (self.num_envs,):
                raise ValueError(f"reset_mask must be [{self.num_envs}] bool, got {list(mask.shape)} {mask.dtype}")
            if self._fresh or self._interrupted:
                raise ValueError("reset_mask needs envs that have all been reset; call reset() once without it")
        seed = self._chosen_seed(seed)
        with self._waiting():
            self.backend.reset(seed, options or None, mask)
        self._fresh = False
        self.started.copy_(torch.as_tensor(self.backend.started))
        self.elapsed.masked_fill_(self.started, 0)
        info: dict[str, Any] = {}
        self._add_mask(info)
        return self._tensors(self.backend.obs), info

    def step(self, action: Any) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        self._check_open()
        if self._fresh:
            raise RuntimeError("step() before reset(): call reset(seed=...) first")
        if self._interrupted:
            raise RuntimeError("the last step or reset was interrupted before all envs had finished it; call reset()")
        backend, chosen = self.backend, self._checked_action(action).detach().cpu().numpy()
        with self._waiting():
            ends = backend.step(chosen)
        terminated, truncated, done = self._tensors((backend.terminated, backend.truncated, backend.terminated | backend.truncated))
        obs, info = self._tensors(backend.obs), dict[str, Any]()
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            info["final_obs"], info["_final_obs"] = obs, done
            if ends:
                info["final_obs"] = trees.where(done, self._tensors(backend.final), obs)
        success = {i: end.get("success", end.get("is_success")) for i, end in ends.items()}
        self._knows_success |= any(value is not None for value in success.values())
        if self._knows_success:
            info["success"] = self._tensors(np.array([_flag(success.get(i), i) for i in range(self.num_envs)]))
        self._add_mask(info)
        info["final_info"] = [ends.get(i) for i in range(self.num_envs)]
        self.started.copy_(torch.as_tensor(backend.started))
        self.ended.copy_(done)
        self.elapsed.add_(1).masked_fill_(self.started, 0)
        return obs, self._tensors(backend.reward, torch.float32), terminated, truncated, info

    def observe(self) -> Any:
        """The observation of the last `reset` or `step`."""
        return self._tensors(self.backend.obs)

    def get_state(self) -> dict[str, Tensor]:
        """{}: the state of foreign envs cannot be read."""
        return {}

    def set_state(self, state: dict[str, Tensor]) -> Any:
        raise RuntimeError("adapted Gymnasium envs cannot return to a saved state (restorable is False); call reset() for new episodes")

    def render(self) -> Any:
        """Render env 0 in the render_mode that it was made with."""
        self._check_open()
        return self.backend.render(0)

    def close(self) -> None:
        """Close the envs and end their processes."""
        self.closed = True
        self.backend.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.backend} on {self.device}>"

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Around a step or reset of the envs."""
        self._interrupted, self.waiting_since = True, time.monotonic()
        try:
            yield
            self._interrupted = False
        finally:
            self.waiting_since = None

    def _check_open(self) -> None:
        if self.closed or self.backend.closed:
            raise RuntimeError("the env is closed" + ("" if self.closed else " because one of its envs failed") + "; make a new one")

    def _chosen_seed(self, seed: Any) -> int | list[int] | None:
        if seed is None and not self._fresh:
            return None
        if seed is None:
            seed = self._seed if self._seed is not None else int(torch.randint(1 << 31, ()))
        if isinstance(seed, (int, np.integer)):
            self._seed = checked_seed(seed)
            return self._seed + self.first_env
        if len(seed) != self.num_envs:
            raise ValueError(f"seed must be an int or a list with one for each of the {self.num_envs} envs, got {len(seed)}")
        return [checked_seed(s) for s in seed]

    def _add_mask(self, info: dict[str, Any]) -> None:
        has = np.asarray(self.backend.has_mask)
        self._masked |= bool(has.any())
        if self._masked:
            info["action_mask"] = self._tensors(np.asarray(self.backend.action_mask) | ~has[:, None])

    def _tensors(self, tree: Any, dtype: torch.dtype | None = None) -> Any:
        """Copies as tensors: the next step overwrites the arrays."""
        return trees.apply(lambda x: torch.as_tensor(x).to(self.device, dtype, copy=True), tree)


class _Given:
    """A callable that returns an existing env."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        self.env = env

    def __call__(self) -> gymnasium.Env[Any, Any]:
        return self.env


def find_spec(name: str) -> registration.EnvSpec:
    """Gymnasium's spec of an id: "CartPole-v1", "CartPole" (the latest version) or "module:id" (imports the module first).

    Workers get the spec, not the id, so that they need not import the script that registered it.
    """
    module, _, inner = ("", "", name) if name in gymnasium.registry else name.rpartition(":")
    if module:
        lookup.check(name)
        lookup.import_module(module)
        lookup.trust_names([name])
    spec = gymnasium.registry.get(inner)
    if spec is None:
        try:
            space, stem, version = registration.parse_env_id(inner)
            latest = registration.find_highest_version(space, stem) if version is None else None
            spec = None if latest is None else gymnasium.registry.get(registration.get_env_id(space, stem, latest))
        except gymnasium.error.Error:
            spec = None
    if spec is None:
        raise ValueError(f"Gymnasium knows no env {name!r}; import the package that registers it, or write 'package:{inner}'")
    return spec


def _checked_spec(name: str, options: dict[str, Any]) -> registration.EnvSpec:
    """The spec of an id. Options must fit the env; texts among them that come from a file may name a module, as for GymV21Environment."""
    spec = find_spec(name)
    lookup.check_all(options)
    if options and spec.entry_point is not None:
        creator = spec.entry_point if callable(spec.entry_point) else registration.load_env_creator(spec.entry_point)
        lookup.check_options(f"env {name}", creator, options, always=("render_mode", "disable_env_checker", *spec.kwargs))
    return spec


def _processes(workers: int | None, num_envs: int, needed: bool) -> int:
    """The number of worker processes. needed: there must be some, since restarts and time limits are theirs."""
    if workers is None:
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = usable if os.name == "posix" and (num_envs > 1 or needed) else 0
    if isinstance(workers, bool) or not isinstance(workers, (int, np.integer)) or workers < 0:
        raise ValueError(f"workers must be a whole number of at least 0, got {workers!r}")
    if workers and os.name != "posix":
        raise ValueError("worker processes need Linux or macOS; use workers=0, or a gymnasium.vector.AsyncVectorEnv")
    if needed and not workers:
        raise ValueError(f"env_restarts and env_timeout need worker processes, got workers={workers}; use workers=1 or more, or leave them "
                         "out")
    return min(int(workers), num_envs)


def _from_zero(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    return spaces.MultiDiscrete(space.nvec) if isinstance(space, spaces.MultiDiscrete) else space


def _flag(value: Any, i: int) -> bool:
    """`success` in the last info of env i. Some envs say 1.0 for True; None: nothing."""
    found = np.asarray(False if value is None else value)
    if found.size != 1 or found.dtype.kind not in "biuf" or found.item() not in (0, 1):
        with failures(i, "step()"):
            raise TypeError(f"success in the info must be True or False, got {value!r}")
    return bool(found.item())
