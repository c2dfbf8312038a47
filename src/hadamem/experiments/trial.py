"""Train one run of a sweep in this process: `python -m hadamem.experiments.trial CONFIG FOLDER`. Ends with its parent."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..runs.folder import load_config
from ..training.loop import train
from .worker import INTERRUPTED, guard, prepare, resumption


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trust-names", nargs="+", default=[], help="classes of the user that may be imported")
    args = parser.parse_args(argv)

    def work() -> int:
        run = train(load_config(args.config), args.folder, resume=resumption(args.folder),
                    notify=lambda text: print(text, flush=True))
        return 0 if run.status == "finished" else INTERRUPTED

    prepare(args.trust_names)
    return guard(work)


if __name__ == "__main__":
    sys.exit(main())
