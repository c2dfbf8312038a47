"""All files of a report in one folder: the page, its figures and tables, and everything as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import write_text
from .content import Report, Table
from .data import find_styles, item_data, to_json
from .html import write_html
from .plots import draw
from .tables import to_csv, to_latex, to_markdown

FORMATS = ("html", "png", "svg", "csv", "tex", "md", "json")
TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {"csv": to_csv, "tex": to_latex, "md": to_markdown}


def write_report(report: Report, folder: Path | str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a report's files and return their paths, the page first.

        index.html                  the page; it works without the other files, and links to them
        figures/NAME.png, .svg
        tables/NAME.csv, .tex, .md
        report.json                 everything as data (`data.to_data`)

    A file that is there already is replaced at once, so a page can be read while a study still runs.
    """
    formats = [formats] if isinstance(formats, str) else list(formats)
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ValueError(f"formats must be some of {', '.join(FORMATS)}, got {unknown[0]!r}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    styles = find_styles(report.items)
    links: dict[str, list[str]] = {}
    paths = []
    for item in report.items:
        is_table = isinstance(item, Table)
        for name in [name for name in formats if name in (TABLES if is_table else ("png", "svg"))]:
            path = folder / ("tables" if is_table else "figures") / f"{item.name}.{name}"
            if isinstance(item, Table):
                path.parent.mkdir(exist_ok=True)
                write_text(path, TABLES[name](item_data(item)))
            else:
                draw(item, path, styles)
            links.setdefault(item.name, []).append(f"{path.parent.name}/{path.name}")
            paths.append(path)
    if "json" in formats:
        write_text(folder / "report.json", to_json(report))
        paths.insert(0, folder / "report.json")
    if "html" in formats:
        paths.insert(0, write_html(report, folder / "index.html", links))
    return paths
