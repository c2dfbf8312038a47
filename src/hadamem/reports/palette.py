"""Colours and markers: a memory looks the same in every figure of every report, on the page and in PNG and SVG files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import product

from ..drawing import COLOURS

MARKERS = ("circle", "square", "up", "diamond", "down", "plus", "cross", "star", "pentagon", "hexagon")

EXTRA = ("#00838f", "#a0522d", "#3b3b98", "#6b8e00", "#c2185b", "#111111")      # when those are taken

# Heat maps: from small to large; and from below the centre over the centre to above it.
SEQUENTIAL = ("#f4f8fb", "#c3ddee", "#7db8db", "#3182b4", "#0b4f80", "#052a4a")
DIVERGING = ("#053f66", "#0072b2", "#8fc1e0", "#f5f5f2", "#f2b48a", "#d55e00", "#7a3300")
MISSING = "#a5a5a0"      # hatching where there is no value
REFERENCES = ("#23231f", "#7a3300", "#0b4f80", "#00664b")      # dashed lines that are no memory
DASHES = ((7, 4), (2, 3), (10, 3, 2, 3), (12, 5))               # on and off, in pixels


@dataclass(frozen=True)
class Style:
    """How a label is drawn. Colour and marker both differ between labels, so figures can be read without colours."""

    colour: str
    marker: str
    hollow: bool = False
    dash: tuple[int, ...] = DASHES[0]      # if the series is dashed


# By `simplify(label)`. Variants of one memory share its colour or a darker one.
KNOWN = {
    "shm": Style("#d55e00", "circle"),
    "shmpaper": Style("#8f3f00", "circle", hollow=True),
    "shmrelease": Style("#e58a62", "hexagon"),
    "gru": Style("#0072b2", "square"),
    "lstm": Style("#004a75", "square", hollow=True),
    "ffm": Style("#009e73", "up"),
    "gpt2": Style("#cc79a7", "diamond"),
    "fwp": Style("#e69f00", "down"),
    "fastweights": Style("#a87400", "down", hollow=True),
    "s6": Style("#56b4e9", "plus"),
    "mlstm": Style("#7a4fa3", "cross"),
    "hebbian": Style("#8c6d1f", "star"),
    "linearattention": Style("#00664b", "up", hollow=True),
    "dnc": Style("#8a1f4d", "pentagon"),
    "none": Style("#666666", "diamond", hollow=True),
}
KNOWN["nomemory"] = KNOWN["none"]


def simplify(label: str) -> str:
    """The key of a label in KNOWN: "GPT-2" and "gpt2" are one memory."""
    return re.sub(r"[^a-z0-9]", "", label.lower())


def make_styles(labels: Iterable[str], references: Iterable[str] = ()) -> dict[str, Style]:
    """A style for each label. Known memories have theirs; the others get free ones in their order.

    references: labels of dashed series. Those that are not among `labels` get dark colours and dashes of their own.
    """
    styles: dict[str, Style] = {}
    unknown = []
    labels = list(dict.fromkeys(labels))
    references = [label for label in dict.fromkeys(references) if label not in labels]
    for label in [*labels, *references]:
        if simplify(label) in KNOWN:
            styles[label] = KNOWN[simplify(label)]
        elif label in references:
            i = sum(other in references for other in styles)
            styles[label] = Style(REFERENCES[i % len(REFERENCES)], MARKERS[i % len(MARKERS)], dash=DASHES[i % len(DASHES)])
        else:
            unknown.append(label)
    for label in unknown:
        styles[label] = _free_style(styles.values())
    return styles


def _free_style(taken: Collection[Style]) -> Style:
    """The first combination that nobody has, with a colour and a marker that few have."""
    used = Counter((style.colour, style.marker, style.hollow) for style in taken)
    colours = Counter(style.colour for style in taken)
    shapes = Counter((style.marker, style.hollow) for style in taken)
    combinations = product((False, True), MARKERS, (*COLOURS, *EXTRA))
    hollow, marker, colour = min(combinations, key=lambda one: (used[one[2], one[1], one[0]], colours[one[2]], shapes[one[1], one[0]]))
    return Style(colour, marker, hollow)
