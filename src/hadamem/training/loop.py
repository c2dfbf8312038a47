"""The training loop: iterations until the end, checkpoints, resuming, Ctrl-C, errors."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ..envs import EnvError
from ..envs.foreign import AdaptedEnv
from ..files import clip_text
from ..runs.checkpoint import Checkpoint
from ..runs.config import TrainConfig, from_dict, to_dict
from ..runs.files import CheckpointError
from ..runs.folder import RunFolder, check_same, describe_device, is_run, load_config, read_info, rebuild_config
from ..runs.logs import Logs
from ..runs.metrics import MetricsLog, cut_back
from ..runs.spaces import build_space
from .evaluate import check_fit
from .evaluating import Evaluator, check_possible
from .policy import Policy
from .run import Run
from .signals import Signals, Waiting
from .trainer import Trainer


class TrainingFailed(RuntimeError):
    """Training cannot continue; the message says why, and what was saved."""


def train(config: TrainConfig, folder: Path | str | None = None, *, resume: bool = False, env: Any = None,
          report: Callable[[dict[str, Any]], None] | None = None, should_stop: Callable[[], bool] | None = None,
          built: Callable[[Trainer], None] | None = None, notify: Callable[[str], None] | None = None,
          stopping: Callable[[], None] | None = None) -> Run:
    """Train for `config.total_steps` env steps.

    folder: the run's folder; None: nothing is written. resume: continue from its newest complete checkpoint, with the same settings (those
    of `runs.folder.FREE` may change). env: see `Trainer`; a batched env stays open. report: called after every iteration with its row of
    metrics. should_stop: asked after every iteration. built: called with the trainer before the first iteration.
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
        disk = None if folder is None else stack.enter_context(RunFolder(folder, resume))
        if disk is not None and resume:
            rebuild_config(disk.path, say)
        if disk is not None and is_run(disk.path):
            check_same(load_config(disk.path), config, disk.path)
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
        session = _Session(trainer, disk, say, evaluator)
        stack.callback(session.close)
        session.begin(resume)
        waiting = Waiting(trainer, evaluator)
        for inner in waiting.envs:
            if isinstance(inner, AdaptedEnv):
                inner.backend.notify = say
        stop = stack.enter_context(Signals(stopping, waiting))
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
            with contextlib.suppress(OSError):      # if nothing can be written, report the first error
                session.end("failed", error=f"{type(error).__name__}: {error}")
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


