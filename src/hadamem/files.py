"""Files that survive a crash: written under another name, forced to the disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path

from .names import shorten

LONGEST_NAME = 255      # bytes that a name in a folder may have, on all systems in use


def check_path(path: Path) -> None:
    """Raise a ValueError if no file can have this name, which systems say in words that name no argument."""
    try:
        too_long = any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts)
        os.lstat(path)
    except ValueError:
        raise ValueError(f"{shorten(str(path))} holds a character that no path may have; choose another path") from None
    except OSError as error:
        too_long = too_long or error.errno == errno.ENAMETOOLONG
    if too_long:
        raise ValueError(f"{shorten(str(path))} is too long for a path or for a name in one; choose a shorter one")


def write_file(path: Path, data: bytes) -> None:
    """Write or replace a file; it is there as a whole or not at all."""
    new = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        write_through(new, data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    sync_folder(path.parent)


def clear_leftovers(folder: Path) -> None:
    """Delete what processes that have died left half-written in a folder; an old version that was about to be replaced goes back."""
    for path in sorted(folder.glob(".*-*")):
        match = re.fullmatch(r"\.(.+)\.(new|old)-(\d+)|\.probe-(\d+)", path.name)
        if match is None or is_alive(int(match[3] or match[4])):
            continue
        whole = None if match[1] is None else path.with_name(match[1])
        with contextlib.suppress(OSError):
            if match[2] == "old" and whole is not None and not whole.exists():
                path.rename(whole)
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def is_alive(process: int) -> bool:
    """Whether another process of this machine with this id runs. One that was killed but not yet waited for does not."""
    if process == os.getpid() or os.name != "posix":
        return False
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, OverflowError):
        return False
    except (OSError, IndexError):      # someone else's, or a system without /proc
        return True


def write_text(path: Path, text: str) -> None:
    """`write_file` with text."""
    write_file(path, text.encode())


def write_through(path: Path, data: bytes) -> None:
    """Write a new file and force it to the disk. What has its name already, such as a link to elsewhere, is removed first."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
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


def free_name(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... at which nothing is."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found
