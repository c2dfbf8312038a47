"""Large append-only data, such as a replay, beside a run's checkpoints: chunks that are written once.

A checkpoint names the chunks it consists of, with their checksums. A chunk is a safetensors file in `checkpoints/chunks/`, and is deleted
when no checkpoint names it any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ..files import clip_text, write_file
from .files import CheckpointError, inside


class Chunked(Protocol):
    """Something whose data is a list of chunks, each of which never changes."""

    def chunk_names(self) -> list[str]:
        """The chunks that make it up now, in order."""

    def read_chunk(self, name: str) -> dict[str, Tensor]: ...

    def load_chunks(self, chunks: Iterator[tuple[str, Mapping[str, Tensor]]]) -> None:
        """Restore it from (name, tensors) pairs, in the order of `chunk_names`."""


def file_of(seal: Mapping[str, Any]) -> str:
    """The name of a chunk's file, without its suffix."""
    return seal.get("file", seal["name"])


class ChunkStore:
    """The chunks in a folder. A seal is the name, size and checksum of a chunk, and its file if that has another name."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.seals: dict[str, dict[str, Any]] = {}      # of what this process wrote or read

    def write(self, names: Iterable[str], read: Callable[[str], Mapping[str, Tensor]]) -> list[dict[str, Any]]:
        """Write the chunks that are not on disk yet. Returns the seals of all."""
        from safetensors.torch import save

        names = list(names)
        for name in names:
            if name not in self.seals:
                data = save({key: x.detach().cpu().contiguous() for key, x in read(name).items()})
                self.folder.mkdir(parents=True, exist_ok=True)
                path, number = self._path(name), 1
                while path.exists() and path.read_bytes() != data:      # it may belong to a checkpoint from before the run went back
                    number += 1
                    path = self._path(f"{name}-{number}")
                write_file(path, data)
                self.seals[name] = {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
                                    **({} if path.stem == name else {"file": path.stem})}
        return [self.seals[name] for name in names]

    def read(self, seals: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The chunks that a checkpoint names, checked against their seals."""
        from safetensors.torch import load

        for seal in seals:
            path = self._path(file_of(seal))
            try:
                data = path.read_bytes()
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {clip_text(error)}") from error
            if len(data) != seal["bytes"] or hashlib.sha256(data).hexdigest() != seal["sha256"]:
                raise CheckpointError(f"{path} was changed: its size or checksum is wrong")
            self.seals[seal["name"]] = dict(seal)
            yield seal["name"], load(data)

    def check(self, seals: Iterable[Mapping[str, Any]]) -> None:
        """Raise a CheckpointError if a chunk is missing or has another size; contents are checked by `read`."""
        for seal in seals:
            path = self._path(file_of(seal))
            if not path.is_file() or path.stat().st_size != seal["bytes"]:
                raise CheckpointError(f"{path} is missing or incomplete")

    def keep(self, files: set[str]) -> None:
        """Delete all other chunks. files: see `file_of`."""
        if inside(self.folder, self.folder.parent).is_dir():
            for path in self.folder.iterdir():
                if path.name.removesuffix(".safetensors") not in files:
                    path.unlink(missing_ok=True)
        self.seals = {name: seal for name, seal in self.seals.items() if file_of(seal) in files}

    def _path(self, name: str) -> Path:
        return inside(self.folder / f"{name}.safetensors", self.folder.parent)
