"""Run a sweep: Optuna proposes settings, processes train them, and those that do badly are stopped early.

Only this process uses Optuna's database. A trial is "running" there until it is told how it ended, so a sweep that was killed finds its
unfinished trials again and resumes their runs from their checkpoints.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from ..devices import find_device, gpu_slots, runs_at_once
from ..lookup import trusted_names
from ..runs.folder import METRICS, RunFolder, is_locked, is_run, save_config
from ..runs.metrics import read_rows
from ..statistics import final_score, series
from ..training.launch import is_finished, last_row, log_of
from ..training.processes import PATIENCE, Job, python_module, run_jobs
from . import local, running
from .folder import lock
from .ray_jobs import ray_jobs
from .status import TaskStatus
from .sweep import Range, Sweep
from .sweep_folder import SweepFolder
from .worker import FINAL, INTERRUPTED

POINTS = 20           # of a run, at which its score is reported to the pruner
LAST = 10             # a score is the mean over this many iterations
ENDED = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
HOPELESS = 5          # a sweep stops after so many failed trials in a row
Launch = Callable[..., bool]      # as `run_jobs`


@dataclass
class Active:
    """A trial whose runs are not finished."""

    trial: Any                                                # optuna.Trial
    values: Mapping[str, Any]                                 # the settings that are searched
    folders: Mapping[int, Path]                               # by seed
    reported: set[int]                                        # steps known to the pruner
    jobs: list[Job] = field(default_factory=list)             # those that were started
    pruned: bool = False
    error: str = ""
    stopped: float | None = None                              # when its runs were interrupted

    @property
    def name(self) -> str:
        return f"trial {self.trial.number}"

    @property
    def ending(self) -> bool:
        return self.pruned or bool(self.error)


def run_sweep(sweep: Sweep, out: Path | str, *, launcher: str = "local", jobs: int | None = None, retries: int = 1,
              ray_address: str | None = None, gpus_per_run: float = 0.0, watch: running.Watch = lambda tasks, at_once: None,
              say: Callable[[str], None] = lambda text: None, launch: Launch = run_jobs) -> optuna.Study:
    """Do the trials that are missing, in the folder `out`. Returns Optuna's study; trials that it calls running were interrupted.

    launcher: "local" (processes) or "ray"; see `cluster.launch` for ray_address and gpus_per_run. jobs: runs at the same time; None: three
    per GPU or one per core here, one per CPU of a cluster. retries: how often a run that crashed is started again.
    """
    running.check_launch(launcher, jobs, retries)
    folder = SweepFolder(out)
    folder.check(sweep)
    running.check(sweep.tasks())
    with lock(folder.path, "sweep") if folder.exists() else contextlib.nullcontext():      # of a sweep that runs, nothing is changed
        folder.begin(sweep)
    place: contextlib.AbstractContextManager[tuple[Callable[..., Job], int]] = ray_jobs(ray_address, jobs, gpus_per_run) \
        if launcher == "ray" else contextlib.nullcontext((Job, jobs or runs_at_once(find_device("auto"))))
    with lock(folder.path, "sweep"), place as (make_job, at_once):
        loop = Sweeper(sweep, folder, open_study(sweep, folder), retries, say, make_job)

        def tick(jobs: Sequence[Job]) -> None:
            loop.look(jobs)
            watch(loop.statuses(), at_once)

        watch(loop.statuses(), at_once)
        launch(loop, at_once, slots=gpu_slots([str(sweep.settings.get("device", ""))]), again=loop.again, tick=tick, every=2.0,
               stopping=lambda: say("stopping: waiting for the runs to write a checkpoint"))
        tick([])
        loop.write_best()      # an earlier call may have been killed before it could
    return loop.study


def open_study(sweep: Sweep, folder: SweepFolder) -> optuna.Study:
    """The study in the folder's database, which is made if it is missing."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.NopPruner() if sweep.pruning == "none" else \
        optuna.pruners.MedianPruner(n_startup_trials=sweep.warmup_trials, n_warmup_steps=sweep.warmup_steps)
    return optuna.create_study(storage=f"sqlite:///{folder.database}", study_name=sweep.name, pruner=pruner,
                               direction=optuna.study.StudyDirection[sweep.direction.upper()], load_if_exists=True)


