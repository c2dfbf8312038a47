"""Check every file of a run: what is damaged, missing, or leads out of its folder. Nothing is changed, and nothing is imported."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from ..files import clip_text
from .checkpoint import ABOUT, CHUNKS, Checkpoints, read, read_about
from .files import inside
from .folder import CHECKPOINTS, CONFIG, EVALUATION, EVALUATIONS, METRICS, RUN, read_config, read_info
from .metrics import read_lines


def verify(folder: Path) -> Iterator[str]:
    """One sentence for each problem of a run, a checkpoint or a saved policy. None: everything is as it was written."""
    if (folder / ABOUT).exists():      # a checkpoint or a policy by itself
        yield from _check_checkpoint(folder)
        return
    yield from _check_links(folder)
    yield from _check_config(folder)
    for name in (RUN, EVALUATION):
        yield from _check_json(folder / name, needed=name == RUN)
    yield from _check_rows(folder / EVALUATIONS)
    newest, seal = yield from _check_checkpoints(folder)
    yield from _check_metrics(folder / METRICS, newest, seal)
    for path in sorted(folder.iterdir()):      # policies that were saved there
        if path.name != CHECKPOINTS and (path / ABOUT).exists():
            yield from _check_checkpoint(path)


def _check_links(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        try:
            inside(path, folder)
        except ValueError as error:
            yield str(error)


def _check_config(folder: Path) -> Iterator[str]:
    if not (folder / CONFIG).is_file():
        yield f"{folder / CONFIG} is missing; `hadamem train --resume --out {folder}` writes it again from a checkpoint"
        return
    try:
        read_config(folder / CONFIG)
    except ValueError as error:
        yield clip_text(error)


def _check_json(path: Path, needed: bool) -> Iterator[str]:
    try:
        found = json.loads(inside(path, path.parent).read_bytes())
        if not isinstance(found, dict):
            yield f"{path} holds a {type(found).__name__}, not an object"
    except FileNotFoundError:
        if needed:
            yield f"{path} is missing"
    except (OSError, ValueError, RecursionError) as error:
        yield f"{path} cannot be read: {clip_text(error)}"


def _check_rows(path: Path) -> Iterator[str]:
    try:
        for number, _, row in read_lines(path):
            if row is None:
                yield f"{path}, line {number}: it is damaged"
    except (OSError, ValueError) as error:
        yield f"{path} cannot be read: {clip_text(error)}"


def _check_metrics(path: Path, newest: int, seal: Any) -> Iterator[str]:
    """newest: iteration of the newest checkpoint, up to which there must be a row for each. seal: of these rows."""
    if newest and not path.exists():
        yield f"{path} is missing, but there is a checkpoint of iteration {newest}"
        return
    damaged = list(_check_rows(path))
    yield from damaged
    try:
        if not damaged and isinstance(seal, dict) and isinstance(seal.get("bytes"), int):
            with open(path, "rb") as file:
                if hashlib.sha256(file.read(max(0, seal["bytes"]))).hexdigest() != seal.get("sha256"):
                    yield f"{path} was changed: its rows up to iteration {newest} do not have the checksum of the checkpoint"
        found = [(number, row.get("iteration")) for number, _, row in read_lines(path) if row is not None]
    except (OSError, ValueError):      # reported already
        return
    before = 0
    for number, iteration in found:
        if iteration != before + 1:
            yield f"{path}, line {number}: iteration {iteration!r} follows {before}"
        before = iteration if isinstance(iteration, int) else before + 1
    if before < newest:
        yield f"{path} ends at iteration {before}, but there is a checkpoint of iteration {newest}"


def _check_checkpoints(folder: Path) -> Generator[str, None, tuple[int, Any]]:
    """Yields problems, and returns the iteration of the newest checkpoint that has none (else 0), and the seal of its rows of metrics."""
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    newest: tuple[int, Any] = 0, None
    try:
        paths = list(checkpoints.paths())
    except ValueError as error:
        yield clip_text(error)
        return newest
    with contextlib.suppress(OSError, ValueError):      # reported by `_check_metrics`
        if not paths and read_info(folder).get("status") in ("finished", "interrupted") and any(read_lines(folder / METRICS)):
            yield f"{folder / CHECKPOINTS} has no checkpoint, but {METRICS} has rows"
    for path in paths:
        problems = list(_check_checkpoint(path))
        yield from problems
        if not problems:
            about = read_about(path)
            newest = newest if newest[0] else (int(path.name), about.get("metrics"))
            try:
                for _ in checkpoints.chunks.read(about.get(CHUNKS, [])):
                    pass
            except ValueError as error:
                yield clip_text(error)
    return newest


def _check_checkpoint(path: Path) -> Iterator[str]:
    try:
        read(path)
    except ValueError as error:
        yield clip_text(error)
