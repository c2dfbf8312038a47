"""What all plots share: colours, compact numbers, the look of axes, and saving. matplotlib is imported at the first use."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from .files import write_file

# Okabe and Ito's colours, told apart with any kind of colour vision; their yellow, too light for lines on white, is left out.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
GRID, FAINT, EDGE = "#e4e4e0", "#6b6b68", "#b8b8b4"


def short(x: float) -> str:
    """A number of steps in compact form: 400k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:.4g}{letter}"
    return f"{x:.4g}"


def new_canvas(width: float, height: float) -> Any:
    """An empty matplotlib figure in inches. It belongs to no window and needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def style_axes(ax: Any, labelsize: float = 11) -> None:
    """A light grid behind the data, and no frame above and to the right of it."""
    ax.grid(color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=labelsize, length=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(EDGE)


def save_canvas(canvas: Any, path: Path | str) -> Path:
    """Write a figure as SVG if the path ends so, else as PNG. The same figure gives the same bytes; readers never see half a file."""
    import matplotlib

    path = Path(path)
    kind = "svg" if path.suffix.lower() == ".svg" else "png"
    data = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "path"}):
        canvas.savefig(data, format=kind, metadata={"Date": None} if kind == "svg" else None)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, data.getvalue())
    return path
