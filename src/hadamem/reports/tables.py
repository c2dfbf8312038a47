"""Tables of a report as CSV, LaTeX and Markdown, from the plain values of `data.item_data`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .data import CELL_FIELDS
from .text import MINUS, cell_text, general

CLOSE = 0.5              # points below the best of a row that count as just as good
EN_DASH = "\N{EN DASH}"
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}", "\n": " ",
    "±": r"$\pm$", MINUS: "$-$", "×": r"$\times$", "Δ": r"$\Delta$", "θ": r"$\theta$", "η": r"$\eta$", "≥": r"$\geq$", "≤": r"$\leq$",
}


def to_csv(table: Mapping[str, Any]) -> str:
    """A table as CSV.

    With Cells, there is one line for each of them: the row's other entries, the cell's column, and value, std, low, high, seeds, paper and
    the rest as columns of their own, in full precision. Without Cells, the lines are the rows.
    """
    is_cell = [any(isinstance(row[i], Mapping) for row in table["rows"]) for i in range(len(table["columns"]))]
    plain = [i for i, found in enumerate(is_cell) if not found]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    headings = [table["columns"][i] for i in plain]
    writer.writerow([*headings, "column", *CELL_FIELDS] if any(is_cell) else headings)
    for row in table["rows"]:
        keys = ["" if row[i] is None else row[i] for i in plain]
        if not any(is_cell):
            writer.writerow(keys)
        for i, entry in enumerate(row):
            if is_cell[i] and entry is not None:
                cell = entry if isinstance(entry, Mapping) else {"value": entry}
                writer.writerow([*keys, table["columns"][i], *("" if cell.get(name) is None else cell[name] for name in CELL_FIELDS)])
    return text.getvalue()


def to_latex(table: Mapping[str, Any]) -> str:
    """A table as a plain `tabular`, without packages. The paper's number stands in brackets behind ours."""
    lines = [f"% {' '.join(table['title'].split())}", r"\begin{tabular}{l" + "r" * (len(table["columns"]) - 1) + "}", r"\hline",
             " & ".join(escape(column) for column in table["columns"]) + r" \\", r"\hline"]
    lines += [" & ".join(_entry(entry) for entry in row) + r" \\" for row in table["rows"]]
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def escape(text: str) -> str:
    """A text that LaTeX prints as it is."""
    return re.sub("|".join(map(re.escape, LATEX)), lambda found: LATEX[found.group()], text)


def to_markdown(table: Mapping[str, Any], best: bool = False, verbatim: Sequence[int] = ()) -> str:
    """A table as GitHub, Jupyter and documentation sites read it. The paper's number stands in brackets behind ours.

    best: the largest number of a row is bold, with those within half a point of it. verbatim: columns whose texts are Markdown already.
    """
    columns = [text if i in verbatim else _marked(text) for i, text in enumerate(table["columns"])]
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1)] if columns else []
    for row in table["rows"]:
        values = [entry["value"] for entry in row if isinstance(entry, Mapping) and entry["value"] is not None]
        limit = max(values) - CLOSE if best and len(values) > 1 else None
        lines.append([(entry or "") if i in verbatim else _markdown_entry(entry, limit) for i, entry in enumerate(row)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown_entry(entry: Any, limit: float | None) -> str:
    if not isinstance(entry, Mapping):
        return "" if entry is None else _marked(entry) if isinstance(entry, str) else general(entry)
    cell = cell_text(entry)
    value = " ".join(part for part in (cell.value or EN_DASH, cell.spread) if part)
    bold = limit is not None and cell.value and round(entry["value"], entry["digits"]) >= round(limit, entry["digits"])
    return (f"**{value}**" if bold else value) + (f" ({cell.paper})" if cell.paper else "")


def _marked(text: str) -> str:
    """A text that Markdown shows as it is."""
    return re.sub(r"[\\`*<>|\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split()))


def _entry(entry: Any) -> str:
    if isinstance(entry, Mapping):
        cell = cell_text(entry)
        paper = f"(paper {cell.paper})" if cell.paper else ""
        return escape(" ".join(part for part in (cell.value or f"-- {cell.note}", cell.spread, paper) if part))
    if entry is None or isinstance(entry, str):
        return escape(entry or "")
    return escape(general(entry))
