"""A Sphinx extension: docstrings are Markdown, as they are written here. Autodoc alone would read them as reStructuredText.

Lines such as "gamma: the discount" become a list of arguments, and fields of dataclasses and NamedTuples are listed with the comments
beside them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Collection
from typing import Any

from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ARGUMENT = re.compile(r"^([a-zA-Z_]\w*(?:, \w+)*)( \[[^\]]*\])?: (?=\S)")

FIELD = re.compile(r"^    (\w+): ([^#=\n]+?)(?:\s*=[^#\n]*)?\s*# ?(.+?)\s*$")      # a field of a class with a comment


class MarkdownDocstring(SphinxDirective):
    """Content in Markdown, inside a page in reStructuredText."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        document = new_document(self.env.docname, self.state.document.settings)
        document.reporter = self.state.document.reporter
        MystParser().parse("\n".join(self.content), document)
        return list(document.children)


def to_markdown(lines: list[str], names: Collection[str]) -> list[str]:
    """A docstring as Markdown: lines that begin with one of the names of arguments become a list."""
    out: list[str] = []
    inside = False      # an argument's text, whose further lines are indented
    for n, line in enumerate(split_arguments(lines, names)):
        start = ARGUMENT.match(line) if n else None
        if start and start[1].partition(",")[0] in names and (inside or not out[-1].startswith(("- ", "  "))):
            out += ["" for _ in range(not inside and bool(out[-1]))]
            out.append(f"- **{start[1]}**{start[2] or ''}: {line[start.end():]}")
            inside = True
        elif inside and line.strip():
            out.append(f"  {line.strip()}" if not line.startswith("- ") else line)
        else:
            inside = False
            out.append(line)
    return out


def split_arguments(lines: list[str], names: Collection[str]) -> list[str]:
    """The lines, with an argument that begins in the middle of another one's line on a line of its own."""
    out: list[str] = []
    for line in lines:
        start = ARGUMENT.match(line)
        within = start is not None or (line.startswith("    ") and bool(out) and ARGUMENT.match(out[-1]) is not None)
        if within and names:
            pattern = rf"(?<=[.;]) (?=(?:{'|'.join(map(re.escape, names))})(?: \[[^\]]*\])?: )"
            first, *more = re.split(pattern, line)
            out += [first, *more]
        else:
            out.append(line)
    return out


def names_of(obj: Any) -> set[str]:
    """The arguments of a function or class, and the fields of a dataclass or NamedTuple."""
    try:
        found = set(inspect.signature(obj).parameters) if callable(obj) else set()
    except (TypeError, ValueError):
        found = set()
    return found | set(getattr(obj, "__annotations__", ()))


def fields_of(kind: type) -> list[str]:
    """The fields of a dataclass or NamedTuple that have a comment beside them, as a list."""
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else list(getattr(kind, "_fields", ()))
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return []
    found: dict[str, str] = {}
    name = ""      # of the field whose comment may go on in the next line
    for line in source.splitlines():
        start, more = FIELD.match(line), re.match(r"^ {4,}# +(.*)", line)
        if start is not None:
            name = start[1]
            found[name] = f"- **{name}** (`{start[2]}`): {start[3]}"
        elif name and more is not None:
            found[name] += f" {more[1].strip()}"
        else:
            name = ""
    return [found[name] for name in names if name in found]


def original_lines(obj: Any, lines: list[str]) -> list[str]:
    """The docstring with its own indentation. Autodoc takes away what all lines after the first have in common, also if all are code."""
    first, *rest = (getattr(obj, "__doc__", None) or "").expandtabs().split("\n")
    if not rest or rest[-1].strip() or first.strip() != next(iter(lines), "").strip():
        return lines
    indent = len(rest.pop())      # of the closing quotes
    return [first.strip(), *(line[indent:].rstrip() if not line[:indent].strip() else line.strip() for line in rest)]


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = to_markdown(original_lines(obj, lines), names_of(obj))
    if what == "class" and isinstance(obj, type):
        fields = fields_of(obj)
        text += [""] * bool(fields) + fields
    if any(line.strip() for line in text):
        lines[:] = ["", ".. markdown-docstring::", "", *(f"   {line}" if line else "" for line in text), ""]


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out what says nothing: fields of NamedTuples once more, attributes that name another class, what `print` shows of a module."""
    alias = (getattr(obj, "__doc__", None) or "").startswith("Alias for field number")
    other = isinstance(obj, type) and what == "class" and obj.__name__ != name
    return True if alias or other or name == "extra_repr" else None


def signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, text: str | None, returns: str | None) -> tuple[Any, Any] | None:
    """A default made by a function shows as "<factory>", which is no Python and would not be formatted."""
    return None if text is None or "<factory>" not in text else (text.replace("<factory>", "..."), returns)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("markdown-docstring", MarkdownDocstring)
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", signature)
    return {"version": "1", "parallel_read_safe": True}
