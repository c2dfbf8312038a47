"""Runs a study of measurements end to end, for its tests."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from hadamem.experiments.study import MeasureTask, Study, from_plain, to_plain
from hadamem.experiments.worker import find_measure
from hadamem.reports.content import Section


def run(study: Study) -> tuple[SimpleNamespace, list[Section]]:
    """Results as they come back from JSON, and what the report says of them."""
    measures: dict[str, Any] = {}
    for task in study.measures:
        again = from_plain(json.loads(json.dumps(to_plain(task))))
        assert again == task
        assert isinstance(again, MeasureTask)
        measures[task.name] = json.loads(json.dumps(find_measure(again.function)(**again.settings), allow_nan=False))
    results = SimpleNamespace(measures=measures, study=study)
    assert study.sections is not None
    found = list(study.sections(results))
    assert not any("Missing" in section.text for section in found)
    assert all(item.series for section in found for item in section.items if hasattr(item, "series"))
    assert all(len(item.rows) for section in found for item in section.items if hasattr(item, "rows"))
    names = [item.name for section in found for item in section.items]
    assert len(set(names)) == len(names)
    check_missing(study)
    return results, found


def check_missing(study: Study) -> None:
    """Without results, the report names every measurement that is missing."""
    assert study.sections is not None
    text = " ".join(section.text for section in study.sections(SimpleNamespace(measures={}, study=study)))
    assert "Missing" in text
    for task in study.measures:
        assert task.name in text
