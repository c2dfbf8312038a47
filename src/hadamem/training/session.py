"""One process's part of a run: iterations, and everything that is written: metrics, checkpoints, the best one, the status."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .. import states
from ..files import clip_text
from ..runs.checkpoint import Checkpoint
from ..runs.config import from_dict, to_dict
from ..runs.files import CheckpointError, inside
from ..runs.folder import BEST, RunFolder, changed_settings, check_same, describe_device, is_run, load_config, read_info
from ..runs.logs import Logs
from ..runs.metrics import MetricsLog, cut_back, keep_later
from ..runs.spaces import build_space
from .best import Best, Candidate, set_aside
from .evaluate import check_fit
from .evaluating import Evaluator
from .outliers import FACTOR
from .policy import Policy
from .trainer import Trainer


class TrainingFailed(RuntimeError):
    """Training cannot continue; the message says why, and what was saved."""


class Diverged(TrainingFailed):
    """Loss, gradients or weights are no longer finite."""


class Session:
    """The trainer, and everything that is written. disk None: nothing is."""

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
        self.best: Best | None = None
        self.skipped = 0                     # updates of iterations in a row in which most were not finite
        self.clean = True                    # no update was skipped since the last checkpoint
        self.outliers = False                # the user was told of rewards that are
        self.bad_steps = 0                   # steps that were not finite, when the user was told of them

    def begin(self, resume: bool | str) -> None:
        """Restore a checkpoint if there is one, and write the first files. resume: see `train`."""
        disk, trainer, config = self.disk, self.trainer, self.trainer.config
        if disk is None or self.checkpoints is None:
            return
        self.policy = _plain(Policy.of(trainer).describe())
        back = bool(resume) and self._restore(disk, resume)
        changed = changed_settings(load_config(disk.path), config) if is_run(disk.path) else {}
        self.logs = Logs(disk.path, config, trainer.env_steps, read_info(disk.path).get("logs", {}), self.say)      # may raise
        if back or read_info(disk.path).get("diverged"):
            keep_later(disk.metrics, trainer.iterations)
        if back:
            set_aside(disk.path / BEST, trainer.iterations)
        else:
            self._announce(disk, changed)
        self.checkpoints.continue_after(trainer.iterations, "abandoned" if back else "damaged")
        last = cut_back(disk.metrics, trainer.iterations, self.say, self.seal)
        self.before = 0.0 if last is None else last.get("elapsed", 0.0)
        self.log = MetricsLog(disk.metrics)
        if back:
            self.save()                      # from now on it is the newest checkpoint, however this session ends
            self._announce(disk, changed)
        how = {"env_options": config.eval_env_options, "deterministic": config.eval_deterministic} if config.eval_every else None
        self.best = Best(disk.path / BEST, how)
        self.best.wait(self._candidate())
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
            except Exception:                # whatever the caller's function raises: it must not cost the finished iteration
                self.save()
                raise
            self._check_finite(row)
            if self.best is not None:
                with self._writing():
                    self.best.see(row, self._candidate, lambda: float(trainer.collector.limit.high))
            self._tell_bad_steps(row)
            self._tell_outliers(row)
            if should_stop() and not trainer.done:
                self.save()
                return "interrupted"
            if time.monotonic() - self.last_save >= config.checkpoint_every:
                self.save()
        self.skipped = 0                     # complete, with finite weights: the end of a run is always saved
        self.save()
        if self.best is not None:
            with self._writing():
                self.best.end()
        return "finished"

    def save(self) -> None:
        """Write a checkpoint of the last iteration; not while most updates are skipped, so that the last good one stays."""
        trainer = self.trainer
        if self.checkpoints is None or self.skipped or self.saved == trainer.iterations:
            return
        new = self._candidate()
        with self._writing():
            self.log.sync()                  # rows first, so that they are never behind the checkpoint
            self.checkpoints.write(trainer.iterations, new.tensors, new.about, trainer.replay if trainer.config.save_replay else None,
                                   clean=self.clean)
            self.saved, self.last_save, self.clean = trainer.iterations, time.monotonic(), True
            if self.best is not None:
                self.best.wait(new)

    def save_after_env_error(self) -> None:
        """Save despite a failed env: foreign envs restart on resume anyway, and weights do not change while envs are stepped."""
        if not self.trainer.env.unwrapped.restorable and self.trainer.iterations:
            with contextlib.suppress(TrainingFailed):
                self.save()

    def end(self, status: str, **facts: Any) -> None:
        if self.logs is not None:
            self.logs.close(status)
        disk = self.disk
        if disk is None or not disk.is_there():
            return
        rescue = [self.best.rescue] if self.best is not None and facts.get("diverged") else []
        for write in (*rescue, self.log.sync,
                      lambda: disk.end(status, iterations=self.trainer.iterations, steps=self.trainer.env_steps, **facts)):
            with contextlib.suppress(OSError) if "error" in facts else self._writing():      # of two errors, the first is reported
                write()

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

    def _announce(self, disk: RunFolder, changed: dict[str, Any]) -> None:
        trainer = self.trainer
        disk.begin(trainer.config, changed, **describe_device(trainer.device), num_envs=trainer.num_envs, num_steps=trainer.steps,
                   iterations=trainer.iterations, logs={} if self.logs is None else self.logs.keys)

    def _candidate(self) -> Candidate:
        """The state of the run and its description, for a checkpoint. Raises `Diverged` if weights are not finite."""
        trainer = self.trainer
        self._check_weights()
        about = {"kind": "checkpoint", "iteration": trainer.iterations, "env_steps": trainer.env_steps, "config": to_dict(trainer.config),
                 "policy": self.policy, "metrics": self.log.seal()}
        return Candidate({name: x.cpu() for name, x in trainer.get_state().items()}, about)

    def _restore(self, disk: RunFolder, resume: bool | str) -> bool:
        """Restore the checkpoint that `resume` means. Returns whether that one lies apart from the newest, or before it."""
        trainer, config = self.trainer, self.trainer.config
        assert self.checkpoints is not None

        def check(found: Checkpoint) -> None:
            try:
                before, _ = from_dict(found.about["config"]), int(found.about["env_steps"])
                saved = {name: build_space(found.about["policy"][name]) for name in ("observation_space", "action_space")}
            except (KeyError, TypeError, AttributeError, AssertionError) as error:      # AssertionError: Gymnasium's spaces
                raise CheckpointError(f"{found.folder} does not describe a run: {type(error).__name__}: {clip_text(error)}") from error
            check_same(before, config, found.folder, changeable=True)
            check_fit(SimpleNamespace(**saved), trainer.env)
            bad = trainer.agent.not_finite(states.under("agent.", found.tensors))
            if bad:
                raise CheckpointError(f"{found.folder}: weights are not finite ({bad})")

        wanted = str(resume)
        if resume is True:
            wanted = "best" if read_info(disk.path).get("diverged") else "newest"
        places = _find(disk.path, list(self.checkpoints.paths()), wanted, must=resume is not True)
        found = self.checkpoints.newest(self.say, load=trainer.replay, check=check, paths=places)
        if found is None:
            if places and resume not in (True, "newest"):
                raise ValueError(f"the checkpoint {wanted!r} of {disk.path} is damaged; leave out --from (resume=True) to use another")
            if places:
                raise ValueError(f"all checkpoints of {disk.path} are damaged; to train again, move the folder away or choose a new name")
            self.say(f"{disk.path} has no checkpoint yet: the run starts from the beginning")
            return False
        back = found.folder.name == BEST or wanted not in ("newest", "best")
        reached, before, total = int(found.about["env_steps"]), load_config(disk.path).total_steps, config.total_steps
        if total <= reached and total < before:
            raise ValueError(f"{disk.path} has done {reached:,} of {before:,} steps; total_steps ({total:,}) counts these too and cannot "
                             "be less")
        try:
            trainer.set_state(found.tensors)
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"{found.folder} does not hold what {config.agent} needs to continue: {clip_text(error)}") from error
        self.seal = found.about.get("metrics")
        self.saved = -1 if found.folder.name == BEST else trainer.iterations
        if back:
            score = found.about.get("best", {}).get("score")
            self.say(f"training goes on from the {'best ' if found.folder.name == BEST else ''}checkpoint of iteration {trainer.iterations}"
                     + (f" (return {score:.4g})" if isinstance(score, (int, float)) else ""))
        self.bad_steps = int(trainer.bad if trainer.replay is None else trainer.replay.bad)
        if trainer.replay is not None and not trainer.replay.added:
            self.say(f"the checkpoint holds no replay (save_replay was off): it starts empty at iteration {trainer.iterations}")
        if not trainer.env.unwrapped.restorable:
            self.say(f"{config.env} cannot be restored: its episodes restart at iteration {trainer.iterations}")
        return back

    def _tell_bad_steps(self, row: dict[str, Any]) -> None:
        """Say once that an env gave numbers that are not finite."""
        if row.get("bad_steps", 0) and not self.bad_steps:
            self.bad_steps = round(row["bad_steps"])
            learned = "" if self.trainer.replay is None else " and are not learned from"
            self.say(f"{self.bad_steps} steps had observations or rewards that are not finite; these numbers count as zeros{learned}")

    def _tell_outliers(self, row: dict[str, Any]) -> None:
        """Say once that rewards were far outside what was seen before."""
        if row.get("outliers", 0) and not self.outliers:
            self.outliers = True
            self.say(f"a reward of magnitude {row['outlier_reward']:.3g} in iteration {row['iteration']} is far outside what was seen "
                     f"before (at most {row['usual_reward']:.3g}); such rewards count as {FACTOR:,.0f} times the largest before them")

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
        """End the run if weights are not finite, or after iterations that skip most updates, more than `max_skipped` in a row."""
        limit = self.trainer.config.max_skipped
        skipped, updates = round(row.get("skipped", 0)), round(row.get("updates", 0))
        if skipped:
            self.clean = False
            self._check_weights()
        self.skipped = self.skipped + skipped if 2 * skipped > updates else 0
        if self.skipped > limit:
            raise Diverged(self._kept(f"loss or gradients were not finite in the last {self.skipped} updates (max_skipped: {limit}), so "
                                      "training makes no progress"))

    def _check_weights(self) -> None:
        bad = self.trainer.agent.not_finite()
        if bad:
            self.skipped = max(self.skipped, 1)      # nothing of this is saved
            raise Diverged(self._kept(f"training diverged in iteration {self.trainer.iterations}: weights are not finite ({bad})"))

    def _kept(self, problem: str) -> str:
        kept = "nothing was written" if self.disk is None else \
            f"the last good checkpoint is of iteration {self.saved}" if self.saved >= 0 else "there is no checkpoint yet"
        return (f"{problem}; {kept}. Try a lower learning_rate or max_grad_norm, and look for rewards and observations that are not finite "
                "or very large")


def _find(folder: Path, newest: list[Path], wanted: str, must: bool) -> list[Path]:
    """The checkpoints to try: newest, best, or an iteration is wanted. must: nothing else will do."""
    best = [path for path in (inside(folder / BEST, folder),) if path.is_dir()]
    if wanted == "newest":
        return [*newest, *best]
    if wanted == "best" and (best or not must):
        return best if must else [*best, *newest]
    found = [path for path in newest if wanted.isdecimal() and int(path.name) == int(wanted)]
    if not found:
        there = ", ".join([*(str(int(path.name)) for path in newest), *(path.name for path in best)]) or "none"
        raise ValueError(f"{folder} has no checkpoint {wanted!r}; it has: {there}")
    return found


def _plain(described: dict[str, Any]) -> dict[str, Any]:
    """The description as JSON holds it, checked before anything is trained."""
    try:
        return json.loads(json.dumps(described))
    except TypeError as error:
        raise ValueError(f"the policy cannot be saved: {error}; use plain values in network.memory_options") from error