class Sweeper:
    """The trials of a sweep: iterate for the next run to start, and call `look` to see how the running ones do.

    Runs of unfinished trials come first, then those of new ones. A trial that fails is replaced, so there may be more after the end.
    """

    def __init__(self, sweep: Sweep, folder: SweepFolder, study: optuna.Study, retries: int, say: Callable[[str], None],
                 make_job: Callable[..., Job] = Job):
        self.sweep, self.folder, self.study, self.retries, self.say, self.make_job = sweep, folder, study, retries, say, make_job
        self.total = sweep.config(sweep.extremes()[0]).total_steps
        self.unfinished = [trial for trial in study.get_trials(deepcopy=False) if trial.state == TrialState.RUNNING]      # of earlier calls
        self.current: Iterator[Job] = iter(())
        self.active = dict[int, Active]()
        self.known = dict[str, TaskStatus]()      # of trials that have ended, by name
        self.failed = 0                           # trials in a row

    # --- which run is next -----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        while (job := next(self.current, None)) is None:
            self.current = self._runs(self._next_trial())
        return job

    def _next_trial(self) -> optuna.Trial:
        if self.unfinished:
            return optuna.Trial(self.study, self.unfinished.pop(0)._trial_id)
        count = sum(trial.state != TrialState.FAIL for trial in self.study.get_trials(deepcopy=False))
        if count >= self.sweep.trials or self.failed >= HOPELESS:
            raise StopIteration
        return self._ask()

    def _ask(self) -> optuna.Trial:
        """A new trial. Each has a sampler of its own, so that a sweep that was interrupted does not draw the same numbers again."""
        seed = int(np.random.SeedSequence([self.sweep.seed, len(self.study.get_trials(deepcopy=False))]).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)      # constant_liar, before Optuna 5
            self.study.sampler = optuna.samplers.RandomSampler(seed) if self.sweep.sampler == "random" else \
                optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return self.study.ask()

    def _runs(self, trial: optuna.Trial) -> Iterator[Job]:
        values = {name: suggest(trial, found) for name, found in self.sweep.search.items()}
        names = trusted_names([self.sweep.settings, values])
        folders = {seed: self.folder.run_folder(trial.number, seed) for seed in self.sweep.seeds}
        before = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        active = self.active[trial.number] = Active(trial, values, folders, set(before))
        for seed, place in folders.items():
            if is_run(place):
                self._wait_for(place)      # of a sweep that was killed
            else:
                save_config(self.sweep.config(values, seed), config_file(place))
        self._report(active)
        for place in folders.values():
            if not active.ending and not is_finished(place, self.total):
                job = self.make_job(place.name, lambda place=place: command(place, names), log_of(place))
                active.jobs.append(job)
                yield job
        self._settle(active)

    def _wait_for(self, place: Path, seconds: float = PATIENCE) -> None:
        """Wait for the process of a killed sweep that still trains in a folder. It stops after its iteration."""
        end, said = time.monotonic() + seconds, False
        while True:
            try:
                with RunFolder(place, resume=True):
                    return
            except ValueError:
                if time.monotonic() > end:
                    raise
                if not said:
                    self.say(f"{place.name}: waiting for the process that still trains it")
                said = True
                time.sleep(0.2)

    # --- how the running ones do -----------------------------------------------------------------------------------

    def again(self, job: Job) -> bool:
        """Whether to start a job once more that has ended with an error."""
        wanted = any(not active.ending for active in self.active.values() if job in active.jobs)      # not of a trial that was told
        return wanted and job.code not in (0, *FINAL) and job.starts <= self.retries

    def look(self, jobs: Sequence[Job]) -> None:
        """Report scores, stop what does badly, and tell Optuna what has ended. jobs: those that run, or have just ended."""
        for active in list(self.active.values()):
            for job in jobs:
                if job in active.jobs and job.code not in (None, 0, INTERRUPTED) and not active.ending and not self.again(job):
                    active.error = local.why_ended(job)
            if not active.ending:
                self._report(active)
            if active.ending:
                self._stop(active)
            self._settle(active)

    def _report(self, active: Active) -> None:
        """Report the scores at points that the trial has passed, and decide whether to prune it."""
        rows = [read_rows(place / METRICS) for place in active.folders.values()]
        for step, value in points(rows, self.total, self.sweep.score):
            if step not in active.reported:
                active.reported.add(step)
                active.trial.report(value, step)
                if active.trial.should_prune():
                    active.pruned = True
                    return

    def _stop(self, active: Active) -> None:
        """Interrupt the runs of a trial; kill them if they do not end."""
        first = active.stopped is None
        active.stopped = active.stopped or time.monotonic()
        for job in active.jobs:
            if job.process is None or job.code is not None:
                continue
            if first:
                job.interrupt()
            elif time.monotonic() > active.stopped + PATIENCE:
                job.process.kill()

    def _settle(self, active: Active) -> None:
        """Tell Optuna how a trial ended, if it has."""
        number = active.trial.number
        if number not in self.active:
            return
        if all(is_finished(place, self.total) for place in active.folders.values()):
            try:
                scores = [final_score(read_rows(place / METRICS), LAST, self.sweep.score) for place in active.folders.values()]
            except ValueError as error:      # no episode ended
                active.error = str(error)
            else:
                self.study.tell(number, float(np.mean(scores)))
                return self._end(active, "finished", float(np.mean(scores)))
        if not active.ending or any(job.process is not None and job.code is None for job in active.jobs):
            return None
        if active.error:
            active.trial.set_user_attr("error", active.error)
        self.study.tell(number, state=TrialState.FAIL if active.error else TrialState.PRUNED)
        return self._end(active, "failed" if active.error else "pruned")

    def _end(self, active: Active, state: str, value: float | None = None) -> None:
        number = active.trial.number
        del self.active[number]
        self.failed = self.failed + 1 if state == "failed" else 0
        best = ""
        if state == "finished" and self.study.best_trial.number == number:
            self.write_best()
            best = ", the best so far"
        if state != "failed":      # the view says that
            shown = state if value is None else f"{self.sweep.score} {value:.4g}{best}"
            self.say(f"{active.name}: {shown} ({', '.join(f'{short(name)} {show(x)}' for name, x in active.values.items())})")

    def write_best(self) -> None:
        """Write the settings of the best trial, if one has finished."""
        if any(trial.state == TrialState.COMPLETE for trial in self.study.get_trials(deepcopy=False)):
            params = self.study.best_trial.params
            save_config(self.sweep.config({name: found.value(params[name]) for name, found in self.sweep.search.items()}), self.folder.best)

    def statuses(self) -> list[TaskStatus]:
        """The state of every trial, for the view. Those that have ended are looked up once."""
        found = states(self.sweep, self.folder, self.study.get_trials(deepcopy=False), self.active, self.known)
        self.known |= {status.name: status for status in found if status.state in ("finished", "pruned", "failed")}
        return found


