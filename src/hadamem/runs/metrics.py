"""The metrics of a run, one row per iteration: `metrics.jsonl`, or in memory if the run has no folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..files import free_name, sync_folder, write_file, write_text
from .files import inside

TIMES = ("seconds", "rollout_seconds", "update_seconds", "eval_seconds", "elapsed")      # these differ between otherwise identical runs


class MetricsLog:
    """Appends rows to a file and flushes after each. path None: keeps them in memory, as lines of JSON.

    Values that are not finite are omitted.
    """

    def __init__(self, path: Path | None = None):
        self.path, self._lines = path, list[str]()
        self._hash, self._bytes = hashlib.sha256(), 0      # of all rows
        self._file = None if path is None else open(inside(path, path.parent), "a", encoding="utf-8", newline="\n")   # noqa: SIM115  # closed by close()
        if path is not None:
            self._count(path.read_bytes())

    def add(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row. Returns it as it was written."""
        kept = {name: x for name, x in row.items() if not isinstance(x, float) or math.isfinite(x)}
        line = json.dumps(kept)
        if self._file is None:
            self._lines.append(line)
        else:
            self._file.write(line + "\n")
            self._file.flush()
            self._count(f"{line}\n".encode())
        return kept

    def seal(self) -> dict[str, Any]:
        """Size and checksum of all rows so far, for `cut_back` and `verify`."""
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def _count(self, data: bytes) -> None:
        self._hash.update(data)
        self._bytes += len(data)

    def sync(self) -> None:
        """Flush the file to disk (fsync)."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines] if self.path is None else read_rows(self.path)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):      # all rows were written by `add`; if that failed, it has said so
                self._file.close()


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row to a file and sync it to disk. It is a single write, so several processes may append.

    If the file ends in an incomplete row, left by a crash, a newline is written first; `read_rows` skips that row.
    """
    with open(inside(path, path.parent), "a+b", buffering=0) as file:
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
    """The rows of a .jsonl file. Damaged and incomplete lines are skipped; a missing file has no rows."""
    return [row for _, _, row in read_lines(path) if row is not None]


def keep_later(path: Path, iteration: int) -> None:
    """Keep a copy of the file if it has rows after an iteration, which are about to be given up."""
    latest = max((row["iteration"] for row in read_rows(path) if isinstance(row.get("iteration"), int)), default=iteration)
    if latest > iteration:
        write_file(free_name(path.with_name(f"{path.stem}.until-{latest}{path.suffix}")), path.read_bytes())


def cut_back(path: Path, iteration: int, say: Callable[[str], None], seal: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Drop the rows after an iteration, and damaged ones, of which `say` is told. Returns the last row that is kept.

    seal: of the rows up to that iteration; `say` is told if they have changed.
    """
    last: dict[str, Any] | None = None
    lines, damaged = list[str](), list[int]()
    for number, line, row in read_lines(path):
        if row is None or not isinstance(row.get("iteration", math.inf), (int, float)):
            damaged.append(number)
        elif row.get("iteration", math.inf) <= iteration:
            lines.append(line + "\n")
            last = row
    if damaged:
        kept = free_name(path.with_name(f"{path.name}.damaged"))
        write_file(kept, path.read_bytes())
        say(f"{path} had {len(damaged)} damaged {'row' if len(damaged) == 1 else 'rows'} (line {', '.join(map(str, damaged[:5]))}"
            f"{' ...' if len(damaged) > 5 else ''}), which {'was' if len(damaged) == 1 else 'were'} dropped; the file as it was is {kept}")
    text = "".join(lines)
    if isinstance(seal, Mapping) and not damaged and hashlib.sha256(text.encode()).hexdigest() != seal.get("sha256"):
        say(f"{path} was changed: its rows up to iteration {iteration} do not have the checksum of the checkpoint; they stay as they are")
    write_text(path, text)
    return last


def read_lines(path: Path) -> Iterator[tuple[int, str, dict[str, Any] | None]]:
    """Number, text and row of each line of a .jsonl file; None for a damaged one. An incomplete last line, left by a crash, is skipped."""
    if not inside(path, path.parent).is_file():
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line.endswith("\n"):
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                yield number, line.rstrip("\n"), row if isinstance(row, dict) else None
