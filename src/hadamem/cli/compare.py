"""`hadamem compare`: scores, curves and statistics of any runs, on one page."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import add_trust
from .output import print_table
from .runs import bad_input, runs_inside, suggest_runs


def arguments(parser: argparse.ArgumentParser) -> None:
    from ..experiments.study import SCORES

    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or its name in runs/; or a folder of several runs")
    parser.add_argument("--out", metavar="DIR", default="comparison", help="folder of the page, tables and figures (default: comparison)")
    parser.add_argument("--score", choices=SCORES, help="what is compared (default: success or return in evaluations if all have them, "
                                                        "otherwise the return while training)")
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    with bad_input():
        from ..experiments.comparing import compare_runs
        from ..reports.content import Table
        from ..reports.files import write_report
        from ..training.run import open_run

        paths = dict.fromkeys(path.resolve() for text in args.runs for path in _find(text))
        report = compare_runs([open_run(path) for path in paths], args.score)
        page = write_report(report, Path(args.out))[0]
    scores = next(item for item in report.items if isinstance(item, Table))
    print_table([("task", *scores.columns[1:]), *([str(row[0]), *(_cell(cell) for cell in row[1:])] for row in scores.rows)], indent=2)
    print_table([("report", str(page))], indent=2)
    return 0


def _find(text: str) -> list[Path]:
    """The run of that name, or all runs in the folder."""
    from ..runs.folder import find_run, is_run

    path = find_run(text)
    if is_run(path):
        return [path]
    inside = runs_inside(path)
    if not inside:
        raise ValueError(f"there is no run in {path};{suggest_runs(path)} `hadamem train` makes one")
    return inside


def _cell(cell: object) -> str:
    from ..reports.content import Cell

    if not isinstance(cell, Cell) or cell.value is None:
        return ""
    return f"{cell.value:.{cell.digits}f}" + ("" if cell.std is None else f" ± {cell.std:.{cell.digits}f}")
