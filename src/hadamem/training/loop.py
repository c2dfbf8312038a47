"""Training from the first iteration to the last: locks, signals and errors around a `Session`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..envs import EnvError
from ..envs.foreign import AdaptedEnv
from ..runs.config import TrainConfig
from ..runs.folder import RunFolder, check_same, is_run, load_config, rebuild_config
from .evaluating import Evaluator, check_possible
from .policy import Policy
from .run import Run
from .session import Diverged, Session, TrainingFailed
from .signals import Signals, Waiting
from .trainer import Trainer

__all__ = ["TrainingFailed", "train"]


def train(config: TrainConfig, folder: Path | str | None = None, *, resume: bool | str = False, env: Any = None,
          report: Callable[[dict[str, Any]], None] | None = None, should_stop: Callable[[], bool] | None = None,
          built: Callable[[Trainer], None] | None = None, notify: Callable[[str], None] | None = None,
          stopping: Callable[[], None] | None = None) -> Run:
    """Train for `config.total_steps` env steps.

    folder: the run's folder; None: nothing is written. resume: continue the run in it. True: from its newest complete checkpoint, or from
    its best one if the run diverged; "best", "newest" or the number of an iteration, as text: from that one. Settings of
    `runs.folder.FREE` and of `Agent.changeable` may differ from before; others must be the same.
    env: see `Trainer`; a batched env stays open. report: called after every iteration with its row of metrics. should_stop: asked after
    every iteration. built: called with the trainer before the first iteration.
    notify: called with messages for the user (a damaged checkpoint, restarted episodes); None: they are warnings.
    stopping: called in the signal handler of the first Ctrl-C, so it should only set a flag; None: prints a line on stderr.

    Ctrl-C, SIGTERM and a closed terminal end the run after the current iteration, with a checkpoint and the status "interrupted"; the
    run's `signal` says which it was. A second one ends it at once, and so does an env that hangs (see `Signals`). An error leaves metrics
    and the last checkpoint as they are, and the status "failed".
    """
    if resume and folder is None:
        raise ValueError("resume=True needs the folder of the run to continue")
    say = notify or _warn
    with contextlib.ExitStack() as stack:
        disk = None if folder is None else stack.enter_context(RunFolder(folder, bool(resume)))
        if disk is not None and resume:
            rebuild_config(disk.path, say)
        if disk is not None and is_run(disk.path):
            check_same(load_config(disk.path), config, disk.path, changeable=True)
        stack.enter_context(_threads(config.threads))
        check_possible(config, env)
        trainer = Trainer(config, env)
        stack.callback(trainer.close)
        if config.total_steps < trainer.batch:
            raise ValueError(f"total_steps ({config.total_steps}) is less than one iteration ({trainer.batch}: {trainer.num_envs} envs x "
                             f"{trainer.steps} steps); raise total_steps, or lower num_envs, num_steps or steps_per_iteration")
        evaluator = Evaluator(trainer, env) if config.eval_every else None
        if evaluator is not None:
            stack.callback(evaluator.close)
        session = Session(trainer, disk, say, evaluator)
        stack.callback(session.close)
        session.begin(resume)
        waiting = Waiting(trainer, evaluator)
        for inner in waiting.envs:
            if isinstance(inner, AdaptedEnv):
                inner.backend.notify = say
        stop = stack.enter_context(Signals(stopping, waiting, saves=disk is not None))
        facts: dict[str, Any] = {}
        try:
            if built is not None:
                built(trainer)
            status = session.run(report, lambda: stop.asked or (should_stop is not None and should_stop()))
        except KeyboardInterrupt:
            if trainer.acting or stop.hung:
                session.save_after_env_error()
            facts["error"] = f"stopped in the middle of an iteration; the last checkpoint is of iteration {session.saved}" \
                if session.saved >= 0 else "stopped in the first iteration; there is no checkpoint yet"
            if not stop.hung:
                session.end("interrupted", **facts)
                raise
            facts["error"] = f"{stop.hung}: {facts['error']}"
            say(facts["error"])
            status = "interrupted"
        except EnvError as error:
            session.save_after_env_error()
            if not stop.asked:
                session.end("failed", error=str(error))
                raise
            status = "interrupted"      # the signal reached the envs' processes first
        except BaseException as error:
            session.end("failed", error=f"{type(error).__name__}: {error}", diverged=isinstance(error, Diverged))
            raise
        session.end(status, **facts)
        run = Run(config, None if disk is None else disk.path, status, Policy.of(trainer), session.log if disk is None else None)
    run.signal = stop.number      # also of one that came at the very end
    return run


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set the number of torch threads. Results depend on it in the last bits, so it is a setting of the run."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _warn(text: str) -> None:
    warnings.warn(f"hadamem: {text}", RuntimeWarning, stacklevel=3)
