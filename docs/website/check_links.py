"""Check that every link and picture of built HTML pages leads to a file, and every anchor to an id: `python check_links.py build/docs`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and ids of one page."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name == "id" or (name == "name" and tag == "a"):
                self.ids.add(value or "")


def broken(folder: Path) -> list[str]:
    """What is wrong with the pages below a folder, one line each."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{path.relative_to(folder.resolve())}: {link} does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                found.append(f"{path.relative_to(folder.resolve())}: {link} has no such anchor")
    return found


def main(folder: str) -> int:
    root = Path(folder)
    count = len(list(root.rglob("*.html")))
    if not count:
        print(f"{folder} has no HTML pages; build them first: make docs", file=sys.stderr)
        return 1
    lines = broken(root)
    print("\n".join([*lines, f"{count} pages, {len(lines)} broken links"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) == 2 else "usage: python check_links.py FOLDER")
