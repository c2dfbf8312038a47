"""Assemble the pages of the site in a folder for Sphinx: `python docs/website/stage.py build/docs-source`.

Pages come from docs/*.md, the README, CONTRIBUTING and CHANGELOG; from docs/website/*.md, which only the site has; from the files that
they link to; and from the code itself: the API, the command line and the settings.
"""

from __future__ import annotations

import filecmp
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from website import api_pages, cli_pages, settings_pages
from website.links import DATA, IMAGES, PAGES, ROOT, place, relative, rewrite

TITLES = {"README.md": "A tour of the library", "CHANGELOG.md": "Changelog", "CONTRIBUTING.md": "Contributing"}
OPTIONAL = ("deployment",)      # pages of a table of contents that may be missing
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sh": "bash"}
HIDDEN = ["---", "orphan: true", "---"]      # pages that only links lead to
FENCE = "`" * 5


def pages() -> list[str]:
    """The Markdown pages of the repository that are on the site. docs/README.md is the list of pages on GitHub; the site has index.md."""
    found = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "development").glob("*.md"), *(ROOT / "docs" / "website").glob("*.md")]
    listed = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return [*(path for path in PAGES if path != "docs/README.md"), *(path for path in listed if path != "docs/README.md")]


def stage(out: Path) -> None:
    """Write all pages below `out`. Files that did not change keep their dates, so that Sphinx reads only what did."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        write_pages(fresh)
        for name, text in {**api_pages.make(), **cli_pages.make(), **settings_pages.make()}.items():
            write(fresh / name, text)
        synchronise(fresh, out)


def write_pages(out: Path) -> None:
    linked: set[str] = set()
    for path in pages():
        text = (ROOT / path).read_text(encoding="utf-8")
        if path in TITLES:
            text = re.sub(r"\A# .*$", f"# {TITLES[path]}", text, count=1, flags=re.MULTILINE)
        for name in OPTIONAL:
            if not (ROOT / "docs" / f"{name}.md").exists():
                text = re.sub(rf"^{name}\n", "", text, flags=re.MULTILINE)
        write(out / place(path), rewrite(text, path, linked.add))
    for path in sorted(linked - set(pages()) - {"docs/README.md"}):
        write_file(out, path)


def write_file(out: Path, path: str) -> None:
    """The page of a source file or folder that a page links to; or a copy of an image or a data file."""
    source, target = ROOT / path, out / place(path)
    if source.is_dir():
        inside = [f"{path}/{f.name}" for f in sorted(source.iterdir()) if f.is_file() and not f.name.startswith(".")]
        for name in set(inside) - set(pages()):
            write_file(out, name)
        write(target, "\n".join([*HIDDEN, f"# {path}", "", *(f"- [{Path(name).name}]({relative(name, path)})" for name in inside), ""]))
    elif source.suffix in {*DATA, *IMAGES}:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    else:
        code = source.read_text(encoding="utf-8").rstrip("\n")
        write(target, "\n".join([*HIDDEN, f"# {path}", "", f"{FENCE}{LANGUAGES.get(source.suffix, 'text')}", code, FENCE, ""]))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def synchronise(fresh: Path, out: Path) -> None:
    """Make `out` hold the same files as `fresh`, touching only those that differ."""
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    for path in [path for path in out.rglob("*") if path.is_file() and path.relative_to(out) not in wanted]:
        path.unlink()
    for name in wanted:
        target = out / name
        if not target.exists() or not filecmp.cmp(fresh / name, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fresh / name, target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/website/stage.py FOLDER")
    stage(Path(sys.argv[1]))
