"""`hm.train`: training by keywords, on any env."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium

from .. import envs
from ..devices import find_device
from .config import make_config
from .folder import CONFIG, is_run, read_config, same_env
from .loop import train as train_run
from .run import Run

GROUPS = ("network", "ppo")
ALONE = {"rollout": 1024, "ppo.minibatches": 1}      # for a single env, which cannot be copied


def train(env: Any = None, memory: str | None = None, *, preset: str = "default", out: Path | str | None = None, resume: bool = False,
          quiet: bool = False, report: Callable[[dict[str, Any]], None] | None = None, **settings: Any) -> Run:
    """Train an agent with memory on an env: `hm.train("popgym/RepeatPreviousEasy", "shm", steps=200_000)`.

    env: a name of `hm.envs`, a Gymnasium id, a callable that makes a Gymnasium env (its class, say; best, since many of them can run in
    worker processes), a batched env, or a Gymnasium vector env or env. Only those that are made here are closed.
    memory: a name of `hm.list_memories()`, or "package.module:Class" of your own.
    settings: any field of `TrainConfig`; those of its parts with two underscores: `ppo__epochs=4`, `network__memory_size=64`, or as a
    dict: `ppo={"epochs": 4}`. out: the run's folder; None: nothing is written. resume: go on with the run in that folder, whose settings
    are taken from there (give the env again if it was not a name). quiet: no progress. report: called with every row of metrics.

    Returns the run: `run.policy`, `run.metrics`, `run.summary()`.
    """
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        name = name.replace("__", ".")
        changes |= {f"{name}.{key}": x for key, x in value.items()} if name in GROUPS and isinstance(value, dict) else {name: value}
    if memory is not None:
        changes["network.memory"] = memory
    if resume:
        if out is None:
            raise ValueError("resume=True needs out, the folder of the run to go on with")
        if is_run(out):
            saved = _dotted(read_config(Path(out) / CONFIG))
            preset = saved.pop("preset", preset)
            changes = {**saved, **changes}
        elif env is None:
            raise ValueError(f"there is no run in {out} to resume")
    elif env is None:
        raise ValueError("env is missing: pass a name of hm.envs.list_envs(), a Gymnasium id, or a callable that makes an env")
    if isinstance(env, str):
        changes["env"], env = env, None
    elif env is not None:
        changes["env"] = _name_of_run(env, changes.get("env"), out)
        if isinstance(env, gymnasium.Env):
            changes = {**ALONE, **changes}
    config = make_config(preset, **changes)
    made = _batched(env, config.device)
    progress = None if quiet else _progress(config, out)
    if progress is None:
        return train_run(config, out, resume=resume, env=made, report=report)

    def tell(row: dict[str, Any]) -> None:
        progress(row)
        if report is not None:
            report(row)

    with progress:
        return train_run(config, out, resume=resume, env=made, **{**progress.hooks, "report": tell})


def _batched(env: Any, device: str) -> Any:
    """Envs that are there already behind the surface of batched ones; callables stay, for the trainer to make as many as it needs."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        return envs.adapt(env, device=find_device(device))
    if isinstance(env, gymnasium.Env):
        return envs.adapt(env, device=find_device(device))
    if env is None or callable(env) or isinstance(env, (envs.BatchedEnv, envs.Wrapper)):
        return env
    raise TypeError(f"env must be a name, a callable that makes a Gymnasium env, a batched env or a vector env, got {type(env).__name__}")


def _name(env: Any) -> str:
    module, path = getattr(env, "__module__", None), getattr(env, "__qualname__", "<")
    if callable(env) and module not in (None, "__main__") and "<" not in path:
        return f"{module}:{path}"              # a name that can be found again
    spec = getattr(env, "spec", None)
    inner = getattr(env, "unwrapped", env)
    return getattr(spec, "id", None) or getattr(env, "__name__", None) or type(inner).__name__


def _name_of_run(env: Any, saved: str | None, out: Path | str | None) -> str:
    """The name of the env, which must be the run's where there is one already."""
    name = _name(env)
    if saved is None or "<" in name or isinstance(env, functools.partial):      # a lambda or the like says nothing of what it makes
        return saved or name
    if not same_env(saved, name):
        raise ValueError(f"the run in {out} was trained on {saved!r}, env is {name!r}; pass the same env, or start a new run")
    return name if ":" in name else saved


def _dotted(values: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= {f"{name}.{key}": x for key, x in value.items()} if name in GROUPS else {name: value}
    return out


def _progress(config: Any, out: Path | str | None) -> Any:
    try:
        from .progress import Progress
    except ImportError:      # rich is not there
        return None
    return Progress(config, "" if out is None else str(out))
