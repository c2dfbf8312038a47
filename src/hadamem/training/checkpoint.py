"""Tensors on disk that survive a crash: folders of two files, written under another name, forced to the disk, then renamed.

`tensors.safetensors` holds the tensors, `about.json` all else, and the size and checksum of the first. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._version import __version__

FORMAT = 1                 # of everything that a run writes; raised when an older hadamem could not read it
TENSORS, ABOUT = "tensors.safetensors", "about.json"


class CheckpointError(ValueError):
    """A folder of tensors that is damaged or missing; the message says where and how."""


class NewerFormatError(ValueError):
    """Something that was written by a newer version of hadamem."""


class Checkpoint(NamedTuple):
    """What `read` found: the tensors (on the CPU), and what is said about them."""

    folder: Path
    tensors: dict[str, Tensor]
    about: dict[str, Any]


def write(folder: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and what there is to say about them (plain values) into a folder. It is there as a whole or not at all."""
    from safetensors.torch import save

    data = save({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
    seal = {"file": TENSORS, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps({"format": FORMAT, "hadamem": __version__, "torch": torch.__version__, **about, "tensors": seal}, indent=1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir()
        _write_file(new / TENSORS, data)
        _write_file(new / ABOUT, text.encode())
        sync_folder(new)
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
        sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def read(folder: Path, only: str = "") -> Checkpoint:
    """Read what `write` wrote, checked against its checksum. only: the tensors whose names begin so."""
    from safetensors.torch import load

    about = read_about(folder)
    try:
        data = (folder / TENSORS).read_bytes()
        seal = about["tensors"]
        if len(data) != seal["bytes"]:
            raise CheckpointError(f"{folder / TENSORS} has {len(data)} bytes instead of {seal['bytes']}")
        if hashlib.sha256(data).hexdigest() != seal["sha256"]:
            raise CheckpointError(f"{folder / TENSORS} was changed: its checksum is wrong")
        tensors = load(data)
    except CheckpointError:
        raise
    except Exception as error:      # a missing file or entry, or anything that safetensors finds
        raise CheckpointError(f"{folder / TENSORS} cannot be read: {_told(error)}") from error
    return Checkpoint(folder, {name: x for name, x in tensors.items() if name.startswith(only)}, about)


def read_about(folder: Path) -> dict[str, Any]:
    """What is said about the tensors of a folder, alone."""
    path = folder / ABOUT
    try:
        about = json.loads(path.read_bytes())
        if not isinstance(about, dict):
            raise TypeError(f"it holds a {type(about).__name__}, no object")
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {_told(error)}") from error
    check_format(about, path)
    return about


def check_format(values: Mapping[str, Any], path: Path) -> None:
    """Refuse what a newer version wrote."""
    found = values.get("format", FORMAT)
    if not isinstance(found, int) or found > FORMAT:
        raise NewerFormatError(f"{path} was written by a newer hadamem ({values.get('hadamem', 'unknown')}, format {found!r}) than this "
                               f"one ({__version__}, format {FORMAT}): upgrade hadamem")


class Checkpoints:
    """The checkpoints of a run: folders named by iteration, of which the `keep` newest stay."""

    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = folder, keep

    def write(self, iteration: int, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Path:
        target = self.folder / f"{iteration:08}"
        write(target, tensors, {**about, "iteration": iteration})
        for old in list(self.paths())[self.keep:]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def paths(self) -> Iterator[Path]:
        """Newest first."""
        if self.folder.is_dir():
            yield from sorted((p for p in self.folder.iterdir() if p.name.isdigit() and p.is_dir()), key=lambda p: -int(p.name))

    def newest(self, say: Callable[[str], None], only: str = "") -> Checkpoint | None:
        """The newest one that is whole; `say` is told of those that are not."""
        for path in self.paths():
            try:
                return read(path, only)
            except CheckpointError as error:
                say(f"a checkpoint is damaged and left aside: {error}")
        return None

    def go_on_after(self, iteration: int) -> None:
        """Make room for a run that goes on from here: later checkpoints, which are damaged, get another name; remains of writing go."""
        for path in list(self.paths()):
            if int(path.name) > iteration:
                aside = path.with_name(f"{path.name}.damaged")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
        for kind in ("new", "old"):
            for path in self.folder.glob(f".*.{kind}-*"):
                shutil.rmtree(path, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replace a small file, as a whole or not at all."""
    new = path.with_name(f".{path.name}.new-{os.getpid()}")
    _write_file(new, text.encode())
    new.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk, where the system can."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _write_file(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _told(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())
