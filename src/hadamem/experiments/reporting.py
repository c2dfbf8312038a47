"""The report of one or several studies, finished or not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._version import __version__
from ..reports.content import Report, Section, Table, make_name
from . import paper
from .catalog import make_study
from .folder import StudyFolder
from .records import flatten
from .results import Results, read_results
from .sections import own_sections
from .study import Study


def build_report(folders: Sequence[StudyFolder | Path | str]) -> Report:
    """What is there is reported, and what is missing is named. `hadamem.reports.files.write_report` makes files of it."""
    if not folders:
        raise ValueError("a report needs at least one study")
    places = [folder if isinstance(folder, StudyFolder) else StudyFolder(folder) for folder in folders]
    found = [(folder, read_results(folder, _study(folder))) for folder in places]
    names = [results.study.name for _, results in found]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise ValueError(f"the study {double!r} is named twice; leave one out")
    for folder, results in found:
        if not results.records and not results.measures:
            raise ValueError(f"the study in {folder.path} has no results yet; `hadamem study status {folder.path}` says how far it is")
    sections = [section for folder, results in found for section in _sections(folder, results, several=len(found) > 1)]
    if any("paper" in results.study.source for _, results in found):
        sections.append(_differences())
    title = found[0][1].study.title if len(found) == 1 else "Studies: " + ", ".join(results.study.name for _, results in found)
    return Report(title, " ".join(_summary(results) for _, results in found), sections, _facts(found))


def _study(folder: StudyFolder) -> Study:
    """The study that a folder holds, with the sections that its file in `studies` has for it."""
    saved = folder.read()
    source = saved["source"]
    kind = _kind(source)
    made = None if kind is None else make_study(**{"name": source[kind], **{k: v for k, v in source.items() if k != kind}})
    return Study(saved["name"], saved["title"], folder.tasks(), saved["about"], saved["score"], saved["scale"], source,
                 None if made is None else made.sections)


def _kind(source: Mapping[str, Any]) -> str | None:
    """The command that makes the study by name; None: it is the user's own."""
    return next((kind for kind in ("paper", "bench") if kind in source), None)


def _sections(folder: StudyFolder, results: Results, several: bool) -> list[Section]:
    study = results.study
    sections = list((study.sections or own_sections)(results))
    if results.missing:
        waiting = [name for name, why in results.missing.items() if why == "waiting"]
        rows = [[name, why] for name, why in results.missing.items() if why != "waiting"]
        if waiting:
            rows.append([", ".join(waiting[:8]) + (f" and {len(waiting) - 8} more" if len(waiting) > 8 else ""), "waiting"])
        sections.append(Section("What is missing", f"{len(results.missing)} of {len(study.tasks)} tasks have no result yet. "
                                f"`{command(folder, study)}` continues the study.", [Table("missing", "Missing", ["task", "state"], rows)]))
    if results.records:
        sections.append(_settings(results))
    if not several:
        return sections
    return [replace(section, title=f"{study.title}: {section.title}",
                    items=[replace(item, name=make_name(study.name, item.name)) for item in section.items]) for section in sections]


def _settings(results: Results) -> Section:
    """Every setting of the runs; where they differ, all values."""
    flat = [flatten(record["config"]) for record in results.records.values()]
    names = dict.fromkeys(name for values in flat for name in values)
    rows = []
    for name in names:
        values = list(dict.fromkeys(json.dumps(values[name]) for values in flat if name in values))
        rows.append([name, ", ".join(values[:6]) + (f" and {len(values) - 6} more" if len(values) > 6 else "")])
    return Section("Settings", "Of all finished runs; several values where runs differ.",
                   [Table("settings", "Settings", ["setting", "value"], rows)])


def _summary(results: Results) -> str:
    study, done = results.study, len(results.records) + len(results.measures)
    words = f"{study.name}: {done} of {len(study.tasks)} tasks finished."
    if study.source.get("quick"):
        words += " **This is the quick version: it shows that everything works" + (
            ", and its numbers mean nothing.**" if study.runs else ", with small samples.**")
    if study.source.get("budget", 1.0) != 1.0:
        words += f" **With {study.source['budget']:g} times the steps or samples of the study, so not comparable with the paper.**"
    return words


def command(folder: StudyFolder, study: Study) -> str:
    """The command that makes the study, or continues it."""
    source = study.source
    kind = _kind(source)
    if kind is None:
        return shlex.join(["hadamem", "study", source.get("file", "FILE.yaml"), "--out", str(folder.path)])
    words = ["hadamem", kind, source[kind]]
    if source.get("protocol", "fair") != "fair":
        words += ["--protocol", source["protocol"]]
    if source.get("quick"):
        words.append("--quick")
    if source.get("budget", 1.0) != 1.0:
        words += ["--budget", f"{source['budget']:g}"]
    for name in ("seeds", "memories", "tasks", "variants"):
        if name in source:
            values = source[name] if isinstance(source[name], list | tuple) else [source[name]]
            words += [f"--{name}", *map(str, values)]
    return shlex.join([*words, "--out", str(folder.path)])


def _facts(found: Sequence[tuple[StudyFolder, Results]]) -> dict[str, str]:
    facts = {"hadamem": __version__}
    for folder, results in found:
        facts[f"command ({results.study.name})"] = command(folder, results.study)
        machines = [record["machine"] for record in results.records.values()] + [fact["machine"] for fact in results.facts.values()]
        seconds = sum(record["seconds"] for record in results.records.values()) + sum(fact["seconds"] for fact in results.facts.values())
        facts[f"machines ({results.study.name})"] = "; ".join(sorted({_machine(machine) for machine in machines})) or "none"
        facts[f"commits ({results.study.name})"] = ", ".join(sorted({str(machine.get("commit") or "unknown") for machine in machines}))
        facts[f"time ({results.study.name})"] = f"{seconds / 60:.1f} minutes in all, summed over tasks"
    return facts


def _machine(machine: dict[str, Any]) -> str:
    where = machine.get("gpu") or machine.get("cpu") or "unknown"
    return f"{where}, Python {machine.get('python')}, torch {machine.get('torch')}"


def _differences() -> Section:
    table = Table("differences", "Paper, published code, and what is done here", ["what", "paper", "published code", "here"],
                  [list(row) for row in paper.DIFFERENCES])
    return Section("Where paper and published code differ", "Numbers may differ from the paper's for these reasons, too.", [table])
