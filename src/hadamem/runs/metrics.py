"""The metrics of a run, one row per iteration: `metrics.jsonl`, or lines in memory if the run has no folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .files import sync_folder, write_text

TIMES = ("seconds", "rollout_seconds", "update_seconds", "elapsed")      # these differ between runs that are otherwise the same


class MetricsLog:
    """Appends rows to a file and flushes each of them. path None: keeps them in memory, as lines of JSON.

    Values that are not finite are left out of their row.
    """

    def __init__(self, path: Path | None = None):
        self.path, self._lines = path, list[str]()
        self._file = None if path is None else open(path, "a", encoding="utf-8")   # noqa: SIM115  # closed by close()

    def add(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the row as it was written."""
        kept = {name: x for name, x in row.items() if not isinstance(x, float) or math.isfinite(x)}
        line = json.dumps(kept)
        if self._file is None:
            self._lines.append(line)
        else:
            self._file.write(line + "\n")
            self._file.flush()
        return kept

    def sync(self) -> None:
        """Force the rows to the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines] if self.path is None else read_rows(self.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row to a file and force it to the disk, in one write, so that several processes may append.

    If a crash left half a row at the end, a line break closes it first; `read_rows` skips it.
    """
    with open(path, "a+b", buffering=0) as file:
        torn = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
        rest = memoryview(b"\n" * torn + json.dumps(row).encode() + b"\n")
        while rest:      # one write, unless the disk is full, which raises
            rest = rest[file.write(rest):]
        os.fsync(file.fileno())
    sync_folder(path.parent)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file, without half-written lines. No file: no rows."""
    return [row for _, row in _read(path)]


def cut_back(path: Path, iteration: int) -> dict[str, Any] | None:
    """Drop the rows after an iteration, and half-written lines. Returns the last row that stays."""
    last: dict[str, Any] | None = None
    lines = []
    for line, row in _read(path):
        if row.get("iteration", math.inf) <= iteration:
            lines.append(line + "\n")
            last = row
    write_text(path, "".join(lines))
    return last


def _read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if not path.is_file():
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and line.endswith("\n"):
                yield line.rstrip("\n"), row
