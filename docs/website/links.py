"""Links of the repository's Markdown pages, as the site has them.

Pages link to files by relative paths, which work on GitHub and in an editor. On the site a page of docs/ lies at the top, a source file
becomes a page with its code, a folder a page that lists it, and a data file is copied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
WEBSITE = PurePosixPath("docs/website")
PAGES = {   # pages with another place on the site than their own name
    "README.md": "tour.md",
    "docs/README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
FILES = PurePosixPath("files")                                        # the part of the site for source files, folders and data
DATA = {".json", ".jsonl", ".csv", ".npz"}                            # copied instead of shown
IMAGES = {".png", ".svg", ".gif", ".jpg"}
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^(```.*?^```[^\n]*$)", flags=re.MULTILINE | re.DOTALL)


def place(path: str) -> str:
    """Where a file of the repository (its path from the root, with slashes) is on the site."""
    pure = PurePosixPath(path)
    if path in PAGES:
        return PAGES[path]
    if pure.is_relative_to(WEBSITE):
        return str(pure.relative_to(WEBSITE))
    if pure.parts[0] == "docs" and pure.suffix in {".md", *IMAGES}:
        return str(pure.relative_to("docs"))
    if (ROOT / path).is_dir():
        return str(FILES / pure / "index.md")
    return str(FILES / (path if pure.suffix in {*DATA, *IMAGES} else f"{path}.md"))


def relative(target: str, page: str) -> str:
    """The link from the site's page of one file to that of another."""
    return os.path.relpath(place(target), PurePosixPath(place(page)).parent).replace(os.sep, "/")


def rewrite(text: str, path: str, found: Callable[[str], None]) -> str:
    """The text of the page at `path` with its links as the site has them. `found` is called with every file that a link leads to."""

    def change(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(path).parent / match[2]).replace(os.sep, "/")
        if not (ROOT / target).exists():
            raise ValueError(f"{path} links to {match[2]}, which does not exist")
        found(target)
        return f"{match[1]}{relative(target, path)}{match[3] or ''}{match[4]}"

    parts = FENCE.split(text)      # code blocks are every second one
    return "".join(part if n % 2 else LINK.sub(change, part) for n, part in enumerate(parts))
