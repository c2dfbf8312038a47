"""The results of a study, finished or not: records of its runs, what its measurements returned, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .folder import StudyFolder
from .study import MeasureTask, Study, Task


@dataclass(frozen=True)
class Results:
    study: Study
    records: Mapping[str, Mapping[str, Any]]                       # of finished runs, by task name
    measures: Mapping[str, Any]                                    # what measurements returned, by task name
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)      # machine and seconds of each measurement
    missing: Mapping[str, str] = field(default_factory=dict)       # task name: its state, with the error if it failed

    def cells(self, *labels: str) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
        """Records grouped by the values of some labels, in the study's order. Cells without a finished run have an empty list."""
        found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for task in self.study.runs:
            cell = found.setdefault(tuple(task.labels.get(label, "") for label in labels), [])
            if task.name in self.records:
                cell.append(self.records[task.name])
        return found

    def label_values(self, label: str) -> list[str]:
        """The values of a label, in the study's order."""
        return list(dict.fromkeys(task.labels.get(label, "") for task in self.study.runs))

    def scores(self, records: Sequence[Mapping[str, Any]], which: str = "final") -> list[float]:
        """The score of each run, scaled. which: "final" or "best"; a run without such a value is left out."""
        found = (record[which].get(self.study.score) for record in records)
        return [self.study.scale * score for score in found if score is not None]

    def curves(self, records: Sequence[Mapping[str, Any]]) -> list[tuple[list[float], list[float]]]:
        """Steps and scaled values of the study's score for each run."""
        name = self.study.score
        parts = [record["eval" if name.startswith("eval_") else "curve"] for record in records]
        return [(part["steps"], [self.study.scale * y for y in part[name]]) for part in parts if name in part]

    @property
    def complete(self) -> bool:
        return not self.missing


def read_results(folder: StudyFolder | Path | str, study: Study | None = None) -> Results:
    """All results in a study's folder. study: None: the one that the folder says it holds, without its own sections."""
    folder = folder if isinstance(folder, StudyFolder) else StudyFolder(folder)
    if study is None:
        saved = folder.read()
        study = Study(saved["name"], saved["title"], folder.tasks(), saved["about"], saved["score"], saved["scale"], saved["source"])
    records, measures, facts, missing = {}, {}, {}, {}
    for task in study.tasks:
        found = folder.result(task)
        if found is None:
            missing[task.name] = _why(folder, task)
        elif isinstance(task, MeasureTask):
            measures[task.name] = found["found"]
            facts[task.name] = {"seconds": found["seconds"], "machine": found["machine"]}
        else:
            records[task.name] = found
    return Results(study, records, measures, facts, missing)


def _why(folder: StudyFolder, task: Task) -> str:
    state, failure = folder.state(task), folder.failure(task)
    return f"failed: {failure.get('error', '')}" if failure is not None else state
