"""What reading the files of a run can raise, and links that lead out of it. How files are written is in `hadamem.files`."""

from __future__ import annotations

from pathlib import Path


class CheckpointError(ValueError):
    """Saved tensors that are damaged or missing; the message says where and how."""


class LinkError(ValueError):
    """A file of a run is a link to a place outside of the run's folder."""


def inside(path: Path, folder: Path) -> Path:
    """The path, unless a link in or at it leads out of `folder`, or it is no ordinary file or folder. The folder may be a link itself."""
    try:
        target = path.resolve()
        if target.is_relative_to(folder.resolve()):
            if path.exists() and not (path.is_file() or path.is_dir()):      # a pipe would wait forever, a device could do anything
                raise LinkError(f"{path} is neither a file nor a folder; delete it")
            return path
    except (RuntimeError, OSError) as error:      # links in a circle
        raise LinkError(f"{path} cannot be followed: {error}") from error
    raise LinkError(f"{path} leads out of {folder}, to {target}, and is not followed; replace the link by what it points to")