class _Session:
    """One process's part of a run: the trainer, and everything that is written. disk None: nothing is."""

    def __init__(self, trainer: Trainer, disk: RunFolder | None, say: Callable[[str], None], evaluator: Evaluator | None = None):
        self.trainer, self.disk, self.say, self.evaluator = trainer, disk, say, evaluator
        self.checkpoints = None if disk is None else disk.checkpoints(trainer.config.keep_checkpoints)
        self.policy: dict[str, Any] = {}     # `Policy.describe`, for checkpoints
        self.seal: Any = None                # of the rows of metrics that belong to the checkpoint
        self.log = MetricsLog()
        self.logs: Logs | None = None
        self.before = 0.0                    # seconds of earlier sessions
        self.start, self.last_save = time.monotonic(), float("-inf")      # so the first iteration is saved
        self.saved = -1                      # the iteration of the newest checkpoint
        self.skipped = 0                     # updates in a row that were not finite
        self.bad_steps = 0                   # steps that were not finite, when the user was told of them

    def begin(self, resume: bool) -> None:
        """Restore the newest checkpoint if there is one, and write the first files."""
        disk, trainer, config = self.disk, self.trainer, self.trainer.config
        if disk is None or self.checkpoints is None:
            return
        self.policy = _plain(Policy.of(trainer).describe())
        if resume:
            self._restore(disk)
        self.logs = Logs(disk.path, config, trainer.env_steps, read_info(disk.path).get("logs", {}), self.say)      # may raise
        disk.begin(config, **describe_device(trainer.device), num_envs=trainer.num_envs, num_steps=trainer.steps,
                   iterations=trainer.iterations, logs=self.logs.keys)
        self.checkpoints.continue_after(trainer.iterations)
        last = cut_back(disk.metrics, trainer.iterations, self.say, self.seal)
        self.before = 0.0 if last is None else last.get("elapsed", 0.0)
        self.log = MetricsLog(disk.metrics)
        self.start = time.monotonic()

    def run(self, report: Callable[[dict[str, Any]], None] | None, should_stop: Callable[[], bool]) -> str:
        """Iterate to the end, or until `should_stop`. Returns the status. Time decides only when checkpoints are written."""
        trainer, config = self.trainer, self.trainer.config
        while not trainer.done:
            row = self._iteration()
            if self.logs is not None:
                self.logs.add(row)
            try:
                if report is not None:
                    report(row)
            except Exception:
                self.save()                  # an error of the caller must not cost the finished iteration
                raise
            self._check_finite(row)
            self._tell_bad_steps(row)
            if should_stop() and not trainer.done:
                self.save()
                return "interrupted"
            if time.monotonic() - self.last_save >= config.checkpoint_every:
                self.save()
        self.save()
        return "finished"

    def save(self) -> None:
        """Write a checkpoint of the last iteration; not while all updates are skipped, so that the last good one stays."""
        trainer = self.trainer
        if self.checkpoints is None or self.skipped or self.saved == trainer.iterations:
            return
        about = {"kind": "checkpoint", "env_steps": trainer.env_steps, "config": to_dict(trainer.config), "policy": self.policy,
                 "metrics": self.log.seal()}
        with self._writing():
            self.log.sync()                  # rows first, so that they are never behind the checkpoint
            self.checkpoints.write(trainer.iterations, trainer.get_state(), about, trainer.replay if trainer.config.save_replay else None)
        self.saved, self.last_save = trainer.iterations, time.monotonic()

    def save_after_env_error(self) -> None:
        """Save despite a failed env: foreign envs restart on resume anyway, and weights do not change while envs are stepped."""
        if not self.trainer.env.unwrapped.restorable and self.trainer.iterations:
            with contextlib.suppress(TrainingFailed):
                self.save()

    def end(self, status: str, **facts: Any) -> None:
        if self.logs is not None:
            self.logs.close(status)
        if self.disk is not None and self.disk.is_there():
            self.log.sync()
            self.disk.end(status, iterations=self.trainer.iterations, steps=self.trainer.env_steps, **facts)

    def close(self) -> None:
        self.log.close()

    # --- internals -------------------------------------------------------------------------------------------------

    def _iteration(self) -> dict[str, Any]:
        """One iteration, evaluated if that is due. Its row is written even if the evaluation fails, since a checkpoint may follow."""
        before = self.trainer.env_steps
        row: dict[str, Any] = self.trainer.iteration()
        try:
            if self.evaluator is not None and self.evaluator.due(before):
                row |= self.evaluator.evaluate()
        finally:
            with self._writing():
                row = self.log.add({**row, "elapsed": self.before + time.monotonic() - self.start})
        return row

    def _restore(self, disk: RunFolder) -> None:
        trainer, config = self.trainer, self.trainer.config
        assert self.checkpoints is not None

        def check(found: Checkpoint) -> None:
            try:
                before, _ = from_dict(found.about["config"]), int(found.about["env_steps"])
                saved = {name: build_space(found.about["policy"][name]) for name in ("observation_space", "action_space")}
            except (KeyError, TypeError, AttributeError, AssertionError) as error:      # AssertionError: Gymnasium's spaces
                raise CheckpointError(f"{found.folder} does not describe a run: {type(error).__name__}: {clip_text(error)}") from error
            check_same(before, config, found.folder)
            check_fit(SimpleNamespace(**saved), trainer.env)

        found = self.checkpoints.newest(self.say, load=trainer.replay, check=check)
        if found is None:
            if list(self.checkpoints.paths()):
                raise ValueError(f"all checkpoints of {disk.path} are damaged; to train again, move the folder away or choose a new name")
            self.say(f"{disk.path} has no checkpoint yet: the run starts from the beginning")
            return
        reached, before, wanted = int(found.about["env_steps"]), load_config(disk.path).total_steps, config.total_steps
        if wanted <= reached and wanted < before:
            raise ValueError(f"{disk.path} has done {reached:,} of {before:,} steps; total_steps ({wanted:,}) counts these too and cannot "
                             "be less")
        try:
            trainer.set_state(found.tensors)
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"{found.folder} does not hold what {config.agent} needs to continue: {clip_text(error)}") from error
        self.seal = found.about.get("metrics")
        self.saved = trainer.iterations
        if trainer.replay is not None:
            self.bad_steps = int(trainer.replay.bad)
            if not trainer.replay.added:
                self.say(f"the checkpoint holds no replay (save_replay was off): it starts empty at iteration {trainer.iterations}")
        if not trainer.env.unwrapped.restorable:
            self.say(f"{config.env} cannot be restored: its episodes restart at iteration {trainer.iterations}")

    def _tell_bad_steps(self, row: dict[str, Any]) -> None:
        """Say once that an env gave numbers that are not finite."""
        if row.get("bad_steps", 0) and not self.bad_steps:
            self.bad_steps = round(row["bad_steps"])
            self.say(f"{self.bad_steps} steps had observations or rewards that are not finite; they are kept as zeros and not learned from")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn a full or missing disk into a TrainingFailed that says what was saved."""
        try:
            if self.disk is not None and not self.disk.is_there():
                raise TrainingFailed(f"{self.disk.path} was deleted or moved while training, so nothing more can be written; "
                                     f"training ended at iteration {self.trainer.iterations}")
            yield
        except OSError as error:
            kept = f"; the checkpoint of iteration {self.saved} is complete" if self.saved >= 0 else ""
            place = "" if self.disk is None else f" to {self.disk.path}"
            cause = error.strerror or error
            raise TrainingFailed(f"iteration {self.trainer.iterations} cannot be written{place}: {cause}{kept}") from error

    def _check_finite(self, row: dict[str, Any]) -> None:
        """End the run after whole iterations without a finite update, more than `max_skipped` of them in a row."""
        trainer = self.trainer
        skipped, updates = round(row.get("skipped", 0)), round(row.get("updates", 0))
        self.skipped = self.skipped + skipped if skipped and skipped >= updates else 0
        if self.skipped > trainer.config.max_skipped:
            kept = "nothing was written" if self.checkpoints is None else \
                f"the last good checkpoint is of iteration {self.saved}" if self.saved >= 0 else "there is no checkpoint yet"
            raise TrainingFailed(f"loss or gradients were not finite in the last {self.skipped} updates (max_skipped: "
                                 f"{trainer.config.max_skipped}), so training makes no progress; {kept}. Try a lower learning_rate or "
                                 "max_grad_norm, and look for rewards and observations that are not finite")


def _plain(described: dict[str, Any]) -> dict[str, Any]:
    """The description as JSON holds it, checked before anything is trained."""
    try:
        return json.loads(json.dumps(described))
    except TypeError as error:
        raise ValueError(f"the policy cannot be saved: {error}; use plain values in network.memory_options") from error


def _warn(text: str) -> None:
    warnings.warn(f"hadamem: {text}", RuntimeWarning, stacklevel=3)
