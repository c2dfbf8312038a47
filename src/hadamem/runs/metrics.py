"""The metrics of a run, one row per iteration: `metrics.jsonl`, or in memory if the run has no folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..files import sync_folder, write_text

TIMES = ("seconds", "rollout_seconds", "update_seconds", "eval_seconds", "elapsed")      # these differ between otherwise identical runs


class MetricsLog:
    """Appends rows to a file and flushes after each. path None: keeps them in memory, as lines of JSON.

    Values that are not finite are omitted.
    """

    def __init__(self, path: Path | None = None):
        self.path, self._lines = path, list[str]()
        self._file = None if path is None else open(path, "a", encoding="utf-8")   # noqa: SIM115  # closed by close()

    def add(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row. Returns it as it was written."""
        kept = {name: x for name, x in row.items() if not isinstance(x, float) or math.isfinite(x)}
        line = json.dumps(kept)
        if self._file is None:
            self._lines.append(line)
        else:
            self._file.write(line + "\n")
            self._file.flush()
        return kept

    def sync(self) -> None:
        """Flush the file to disk (fsync)."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines] if self.path is None else read_rows(self.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row to a file and sync it to disk. It is a single write, so several processes may append.

    If the file ends in an incomplete row, left by a crash, a newline is written first; `read_rows` skips that row.
    """
    with open(path, "a+b", buffering=0) as file:
        incomplete = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            incomplete = file.read(1) != b"\n"
        rest = memoryview(b"\n" * incomplete + json.dumps(row).encode() + b"\n")
        while rest:      # a second write happens only if the disk is full, and raises
            rest = rest[file.write(rest):]
        os.fsync(file.fileno())
    sync_folder(path.parent)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file. Incomplete lines are skipped; a missing file has no rows."""
    return [row for _, row in _read(path)]


def cut_back(path: Path, iteration: int) -> dict[str, Any] | None:
    """Drop the rows after an iteration, and incomplete lines. Returns the last row that is kept."""
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
