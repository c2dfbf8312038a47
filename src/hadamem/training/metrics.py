"""The rows of a run, one for each iteration: `metrics.jsonl`, or lines kept in memory where nothing is written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .checkpoint import sync_folder, write_text

TIMES = ("seconds", "rollout_seconds", "update_seconds", "elapsed")      # what differs between two runs that are otherwise the same


class MetricsLog:
    """Rows are appended and at once handed to the system. path None: kept here, as short lines.

    A value that is not finite is left out of its row, as are those of episodes where none ended.
    """

    def __init__(self, path: Path | None = None):
        self.path, self._lines = path, list[str]()
        self._file = None if path is None else open(path, "a", encoding="utf-8")   # noqa: SIM115  # closed by close()

    def add(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row as it was written."""
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
    """Add one row to a file that is not held open, and force it to the disk.

    The rows before it are not touched, and it is handed over in one piece, also beside other processes that append. What a crash left of
    an earlier row is closed with a line break, so that it does not swallow this one; `read_rows` passes over it.
    """
    with open(path, "a+b", buffering=0) as file:
        torn = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
        rest = memoryview(b"\n" * torn + json.dumps(row).encode() + b"\n")
        while rest:      # all at once, unless the disk is full, which is an error
            rest = rest[file.write(rest):]
        os.fsync(file.fileno())
    sync_folder(path.parent)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file. What a crash left of a line is passed over; without a file there are none."""
    return [row for _, row in _read(path)]


def cut_back(path: Path, iteration: int) -> dict[str, Any] | None:
    """Drop the rows after an iteration, and what a crash left of a line. Returns the last row that stays."""
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
