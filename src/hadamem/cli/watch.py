"""`hadamem watch`: an episode of a trained agent as GIF, MP4 or text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .output import print_table
from .runs import add_run_arguments, bad_input, open_named_run


def arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    add = parser.add_argument
    add("--out", metavar="FILE", help="a .gif or .mp4 file (default: episode.gif in the run's folder)")
    add("--text", action="store_true", help="show the episode as text in the terminal instead")
    add("--episodes", type=int, default=1, metavar="N", help="episodes to show (default: 1)")
    add("--fps", type=float, default=4.0, metavar="X", help="steps per second (default: 4)")
    add("--max-steps", type=int, default=1000, metavar="N", help="stop an episode after N steps (default: 1000)")


def run(args: argparse.Namespace) -> int:
    from ..runs.files import inside
    from ..view import watch

    with bad_input():
        if args.text and args.out is not None:
            raise ValueError("--text shows the episode and --out writes it; leave one out")
        if args.out is not None:
            watch.check_path(args.out)
        run, env, options = open_named_run(args)
        frames = watch.play_frames(run.policy, env, episodes=args.episodes, seed=args.seed, deterministic=args.deterministic,
                                   text=args.text, colour=sys.stdout.isatty(), max_steps=args.max_steps, env_options=options)
        captions: list[str] = []

        def noted() -> Iterator[Any]:
            for frame in frames:
                if frame.last:
                    captions.append(frame.caption)
                yield frame

        if args.text:
            watch.show(noted(), args.fps)
            return 0
        path = watch.write(noted(), args.out or inside(Path(run.folder) / "episode.gif", run.folder), args.fps)
    for caption in captions:
        print(caption)
    print_table([("written to", str(path))], indent=2)
    return 0
