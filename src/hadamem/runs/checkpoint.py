"""Checkpoints: folders of two files. `tensors.safetensors` holds the tensors, `about.json` everything else and the checksums of both.

A folder is written under another name, forced to the disk and then renamed, so a checkpoint is never partial. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._version import __version__
from ..files import clear_leftovers, clip_text, free_name, sync_folder, write_through
from ..lookup import from_file
from .chunks import Chunked, ChunkStore, file_of
from .files import CheckpointError, LinkError, inside

FORMAT = 1                 # of everything that a run writes; raised when an older hadamem could not read it
TENSORS, ABOUT, CHUNKS = "tensors.safetensors", "about.json", "chunks"


class NewerFormatError(ValueError):
    """Written by a newer version of hadamem."""


class Checkpoint(NamedTuple):
    """What `read` returns."""

    folder: Path
    tensors: dict[str, Tensor]      # on the CPU
    about: dict[str, Any]


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, no two of which share memory, as tied weights do: safetensors refuses those."""
    found, seen = {}, set()
    for name, x in tensors.items():
        x = x.detach().cpu().contiguous()
        place = x.untyped_storage().data_ptr()
        found[name] = x.clone() if place in seen else x
        seen.add(place)
    return found


def write(folder: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], texts: Mapping[str, str] | None = None) -> None:
    """Write tensors and plain values into a folder. It is there as a whole or not at all. texts: more files for it, by name."""
    from safetensors.torch import save

    data = save(_separate(tensors))
    seal = {"file": TENSORS, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    facts = {"format": FORMAT, "sealed": True, "hadamem": __version__, "torch": torch.__version__, **about, "tensors": seal}
    content = json.loads(json.dumps(facts))      # as it will be read
    text = json.dumps({**content, "sha256": fingerprint(content)}, indent=1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    try:
        new.mkdir()
        write_through(new / TENSORS, data)
        write_through(new / ABOUT, text.encode())
        for name, more in (texts or {}).items():
            write_through(new / name, more.encode())
        sync_folder(new)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)      # of a process that was killed here
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
    """Read what `write` wrote, checked against its checksum. only: tensors whose names start with this."""
    from safetensors.torch import load

    about = read_about(folder)
    try:
        data = inside(folder / TENSORS, folder).read_bytes()
        seal = about["tensors"]
        if len(data) != seal["bytes"]:
            raise CheckpointError(f"{folder / TENSORS} has {len(data)} bytes instead of {seal['bytes']}")
        if hashlib.sha256(data).hexdigest() != seal["sha256"]:
            raise CheckpointError(f"{folder / TENSORS} was changed: its checksum is wrong")
        tensors = load(data)
    except (CheckpointError, LinkError):
        raise
    except Exception as error:      # a missing file or entry, or anything that safetensors finds
        raise CheckpointError(f"{folder / TENSORS} cannot be read: {clip_text(error)}") from error
    return Checkpoint(folder, {name: x for name, x in tensors.items() if name.startswith(only)}, about)


def read_about(folder: Path) -> dict[str, Any]:
    """The plain values alone, checked against their checksum. Files of older versions have none."""
    path = inside(folder / ABOUT, folder)
    try:
        about = json.loads(path.read_bytes())
        if not isinstance(about, dict):
            raise TypeError(f"it holds a {type(about).__name__}, not an object")
        sealed, sha256 = "sealed" in about, about.pop("sha256", None)
        damaged = (sealed or sha256 is not None) and sha256 != fingerprint(about)
    except Exception as error:      # whatever a damaged file can raise
        raise CheckpointError(f"{path} cannot be read: {clip_text(error)}") from error
    if damaged:
        raise CheckpointError(f"{path} was changed: its checksum is wrong")
    check_format(about, path)
    if not all(isinstance(seal, dict) and isinstance(seal.get("name"), str) and isinstance(seal.get("file", ""), str)
               and {"bytes", "sha256"} <= seal.keys()
               for seal in about.get("chunks", [])):
        raise CheckpointError(f"{path} does not say which chunks it needs")
    return from_file(about, path)


def fingerprint(values: Mapping[str, Any]) -> str:
    """The SHA-256 of plain values, however they are formatted and ordered."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_format(values: Mapping[str, Any], path: Path) -> None:
    """Refuse what a newer version wrote."""
    found = values.get("format", FORMAT)
    if not isinstance(found, int) or found > FORMAT:
        raise NewerFormatError(f"{path} was written by a newer hadamem ({values.get('hadamem', 'unknown')}, format {found!r}) than this "
                               f"one ({__version__}, format {FORMAT}): upgrade hadamem")


class Checkpoints:
    """The checkpoints of a run: folders named by iteration, of which the `keep` newest stay, and the chunks they share.

    If none of those is `clean`, the newest one that is stays as well: the last one before trouble began.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = folder, keep
        self.chunks = ChunkStore(folder / CHUNKS)

    def write(self, iteration: int, tensors: Mapping[str, Tensor], about: Mapping[str, Any], chunked: Chunked | None = None,
              clean: bool = True) -> Path:
        """chunked: large data of which only new chunks are written. clean: nothing was wrong since the checkpoint before."""
        target = self.folder / f"{iteration:08}"
        seals = [] if chunked is None else self.chunks.write(chunked.chunk_names(), chunked.read_chunk)
        write(target, tensors, {**about, "iteration": iteration, "clean": clean, **({"chunks": seals} if seals else {})})
        paths = list(self.paths())
        safe = None if clean else next((path for path in paths if _is_clean(path)), None)
        for old in paths[self.keep:]:
            if old != safe:
                shutil.rmtree(old, ignore_errors=True)
        self._drop_chunks()
        return target

    def paths(self) -> Iterator[Path]:
        """Newest first."""
        if inside(self.folder, self.folder.parent).is_dir():
            found = (inside(p, self.folder) for p in self.folder.iterdir() if re.fullmatch("[0-9]{1,18}", p.name) and p.is_dir())
            yield from sorted(found, key=lambda p: -int(p.name))

    def newest(self, say: Callable[[str], None], only: str = "", load: Chunked | None = None,
               check: Callable[[Checkpoint], None] | None = None, paths: Iterable[Path] | None = None) -> Checkpoint | None:
        """The newest checkpoint that is complete. Damaged ones are reported to `say` and skipped.

        load: restore its chunks, too. check: called before that; raises if the checkpoint does not fit. paths: look through these instead.
        """
        for path in self.paths() if paths is None else paths:
            self.chunks.seals.clear()      # of a checkpoint that turned out to be damaged
            try:
                found = read(path, only)
                if check is not None:
                    check(found)
                if load is not None:
                    seals = found.about.get("chunks", [])
                    self.chunks.check(seals)
                    load.load_chunks(self.chunks.read(seals))
                return found
            except CheckpointError as error:
                say(f"skipped a damaged checkpoint: {error}")
        return None

    def continue_after(self, iteration: int, ending: str = "damaged") -> None:
        """Prepare for a run that continues here: rename later checkpoints, and remove what a crash left half-written."""
        for path in list(self.paths()):
            if int(path.name) > iteration:
                path.rename(free_name(path.with_name(f"{path.name}.{ending}")))
        clear_leftovers(self.folder)
        self._drop_chunks()

    def _drop_chunks(self) -> None:
        """Delete chunks that no checkpoint names. If one cannot be read, nothing is deleted."""
        if not self.chunks.folder.is_dir():
            return
        named: set[str] = set()
        for path in self.paths():
            try:
                named |= {file_of(seal) for seal in read_about(path).get("chunks", [])}
            except CheckpointError:
                return
        self.chunks.keep(named)


def _is_clean(path: Path) -> bool:
    try:
        return read_about(path).get("clean", True) is True      # older versions did not say
    except CheckpointError:
        return False
