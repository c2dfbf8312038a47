"""`hadamem export`: a trained agent as a file that runs without hadamem, or as a folder with its weights and a README."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError, WorkError
from .options import add_trust
from .output import print_table
from .runs import bad_input

if TYPE_CHECKING:
    from ..training.export import Exported

ENDINGS = {"onnx": ".onnx", "torch": ".pt2", "policy": ""}


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's folder or its name in runs/, a checkpoint, or a saved policy")
    add("--format", choices=list(ENDINGS), help="onnx; torch: a program of torch.export; policy: a folder for hm.load_policy with a README "
                                                "(default: by the ending of --out, else onnx)")
    add("--out", metavar="FILE", help="the file to write (default: the run's name with .onnx or .pt2, or -policy, in the current folder)")
    add("--mask", action="store_true", help="with an input for allowed actions")
    add("--noise", action="store_true", help="with an input for random numbers, so that actions can be drawn")
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    from ..training.export import ExportError, export
    from ..training.policy import load_policy

    format = args.format or next((name for name, end in ENDINGS.items() if end and (args.out or "").endswith(end)), "onnx")
    with bad_input():
        if format == "policy" and (args.mask or args.noise):
            raise ValueError("--mask and --noise are for --format onnx and torch; a saved policy takes masks and draws actions anyway")
        policy = load_policy(args.run)
        out = Path(args.out or f"{Path(args.run).resolve().name}{ENDINGS[format] or '-policy'}")
        if format == "policy":
            print_table([("written to", str(policy.save(out)))])
            return 0
        try:
            made = export(policy, out, format, mask=args.mask, noise=args.noise)
        except ExportError as error:
            raise WorkError(f"{error}; nothing was written") from error
        except ImportError as error:
            raise UsageError(str(error)) from error
    print_table(report(made))
    return 0


def report(made: Exported) -> list[tuple[str, str]]:
    """What was written, as rows of a table."""
    from ..training.agreement import ENVS, STEPS

    checked = "no: onnxruntime is not installed"
    if made.difference is not None:
        checked = f"it agrees with the policy over {STEPS} steps of {ENVS} envs, largest difference {made.difference:.1e}"
    return [("written to", f"{made.path} ({made.bytes / 1e6:.1f} MB)"), ("checked", checked), ("inputs", ", ".join(map(str, made.inputs))),
            ("outputs", ", ".join(map(str, made.outputs))), ("start", "state = 0 and reset = true; then state = next_state")]
