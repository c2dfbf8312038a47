"""A report as one HTML page that needs nothing else: its style, its scripts and its data are inside, and it loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from ..files import write_text
from . import palette
from .content import Report
from .data import find_styles, to_data
from .text import VERDICTS, cell_text, general

SCRIPTS = ("numbers.js", "svg.js", "chart.js", "heatmap.js", "page.js")      # one after the other in one scope


def write_html(report: Report, path: Path | str, links: Mapping[str, Sequence[str]] | None = None) -> Path:
    """Write a report as one HTML file. links: by the name of a table or figure, its other files relative to the page."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(report, links))
    return path


def render(report: Report, links: Mapping[str, Sequence[str]] | None = None) -> str:
    """The text of the page."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("a report's page needs jinja2: pip install 'hadamem[train]', or leave \"html\" out of the formats") from error
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = prose
    script = "(function () {\n'use strict';\n" + "\n".join(_read(name) for name in SCRIPTS) + "\n})();"
    content = to_data(report)
    sections = [{"id": f"section-{i}", "title": section["title"], "text": section["text"], "blocks": _blocks(section["items"], links or {})}
                for i, section in enumerate(content["sections"], 1)]
    return environment.from_string(_read("page.html")).render(
        report=content, sections=sections, toggles=_toggles(content), style=_trusted(_read("page.css")), script=_trusted(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),      # no other script may run
        data=_trusted(_embed(_page_data(report, content))), verdicts=VERDICTS)


def prose(text: str) -> Any:
    """Paragraphs as HTML, with `code` and **bold**; everything else is text."""
    from markupsafe import Markup, escape

    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        parts = []
        for i, part in enumerate(re.split(r"`([^`]+)`", paragraph)):
            safe = str(escape(part))
            parts.append(f"<code>{safe}</code>" if i % 2 else re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe, flags=re.DOTALL))
        if paragraph.strip():
            paragraphs.append(f"<p>{''.join(parts)}</p>")
    return Markup("\n".join(paragraphs))


def _blocks(items: Sequence[Mapping[str, Any]], links: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """What the page shows one below the other: a table, or the figures of one group."""
    blocks: list[dict[str, Any]] = []
    groups: dict[str, dict[str, Any]] = {}
    for item in items:
        name = item["name"]
        if item["type"] == "table":
            rows = [[_entry(entry) for entry in row] for row in item["rows"]]
            blocks.append({"id": f"item-{name}", "type": "table", "title": item["title"], "note": item["note"], "columns": item["columns"],
                           "rows": rows, "links": _links(name, links),
                           "compared": any(entry["cell"] and entry["cell"].verdict for row in rows for entry in row)})
            continue
        block = groups.get(item["group"]) if item["group"] else None
        if block is None:
            block = {"id": f"item-{name}", "type": "figure", "title": item["group"] or item["title"], "group": item["group"], "figures": []}
            blocks.append(block)
            if item["group"]:
                groups[item["group"]] = block
        block["figures"].append({"name": name, "title": item["title"], "note": item["note"], "links": _links(name, links)})
    return blocks


def _entry(entry: Any) -> dict[str, Any]:
    """One entry of a row for the template: its text, and the key that rows are sorted by."""
    if isinstance(entry, Mapping):
        return {"cell": cell_text(entry), "text": "", "sort": "" if entry["value"] is None else repr(entry["value"]), "is_number": True}
    if entry is None or isinstance(entry, str):
        return {"cell": None, "text": entry or "", "sort": entry or "", "is_number": False}
    return {"cell": None, "text": general(entry), "sort": repr(entry), "is_number": True}


def _links(name: str, links: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    return [{"href": href, "text": href.rpartition(".")[2].upper()} for href in links.get(name, ())]


def _toggles(content: Mapping[str, Any]) -> list[str]:
    """Labels with a button for the whole page: memories that the palette knows, and others that are in several figures."""
    figures: dict[str, set[str]] = {}
    for section in content["sections"]:
        for item in section["items"]:
            for series in item.get("series", ()):
                if not series["dashed"]:
                    figures.setdefault(series["label"], set()).add(item["name"])
    return [label for label, names in figures.items() if len(names) > 1 or palette.simplify(label) in palette.KNOWN]


def _page_data(report: Report, content: Mapping[str, Any]) -> dict[str, Any]:
    figures = {item["name"]: item for section in content["sections"] for item in section["items"] if item["type"] != "table"}
    styles = {label: asdict(style) | {"dash": " ".join(map(str, style.dash))} for label, style in find_styles(report.items).items()}
    return {
        "figures": figures, "styles": styles,
        "sequential": palette.SEQUENTIAL, "diverging": palette.DIVERGING, "missing": palette.MISSING,
    }


def _embed(value: Any) -> str:
    """JSON that can stand inside a script element: it has no <, > and &."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _trusted(text: str) -> Any:
    """Text that is HTML already: our own files, and what `_embed` made."""
    from markupsafe import Markup

    return Markup(text)
