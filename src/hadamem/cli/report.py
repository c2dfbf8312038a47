"""`hadamem report`: one page, tables and figures from the results of studies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .output import print_table
from .runs import bad_input

FORMATS = ("all", "html", "json")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("studies", nargs="+", metavar="STUDY", help="folders of studies, or their names in studies/")
    parser.add_argument("--out", metavar="DIR", help="folder of the report (default: report/ in the folder of the first study)")
    parser.add_argument("--format", choices=FORMATS, default="all",
                        help="all: page, PNG, SVG, CSV, LaTeX, Markdown and JSON files (default); html: the page alone; json: print all "
                             "as data, write nothing")


def run(args: argparse.Namespace) -> int:
    with bad_input():
        from ..experiments.folder import find_folder
        from ..experiments.reporting import build_report

        folders = [find_folder(text) for text in args.studies]
        if args.format == "json":
            from ..experiments.folder import StudyFolder
            from ..reports.data import to_json

            report = build_report([StudyFolder(path) for path in folders])
            sys.stdout.write(to_json(report))
            return 0
        page = make_report(folders, args.out, args.format)
    print_table([("report", str(page))], indent=2)
    return 0


def make_report(folders: Sequence[Path], out: str | None = None, formats: str = "all") -> Path:
    """Write the report of some studies; returns the path of its page."""
    from ..experiments.folder import StudyFolder
    from ..experiments.reporting import build_report
    from ..reports import files

    report = build_report([StudyFolder(path) for path in folders])
    place = folders[0] / "report" if out is None else Path(out)
    link = next((path for path in [place, *place.rglob("*")] if path.is_symlink()), None) if out is None else None
    if link is not None:
        raise ValueError(f"{link} is a link, and nothing is written through it; delete it, or choose another folder with --out")
    return files.write_report(report, place, files.FORMATS if formats == "all" else (formats,))[0]
