"""Loggers: metrics for TensorBoard, Weights & Biases and MLflow. Each is imported only if the settings name it.

A logger that fails during a run is reported once and then disabled; training continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..files import clip_text
from .config import TrainConfig, to_dict, to_flat
from .files import inside

X_AXIS = ("iteration", "steps")      # not logged as curves


class TensorBoard:
    """Events in the run's folder, by env step. Resuming purges the events after the checkpoint."""

    def __init__(self, folder: Path, config: TrainConfig, steps: int, run_id: str | None):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=steps + 1)
        self.key: str | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if name not in X_AXIS:
                self.writer.add_scalar(name, value, row["steps"])

    def close(self, status: str) -> None:
        self.writer.close()


class WandB:
    """A Weights & Biases run in the project $WANDB_PROJECT (default: "hadamem"). A resumed run keeps its id."""

    def __init__(self, folder: Path, config: TrainConfig, steps: int, run_id: str | None):
        import wandb

        self.run: Any = wandb.init(project=os.environ.get("WANDB_PROJECT", "hadamem"), name=folder.name, dir=str(folder),
                                   config=to_dict(config), id=run_id, resume="allow")
        self.key: str | None = self.run.id

    def add(self, row: Mapping[str, Any]) -> None:
        self.run.log(dict(row), step=int(row["iteration"]))

    def close(self, status: str) -> None:
        self.run.finish(exit_code=1 if status == "failed" else 0)


class MLflow:
    """An MLflow run at $MLFLOW_TRACKING_URI, with the settings as parameters. A resumed run keeps its id."""

    def __init__(self, folder: Path, config: TrainConfig, steps: int, run_id: str | None):
        from mlflow.tracking import MlflowClient

        self.client: Any = MlflowClient()
        if run_id is None:
            name = "hadamem"
            existing = self.client.get_experiment_by_name(name)
            experiment = self.client.create_experiment(name) if existing is None else existing.experiment_id
            run_id = self.client.create_run(experiment, run_name=folder.name).info.run_id
            for name, value in to_flat(config).items():
                self.client.log_param(run_id, name, value)
        else:
            self.client.update_run(run_id, status="RUNNING")
        self.key: str | None = run_id

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if name not in X_AXIS:
                self.client.log_metric(self.key, name, float(value), step=int(row["steps"]))

    def close(self, status: str) -> None:
        statuses = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self.client.set_terminated(self.key, status=statuses[status])


LOGGERS: dict[str, Callable[..., Any]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
OPTIONAL = ("tensorboard",)      # on by default, so a missing package is not an error


class Logs:
    """All loggers that the settings name. keys: the ids of a resumed run, by logger."""

    def __init__(self, folder: Path, config: TrainConfig, steps: int, keys: Mapping[str, str], say: Callable[[str], None]):
        self.say = say
        self.open: dict[str, Any] = {}
        try:
            for name in config.log:
                self._start(name, folder, config, steps, keys.get(name))
        except BaseException:
            self.close("failed")
            raise
        self.keys = {name: log.key for name, log in self.open.items() if log.key is not None}

    def _start(self, name: str, folder: Path, config: TrainConfig, steps: int, run_id: str | None) -> None:
        try:
            inside(folder / name, folder)      # wandb has a folder of its name there
            self.open[name] = LOGGERS[name](folder, config, steps, run_id)
        except ImportError as error:
            if name not in OPTIONAL:
                raise ValueError(f"log={name!r} needs the package {name}: pip install {name}, or remove it from log") from error
            self.say(f"{name} is not installed, so it gets no events; pip install {name}, or set log to none")
        except Exception as error:
            raise ValueError(f"log={name!r} cannot be started: {type(error).__name__}: {clip_text(error)}; "
                             "fix that, or remove it from log") from error

    def add(self, row: Mapping[str, Any]) -> None:
        self._each(lambda log: log.add(row))

    def close(self, status: str) -> None:
        self._each(lambda log: log.close(status))
        self.open = {}

    def _each(self, call: Callable[[Any], None]) -> None:
        for name, log in list(self.open.items()):
            try:
                call(log)
            except Exception as error:
                del self.open[name]
                self.say(f"{name} failed and gets no more metrics; training continues: {type(error).__name__}: {clip_text(error)}")
