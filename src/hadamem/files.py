"""Files that survive a crash: written under another name, forced to the disk, then renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write or replace a file; it is there as a whole or not at all."""
    new = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        write_through(new, data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_file` with text."""
    write_file(path, text.encode())


def write_through(path: Path, data: bytes) -> None:
    """Write a file and force it to the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, where the system can."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def clip_text(error: BaseException, length: int = 300) -> str:
    """An error's message in one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:length]
