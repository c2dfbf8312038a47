"""Where else the metrics of a run go: TensorBoard, Weights & Biases, MLflow. Each is imported only if it is asked for.

None of them can stop a run: one that fails is told of once and then left alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .config import TrainConfig, to_dict

X_AXIS = ("iteration", "steps")      # no curves of their own


class TensorBoard:
    """Events in the run's own folder, over env steps. On a resumed run, events after the present step are purged."""

    def __init__(self, folder: Path, config: TrainConfig, steps: int, known: str | None):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=steps + 1 if steps else None)
        self.key: str | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if name not in X_AXIS:
                self.writer.add_scalar(name, value, row["steps"])

    def close(self, status: str) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases, in the project of $WANDB_PROJECT or else "hadamem". A resumed run goes on under its id."""

    def __init__(self, folder: Path, config: TrainConfig, steps: int, known: str | None):
        import wandb

        self.run: Any = wandb.init(project=os.environ.get("WANDB_PROJECT", "hadamem"), name=folder.name, dir=str(folder),
                                   config=to_dict(config), id=known, resume="allow")
        self.key: str | None = self.run.id

    def add(self, row: Mapping[str, Any]) -> None:
        self.run.log(dict(row), step=int(row["iteration"]))

    def close(self, status: str) -> None:
        self.run.finish(exit_code=1 if status == "failed" else 0)


class MLflow:
    """A run of MLflow, at $MLFLOW_TRACKING_URI; settings are its parameters. A resumed run goes on under its id."""

    def __init__(self, folder: Path, config: TrainConfig, steps: int, known: str | None):
        from mlflow.tracking import MlflowClient

        self.client: Any = MlflowClient()
        if known is None:
            name = "hadamem"
            found = self.client.get_experiment_by_name(name)
            experiment = self.client.create_experiment(name) if found is None else found.experiment_id
            known = self.client.create_run(experiment, run_name=folder.name).info.run_id
            for name, value in _flat(to_dict(config)).items():
                self.client.log_param(known, name, value)
        else:
            self.client.update_run(known, status="RUNNING")
        self.key: str | None = known

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if name not in X_AXIS:
                self.client.log_metric(self.key, name, float(value), step=int(row["steps"]))

    def close(self, status: str) -> None:
        ends = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self.client.set_terminated(self.key, status=ends[status])


KINDS: dict[str, Callable[..., Any]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
OPTIONAL = ("tensorboard",)      # on by default, so its absence is no error


class Logs:
    """All that the settings ask for. keys: the ids under which they know this run, from an earlier part of it."""

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

    def _start(self, name: str, folder: Path, config: TrainConfig, steps: int, known: str | None) -> None:
        try:
            self.open[name] = KINDS[name](folder, config, steps, known)
        except ImportError as error:
            if name not in OPTIONAL:
                raise ValueError(f"log={name!r} needs the package {name}: pip install {name}, or leave it out") from error
            self.say(f"no {name} events are written: pip install {name} to have them, or log=() to leave them out")
        except Exception as error:
            raise ValueError(f"log={name!r} cannot be started: {_told(error)}; leave it out, or see to it") from error

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
                self.say(f"{name} failed and gets no more metrics, the run goes on: {_told(error)}")


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{path}{name}.") if isinstance(value, dict) and value else {path + name: value}
    return out


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
