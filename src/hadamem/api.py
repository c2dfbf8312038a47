"""`hm.train`: training by keywords, on any env."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium

from . import envs, lookup
from .agents import DEFAULT_AGENT, find_agent
from .devices import find_device
from .runs.config import check_sections, complete, make_config, override, settings_table
from .runs.folder import CONFIG, read_config, rebuild_config, same_env
from .runs.presets import PRESETS
from .runs.settings import Table
from .training.loop import train as train_run
from .training.run import Run
from .training.signals import Stopped, error_of


def train(env: Any = None, memory: str | None = None, *, agent: str | None = None, preset: str = "default", out: Path | str | None = None,
          resume: bool | str = False, quiet: bool = False, report: Callable[[dict[str, Any]], None] | None = None, trust: bool = False,
          **settings: Any) -> Run:
    """Train an agent with memory on an env: `hm.train("popgym/RepeatPreviousEasy", "shm", total_steps=200_000)`.

    env: a name of `hm.envs`, a Gymnasium id, a callable that makes a Gymnasium env (such as its class; best, since copies of it can run
    in worker processes), a batched env, or a Gymnasium vector env or env. Envs that you pass in stay open.
    Some presets have an env of their own.
    memory: a name of `hm.list_memories()`, or "package.module:Class" of your own.
    agent: a name of `hm.agents.AGENTS` (default: "ppo"), or "package.module:Class" of your own.
    settings: any setting of a run by its name: `gamma=0.9`, `memory_size=64`. Where two sections have the name: `ppo__gamma=0.9`, or
    `ppo={"gamma": 0.9}`. `hadamem train --help` lists them.
    out: the run's folder; None: nothing is written. resume: continue the run in that folder with its settings (pass the env again if it
    was not a name); "best": from its best checkpoint instead of the newest. quiet: no progress. report: called with every row of metrics.
    trust: with resume, import classes that the run's files name as "package.module:Class"; those that you pass again need no trust.

    Returns the run: `run.policy`, `run.metrics`, `run.summary()`.

    Ctrl-C and SIGTERM end the run after the current iteration, with a checkpoint if there is a folder; then KeyboardInterrupt or
    SystemExit(143) is raised, so that a script ends, too. The same call with resume=True continues. Without a folder, the exception's
    `run` has the policy so far.
    """
    with lookup.trusting(trust):
        try:
            run = _train(env, memory, agent, preset, out, resume, quiet, report, settings)
        except Stopped as stop:
            raise error_of(stop.number, str(stop)) from stop
    if run.signal is not None:
        error = error_of(run.signal, f"training was stopped after {run.summary()['iterations']} iterations"
                                     + ("" if out is None else f"; the same call with resume=True continues the run in {out}"))
        vars(error)["run"] = run      # for a caller without a folder: it still has the policy
        raise error
    return run


def _train(env: Any, memory: str | None, agent: str | None, preset: str, out: Path | str | None, resume: bool | str, quiet: bool,
           report: Callable[[dict[str, Any]], None] | None, settings: dict[str, Any]) -> Run:
    if memory is not None and not isinstance(memory, str):
        name = getattr(memory, "__name__", type(memory).__name__)
        raise TypeError(f"memory must be a name of hm.list_memories() or 'package.module:Class', got {name}; give a class of your own a "
                        "name with hm.register_memory")
    lookup.trust_names(lookup.trusted_names([env, memory, agent, settings]))
    saved: dict[str, Any] = {}
    if resume:
        if out is None:
            raise ValueError("resume=True needs out, the folder of the run to continue")
        if rebuild_config(Path(out), _warn):
            saved = read_config(Path(out) / CONFIG)
            preset, trained = saved.get("preset", preset), saved.get("agent")
            if agent not in (None, trained):
                raise ValueError(f"the run in {out} was trained with agent {trained!r}, got agent={agent!r}; leave it out, or start a new "
                                 "run")
            agent = agent or trained
        elif env is None:
            raise ValueError(f"there is no run in {out} to resume")
    elif env is None and (preset not in PRESETS or "env" not in PRESETS[preset].settings):
        raise ValueError("env is missing: pass a name of hm.envs.list_envs(), a Gymnasium id, or a callable that makes an env")
    given = {"preset": preset, **settings, **({} if memory is None else {"memory": memory}), **({} if agent is None else {"agent": agent})}
    agent = agent or (PRESETS[preset].agent if preset in PRESETS else DEFAULT_AGENT)
    check_sections({**saved, **given}, agent)
    table = settings_table(agent)
    if isinstance(env, str):
        given["env"], env = env, None
    elif env is not None:
        lookup.trust_names([_name(env)])
        given["env"] = _name_of_run(env, saved.get("env"), out)
    changes = override(complete(table.flatten(saved, read=True), agent) if saved else {}, table.flatten(given))
    if isinstance(env, gymnasium.Env):
        changes = {**_single_env(table, agent), **changes}
    config = make_config(**{**changes, "preset": preset})
    made = _batched(env, config.device)
    progress = None if quiet else _progress(config, out)
    if progress is None:
        return train_run(config, out, resume=resume, env=made, report=report)

    def show(row: dict[str, Any]) -> None:
        progress(row)
        if report is not None:
            report(row)

    with progress:
        return train_run(config, out, resume=resume, env=made, **{**progress.hooks, "report": show})


def _single_env(table: Table, agent: str) -> dict[str, Any]:
    """Settings for a single env, which cannot be copied: longer rollouts, and no splitting by envs."""
    kind = find_agent(agent)
    if kind.rollout_steps is not None:      # they may be as short as the agent likes
        return {}
    return {"num_steps": 1024, **({} if kind.envs_divisible_by is None else {table.find(kind.envs_divisible_by).name: 1})}


def _batched(env: Any, device: str) -> Any:
    """Adapt an env that exists already; a callable stays, for the trainer to make as many envs as it needs."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        return envs.adapt(env, autoreset_mode="same_step", device=find_device(device))      # or an error that says how to get that mode
    if isinstance(env, gymnasium.Env):
        return envs.adapt(env, device=find_device(device))
    if env is None or callable(env) or isinstance(env, (envs.BatchedEnv, envs.Wrapper)):
        return env
    raise TypeError(f"env must be a name, a callable that makes a Gymnasium env, a batched env or a vector env, got {type(env).__name__}")


def _name(env: Any) -> str:
    module, path = getattr(env, "__module__", None), getattr(env, "__qualname__", "<")
    if callable(env) and module not in (None, "__main__") and "<" not in path:
        return f"{module}:{path}"              # can be imported again
    spec = getattr(env, "spec", None)
    inner = getattr(env, "unwrapped", env)
    return getattr(spec, "id", None) or getattr(env, "__name__", None) or type(inner).__name__


def _name_of_run(env: Any, saved: str | None, out: Path | str | None) -> str:
    """The name of the env; an error if the run was trained on another one."""
    name = _name(env)
    if saved is None or "<" in name or isinstance(env, functools.partial):      # a lambda or partial does not say what it makes
        return saved or name
    if not same_env(saved, name):
        raise ValueError(f"the run in {out} was trained on {saved!r}, env is {name!r}; pass the same env, or start a new run")
    return name if ":" in name else saved


def _warn(text: str) -> None:
    warnings.warn(f"hadamem: {text}", RuntimeWarning, stacklevel=5)


def _progress(config: Any, out: Path | str | None) -> Any:
    try:
        from .view.progress import Progress
    except ImportError:      # rich is not installed
        return None
    return Progress(config, "" if out is None else str(out))
