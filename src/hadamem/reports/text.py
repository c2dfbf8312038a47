"""Numbers and cells as people read them: the same words on the page, in LaTeX and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MINUS = "\N{MINUS SIGN}"
VERDICTS = {   # symbol and meaning; the symbols differ in shape, not in colour alone
    "within": ("✓", "the paper's number lies within our 95 % interval"),
    "above": ("▲", "ours is higher: the paper's number lies below our 95 % interval"),
    "below": ("▼", "ours is lower: the paper's number lies above our 95 % interval"),
}


@dataclass(frozen=True)
class CellText:
    """The parts of a cell; a part that is not known is empty."""

    value: str          # "61.2", or empty where there is no result
    spread: str         # "± 1.3" or "[59.0, 63.4]"
    paper: str          # "60.4 ± 0.7"
    difference: str     # "+0.8"
    verdict: str        # a key of VERDICTS
    note: str
    tip: str            # all of it in words, one line each


def fixed(value: float, digits: int, sign: bool = False) -> str:
    """A number with `digits` after the point and a true minus sign; never "-0.0"."""
    text = f"{value:{'+' if sign else ''}{',' if abs(value) >= 10_000 else ''}.{digits}f}"
    if not text.strip("+-0."):
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def general(value: float) -> str:
    """A number outside of a Cell: whole ones in full, others with four significant digits."""
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return text.replace("-", MINUS)


def interval(low: float, high: float, digits: int) -> str:
    return f"[{fixed(low, digits)}, {fixed(high, digits)}]"


def verdict(cell: Mapping[str, Any]) -> str:
    """Where the paper's number lies, for a cell of `data.cell_data`: a key of VERDICTS, or empty where nothing can be said."""
    if cell["agrees"] is None or cell["value"] is None:
        return ""
    if cell["agrees"]:
        return "within"
    return "above" if cell["low"] > cell["paper"] else "below"


def cell_text(cell: Mapping[str, Any]) -> CellText:
    """The words for a cell of `data.cell_data`."""
    digits = cell["digits"]
    has_value, has_interval = cell["value"] is not None, cell["low"] is not None and cell["high"] is not None
    spread = ""
    if has_value and cell["std"] is not None:
        spread = f"± {fixed(cell['std'], digits)}"
    elif has_value and has_interval:
        spread = interval(cell["low"], cell["high"], digits)
    paper = "" if cell["paper"] is None else fixed(cell["paper"], digits)
    if paper and cell["paper_std"] is not None:
        paper += f" ± {fixed(cell['paper_std'], digits)}"
    difference = "" if cell["difference"] is None else fixed(cell["difference"], digits, sign=True)
    which = verdict(cell)
    lines = []
    if has_value:
        lines.append(f"value {cell['value']:.6g}".replace("-", MINUS) + (f" over {cell['seeds']} seeds" if cell["seeds"] else ""))
        if cell["std"] is not None:
            lines.append(f"standard deviation over seeds {fixed(cell['std'], digits + 1)}")
        if has_interval:
            lines.append(f"95 % interval {interval(cell['low'], cell['high'], digits + 1)}")
    if paper:
        lines.append(f"paper {paper}" + (f", ours minus the paper's {difference}" if difference else ""))
        if which:
            lines.append(f"{VERDICTS[which][0]} {VERDICTS[which][1]}")
        elif has_value:
            lines.append("no interval to compare the paper's number with")
    if cell["note"]:
        lines.append(cell["note"])
    return CellText(fixed(cell["value"], digits) if has_value else "", spread, paper, difference, which, cell["note"], "\n".join(lines))
