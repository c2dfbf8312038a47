"""A recording as one HTML file that needs nothing else: data, styles and scripts are inside."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

from ..._version import __version__
from ...files import write_text
from .pack import every, pack, pack_floats, pack_map
from .recording import EPSILONS, Recording, Trace, Triangle

MATRIX_BYTES = 8 << 20      # for the cells of all matrices, before compression
FRAME_BYTES = 3 << 20       # for the pictures, before base64
CENTRE = {"factor": 1.0}    # by role: the value that changes nothing
SCRIPTS = ("colours.js", "data.js", "figure.js", "memory.js", "time.js", "reach.js", "main.js")


def write_page(recording: Recording, path: Path | str) -> Path:
    """Write the page of a recording to an HTML file."""
    path = Path(path)
    write_text(path, build_page(recording))
    return path


def build_page(recording: Recording) -> str:
    """The page of a recording as HTML."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ImportError("pages need jinja2: pip install 'hadamem[train]'") from error
    data, notes = describe(recording)
    loader = jinja2.PackageLoader("hadamem.reports.inspect", "templates")
    templates = jinja2.Environment(loader=loader, autoescape=jinja2.select_autoescape(["html"]), undefined=jinja2.StrictUndefined)
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")       # "</script>" must not appear in a script
    return templates.get_template("page.html").render(
        title=recording.title, facts=recording.facts, result=recording.result, steps=recording.steps, notes=notes,
        has_state=recording.has_state, version=__version__, data=text, scripts=SCRIPTS)


def describe(recording: Recording) -> tuple[dict[str, Any], list[str]]:
    """What the page's script gets, and sentences about what was left out on the way."""
    notes = list(recording.notes)
    frames = _frames(recording, notes)
    matrices = [trace for trace in recording.traces if trace.kind == "matrix"]
    cells = sum(int(np.prod(trace.values.shape[1:])) for trace in matrices)
    k = every(recording.steps, cells, MATRIX_BYTES) if matrices else 1
    if k > 1:
        notes.append(f"Matrices are stored at every {_ordinal(k)} step and drawn as they were at the latest stored step; shares over time "
                     "use all steps.")
    for (shape, kept), names in _reduced(recording.traces).items():
        notes.append(f"Of {' x '.join(map(str, shape))} cells of {' and '.join(names)}, {' x '.join(map(str, kept))} are drawn: evenly "
                     "spaced rows and columns, each with its own value, not averages.")
    for trace in recording.traces:
        if not np.isfinite(trace.values).all():
            notes.append(f"{trace.name} has entries that are not finite; they are drawn as the largest value.")
    for triangle in recording.triangles:
        if recording.steps > len(triangle.targets):
            width = -(-recording.steps // len(triangle.sources))
            each = "" if width == 1 else f"; a column is the largest of {width} steps i"
            notes.append(f"{triangle.title}: {len(triangle.targets)} steps t are looked at{each}.")
    data = {
        "steps": recording.steps, "frames": frames, "captions": recording.captions, "epsilons": EPSILONS,
        "rewards": pack_floats(recording.rewards), "returns": pack_floats(np.cumsum(recording.rewards)),
        "curves": [{"name": curve.name, "values": pack_floats(curve.values)} for curve in recording.curves],
        "actions": _actions(recording),
        "traces": [_trace(trace, k) for trace in recording.traces],
        "triangles": [_triangle(triangle) for triangle in recording.triangles],
    }
    return data, list(dict.fromkeys(notes))


def _reduced(traces: list[Trace]) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]]:
    """Names of the traces that cells were left out of, by their shape and that of what is drawn."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for trace in traces:
        if trace.is_reduced:
            found.setdefault((trace.shape, trace.values.shape[1:]), []).append(trace.name)
    return found


def _frames(recording: Recording, notes: list[str]) -> dict[str, Any]:
    """The pictures, as many as fit: of a long episode those of every k-th picture that differs from the one before."""
    files, order = recording.frames, recording.frame_of_step
    k = every(1, sum(map(len, files)), FRAME_BYTES)
    if k > 1:
        notes.append(f"Of {len(files)} pictures of the env every {_ordinal(k)} is stored; between them the one before is shown.")
    kept = [base64.b64encode(file).decode() for file in files[::k]]
    return {"images": kept, "order": pack((order // k).astype(np.uint16))}


def _actions(recording: Recording) -> dict[str, Any] | None:
    if recording.probabilities is None or recording.taken is None:
        return None
    return {"names": recording.action_names, "map": pack_map(recording.probabilities), "taken": recording.taken.tolist()}


def _trace(trace: Trace, k: int) -> dict[str, Any]:
    found: dict[str, Any] = {"name": trace.name, "kind": trace.kind, "role": trace.role, "help": trace.help, "shape": trace.shape}
    if trace.kind == "scalar":
        found["values"] = pack_floats(trace.values)
    elif trace.kind == "attention":
        found |= {"heads": trace.values.shape[0], "bins": trace.values.shape[1],
                  "map": pack_map(trace.values.transpose(1, 0, 2))}                # a scale for each step, shared by the heads
    else:
        stored = trace.values[::k] if trace.kind == "matrix" else trace.values
        found |= {"rows": trace.rows.tolist(), "columns": trace.columns.tolist(), "every": k if trace.kind == "matrix" else 1,
                  "map": pack_map(stored, CENTRE.get(trace.role, 0.0))}
    if trace.shares is not None:
        found["shares"] = pack_floats(trace.shares)
    return found


def _triangle(triangle: Triangle) -> dict[str, Any]:
    return {"title": triangle.title, "help": triangle.help, "targets": triangle.targets.tolist(), "sources": triangle.sources.tolist(),
            "values": pack_floats(triangle.values)}


def _ordinal(k: int) -> str:
    return {2: "second", 3: "third"}.get(k, f"{k}th")