def states(sweep: Sweep, folder: SweepFolder, trials: Sequence[Any], active: Container[int] = (),
           known: Mapping[str, TaskStatus] = MappingProxyType({})) -> list[TaskStatus]:
    """The state of every trial, and of those that are still to come. active: numbers of those that run; known: states that stay."""
    total = sweep.config(sweep.extremes()[0]).total_steps
    found = list[TaskStatus]()
    for trial in trials:
        name = f"trial {trial.number}"
        if name in known:
            found.append(known[name])
            continue
        places = [folder.run_folder(trial.number, seed) for seed in sweep.seeds]
        rows = [last_row(place) for place in places]
        runs = trial.number in active or any(is_locked(place) for place in places)
        state = ENDED.get(trial.state) or ("running" if runs else "interrupted")
        newest = [row[sweep.score] for row in rows if sweep.score in row]
        value = trial.value if trial.state == TrialState.COMPLETE else newest[-1] if newest else None
        found.append(TaskStatus(name, state, sum(int(row.get("steps", 0)) for row in rows), total * len(rows),
                                sum(row.get("elapsed", 0.0) for row in rows), value, trial.user_attrs.get("error", "")))
    left = sweep.trials - sum(status.state != "failed" for status in found)
    return [*found, *(TaskStatus(f"trial {len(found) + n}", "waiting", total=total * len(sweep.seeds)) for n in range(left))]


def points(runs: Sequence[Sequence[Mapping[str, Any]]], total: int, score: str) -> Iterator[tuple[int, float]]:
    """Steps and values of a trial for the pruner: scores at 20 points of each run, the seeds one after another.

    The value at a point is the mean over seeds: final scores of the seeds before, and the score of this one so far. So trials are compared
    on the same seeds at the same steps, whether their runs were trained side by side or not. The last point is the trial's own value.
    """
    before = list[float]()
    for n, rows in enumerate(runs):
        steps, values = series(rows, score)
        reached, value = rows[-1]["steps"] if rows else 0, None
        for k in range(1, POINTS + 1):
            point = total * k // POINTS
            if reached < point or (k == POINTS and n == len(runs) - 1):
                return
            seen = values[steps <= point][-LAST:]
            if seen.size:
                value = float(seen.mean())
                yield n * total + point, float(np.mean([*before, value]))
        if value is None:
            return
        before.append(value)


def suggest(trial: Any, found: Range) -> Any:
    """A value in the range; the one that the trial already has, if there is one."""
    if found.choices:
        return found.value(trial.suggest_categorical(found.name, found.keys))
    pick = trial.suggest_int if found.whole else trial.suggest_float
    return pick(found.name, found.low, found.high, log=found.log)


def config_file(place: Path) -> Path:
    return place.with_name(place.name + ".yaml")


def command(place: Path, names: Sequence[str] = ()) -> list[str]:
    """names: classes of the user that the process may import."""
    place = place.resolve()
    return [*python_module("hadamem.experiments.trial"), str(config_file(place)), str(place), *(["--trust-names", *names] if names else [])]


def short(name: str) -> str:
    """The last part of a setting's name."""
    return name.rpartition(".")[2]


def show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
