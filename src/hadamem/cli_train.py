"""The commands `hadamem train`, `eval` and `watch`: settings from preset, file and options; what is printed at the end."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import cli_fields
from .cli.errors import UsageError, WorkError
from .cli.output import print_table
from .envs import EnvError
from .lookup import import_from_here
from .names import close_names
from .training import folder as folders
from .training.config import PRESETS, TrainConfig, make_config, to_dict
from .training.folder import RUNS

COMMON = {      # the options that most runs need, in this order; the words of others are the comments beside the fields
    "env": "what to train on: a name of `hadamem list envs`, a Gymnasium id, or package.module:Class of your own",
    "network.memory": "a name of `hadamem list memories`, or package.module:Class of your own (default: shm)",
    "preset": f"where settings start from: {', '.join(PRESETS)} (default: default)",
    "steps": "env steps to train for; the last batch may go beyond (default: 1,000,000, or the preset's)",
    "seed": "of everything random (default: 0)",
    "device": "auto (default: a GPU if there is one), cpu, cuda, cuda:1, ...",
    "env_options": "an option of the env, as JSON or else text: --env-option k=3; repeatable",
    "network.memory_options": "an option of the memory: --memory-option row_mode=step; repeatable",
}


# --- train ---------------------------------------------------------------------------------------------------------


def train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hadamem train --env NAME [--memory NAME] [--preset NAME] [--steps N] [--seed N] [--name NAME] [options]"
    parser.set_defaults(elsewhere=cli_fields.flag_elsewhere)
    settings = cli_fields.find_settings()
    defaults = cli_fields.flatten(to_dict(make_config()), settings)
    for name, words in COMMON.items():
        cli_fields.add_option(parser.add_argument, settings[name], words)
    add = parser.add_argument
    add("--name", help="of the run: its folder is runs/NAME (default: made from env, memory and seed)")
    add("--out", metavar="DIR", help="the run's folder, instead of --name")
    add("--resume", action="store_true", help="go on with the run in that folder; its settings are taken from there")
    add("--config", metavar="FILE", help="settings from a YAML file, such as config.yaml of a run; options override")
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings by name: --set ppo.epochs=4 batch=8192")
    add("--plain", action="store_true", help="lines instead of the live view, also on a terminal")
    add("--seeds", type=int, nargs="+", metavar="N", help="one run for each seed, side by side, in folders seed-N of --name or --out; "
                                                          "finished ones are not redone, others go on")
    add("--jobs", type=int, metavar="N", help="runs at the same time (default: three on a GPU, on a CPU as many as cores)")
    for group, title in (("", "more settings of the run"), ("network", "the network"), ("ppo", "the algorithm")):
        box = parser.add_argument_group(f"{title} [with the preset default]")
        for name, setting in settings.items():
            if name not in COMMON and name.rpartition(".")[0] == group:
                cli_fields.add_option(box.add_argument, setting, f"{setting.help} [{_shown(defaults[name])}]".strip())


def train(args: argparse.Namespace) -> int:
    with _bad_input():
        from .training.loop import TrainingFailed
        from .training.loop import train as train_run
        from .training.progress import Progress

        import_from_here()
        place = _folder(args)
        if args.jobs is not None and args.jobs < 1:
            raise ValueError(f"--jobs must be at least 1, got {args.jobs}")
        if args.seeds is not None:
            return _train_seeds(args, place)
        config = read_settings(args, place)
        place = place or RUNS / default_name(config)
        _check_whole(place)
        if args.resume and folders.read_info(place).get("status") == "finished" and folders.load_config(place).steps >= config.steps:
            folders.check_same(folders.load_config(place), config, place)
            print(f"{place} has finished its {config.steps:,} steps; --steps with a larger number goes on")
            return 0
    progress = Progress(config, str(place), live=False if args.plain else None)
    try:
        with _bad_input(lambda: not progress.tally.row), progress:      # once it is running, the input was fine
            run = train_run(config, place, resume=args.resume, **progress.hooks)
    except (EnvError, TrainingFailed) as error:
        raise WorkError(f"{_line(error)}; `hadamem train --resume --out {place}` goes on from the last checkpoint") from error
    done = bool(run.metrics) and run.metrics[-1]["steps"] >= config.steps
    print_table([
        ("run", str(place)), ("curve", _draw(run)), ("evaluate", f"hadamem eval {place}"), ("watch", f"hadamem watch {place}"),
        *([] if done else [("go on", f"hadamem train --resume --out {place}")]),
    ], indent=2)
    return 0 if done else 130


def _train_seeds(args: argparse.Namespace, place: Path | None) -> int:
    """One run for each seed."""
    from .devices import find_device
    from .training.launch import train_many

    if args.resume:
        raise ValueError("--seeds goes on with runs by itself; leave out --resume")
    if len(set(args.seeds)) < len(args.seeds):
        raise ValueError(f"--seeds names a seed twice: {' '.join(map(str, args.seeds))}")
    config = read_settings(args)
    place = place or RUNS / default_name(config).rpartition("-")[0]
    jobs = args.jobs if args.jobs is not None else (3 if find_device(config.device).type == "cuda" else os.cpu_count() or 1)
    configs = {f"seed-{seed}": dataclasses.replace(config, seed=seed) for seed in args.seeds}
    codes = train_many(configs, place, jobs, say=lambda text: print(text, flush=True))
    ends = [(name, "finished" if code == 0 else f"not finished (code {code})") for name, code in codes.items()]
    print_table([("runs", str(place)), *ends], indent=2)
    return next((130 if code == 130 else 1 for code in codes.values() if code), 0)


def read_settings(args: argparse.Namespace, place: Path | None = None) -> TrainConfig:
    """The preset, then the file (of --config, or of the run to resume), then the options."""
    settings = cli_fields.find_settings()
    given = {name: value for name, value in vars(args).items() if name in settings}
    given |= cli_fields.read_assignments(args.set, settings)
    file = None if args.config is None else Path(args.config)
    if args.resume:
        if file is not None:
            raise ValueError("--resume takes the settings of the run itself; leave out --config")
        if place is None:
            raise ValueError("--resume needs to know which run: add --name or --out")
        _check_whole(place)
        if not folders.is_run(place):
            raise ValueError(f"there is no run in {place} to resume;{_near_runs(place)} leave out --resume to start one")
        file = place / folders.CONFIG
    saved = {} if file is None else _read_file(file, settings)
    if file is not None and "preset" in given and saved.get("preset", given["preset"]) != given["preset"]:
        raise ValueError(f"--preset {given['preset']} does not go with {file}, whose settings come from {saved['preset']!r}; leave one out")
    values = {**saved, **given}
    if "env" not in values:
        raise ValueError("--env is missing: say what to train on, e.g. --env popgym/RepeatPreviousEasy; `hadamem list envs` has the names")
    return make_config(values.pop("preset", "default"), **values)


def _read_file(file: Path, settings: Mapping[str, cli_fields.Setting]) -> dict[str, Any]:
    """Settings of a YAML file by dotted name."""
    values = folders.read_config(file)
    try:
        return cli_fields.flatten(values, settings)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def default_name(config: TrainConfig) -> str:
    """E.g. RepeatPreviousEasy-shm-0."""
    env = re.sub(r"[^\w.-]+", "-", config.env.rpartition("/")[2].rpartition(":")[2])
    return f"{env}-{config.network.memory.rpartition(':')[2]}-{config.seed}"


def _draw(run: Any) -> str:
    """Draw the curve, and say where it is."""
    try:
        from .training.curves import draw_run

        return str(draw_run(run))
    except ImportError:      # after hours of training, nothing to fail for
        return "not drawn: matplotlib is not installed (pip install 'hadamem[train]')"


def _check_whole(place: Path) -> None:
    """Refuse what is left of a run without its settings: it can neither go on, nor should a new one be written over it."""
    left = [name for name in (folders.CHECKPOINTS, folders.METRICS, folders.RUN) if (place / name).exists()]
    if left and not folders.is_run(place):
        raise ValueError(f"{place} has {' and '.join(left)} of a run but not its {folders.CONFIG}, so it cannot be resumed; "
                         f"put {folders.CONFIG} back, or choose a new name")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _folder(args: argparse.Namespace) -> Path | None:
    if args.name is not None and args.out is not None:
        raise ValueError("--name and --out both say where the run goes; leave one out")
    if args.out is not None and not args.out.strip():
        raise ValueError(f"--out must name a folder, got {args.out!r}: is it an unset shell variable? `--out .` is the current folder")
    if args.name is not None and (not args.name.strip() or args.name == ".." or Path(args.name).name != args.name):
        raise ValueError(f"--name must be a single name, got {args.name!r}; --out takes a path")
    return RUNS / args.name if args.name is not None else None if args.out is None else Path(args.out)


# --- eval ----------------------------------------------------------------------------------------------------------


def eval_arguments(parser: argparse.ArgumentParser) -> None:
    _run_arguments(parser)
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="episodes to play (default: 100)")
    parser.add_argument("--max-steps", type=int, metavar="N",
                        help="cut episodes after N steps, and count them as they stand (default: all are played to their end)")


def evaluate(args: argparse.Namespace) -> int:
    from .training.evaluate import evaluate as play
    from .training.evaluations import keep

    over: list[int] = []
    try:
        with _bad_input(lambda: not over):      # once an episode is over, the input was fine
            run, env, options = _open_run(args)
            with _counter(args.episodes, over) as report:
                found = play(run.policy, env, args.episodes, args.seed, args.deterministic, env_options=options,
                             max_steps=args.max_steps, report=report)
    except EnvError as error:
        raise WorkError(_line(error)) from error
    variant = f" ({', '.join(f'{name}={json.dumps(value)}' for name, value in options.items())})" if options else ""
    print(f"{env}{variant}, {run.config.network.memory}: {found.episodes} episodes, "
          f"{'most likely' if args.deterministic else 'drawn'} actions, seed {args.seed}")
    width = len("written to")
    print_table(evaluation_rows(found), indent=2, width=width)
    sys.stdout.flush()                # what was found is told before anything is written: that may fail, and playing took long
    try:
        paths = keep(run.folder, run.config, found, env=env, env_options=options, seed=args.seed, deterministic=args.deterministic,
                     steps=run.policy.steps)
    except OSError as error:
        print(f"hadamem: this evaluation is not kept: {error.filename or run.folder} cannot be written to ({error.strerror or error})",
              file=sys.stderr)
    else:
        print_table([("written to", " and ".join(map(str, paths)))], indent=2, width=width)
    return 0


def evaluation_rows(found: Any) -> list[tuple[str, str]]:
    """An evaluation in words."""
    rows = [("return", f"{found.mean:.4g}" + ("" if found.ci is None else f"   95 % interval {found.ci[0]:.4g} to {found.ci[1]:.4g}"))]
    summary = found.summary()
    if found.std is not None:
        rows.append(("", f"std {found.std:.3g}, min {summary['min']:.4g}, median {summary['median']:.4g}, max {summary['max']:.4g}"))
    if found.success is not None:
        low, high = found.success_ci
        rows.append(("success", f"{100 * found.success:.1f} %   95 % interval {100 * low:.1f} % to {100 * high:.1f} %"))
    rows.append(("length", f"{summary['length']:.4g} steps"))
    if found.max_steps is not None:
        rows.append(("cut", f"{found.cut} of {found.episodes} episodes, after {found.max_steps:,} steps (--max-steps)"))
    return rows


# --- watch ---------------------------------------------------------------------------------------------------------


def watch_arguments(parser: argparse.ArgumentParser) -> None:
    _run_arguments(parser)
    add = parser.add_argument
    add("--out", metavar="FILE", help="a .gif or .mp4 file (default: episode.gif in the run's folder)")
    add("--text", action="store_true", help="show the episode as text in the terminal instead")
    add("--episodes", type=int, default=1, metavar="N", help="episodes to show (default: 1)")
    add("--fps", type=float, default=4.0, metavar="X", help="steps a second (default: 4)")
    add("--max-steps", type=int, default=1000, metavar="N", help="show no more of an episode than this (default: 1000)")


def watch(args: argparse.Namespace) -> int:
    from .training import watch as show

    with _bad_input():
        if args.text and args.out is not None:
            raise ValueError("--text shows the episode and --out writes it; leave one out")
        if args.out is not None:
            show.check_path(args.out)
        run, env, options = _open_run(args)
        frames = show.play_frames(run.policy, env, episodes=args.episodes, seed=args.seed, deterministic=args.deterministic,
                                  text=args.text, colour=sys.stdout.isatty(), max_steps=args.max_steps, env_options=options)
        captions: list[str] = []

        def noted() -> Iterator[Any]:
            for frame in frames:
                if frame.last:
                    captions.append(frame.caption)
                yield frame

        if args.text:
            show.show(noted(), args.fps)
            return 0
        path = show.write(noted(), args.out or Path(run.folder) / "episode.gif", args.fps)
    for caption in captions:
        print(caption)
    print_table([("written to", str(path))], indent=2)
    return 0


# --- shared --------------------------------------------------------------------------------------------------------


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder, or its name in runs/")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", help="the most likely actions")
    how.add_argument("--sampled", action="store_false", dest="deterministic", help="actions drawn as in training (default)")
    parser.add_argument("--env", metavar="NAME", help="another env with the same spaces, instead of the run's own")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which episodes (default: 0); none of them was trained on")
    cli_fields.add_option(parser.add_argument, cli_fields.find_settings()["env_options"],
                           "an option of the env, over those of the run: --env-option k=5; repeatable")


def _open_run(args: argparse.Namespace) -> tuple[Any, str, dict[str, Any]]:
    """The run, the env to play it on, and that env's options."""
    from .training.run import open_run

    path = folders.find_run(args.run)
    if not folders.is_run(path):
        raise ValueError(f"there is no run in {path};{_near_runs(path)} `hadamem train` makes one")
    import_from_here()
    run = open_run(path)
    given = getattr(args, "env_options", {})
    if args.env is None:
        return run, run.config.env, {**run.config.env_options, **given}
    return run, args.env, given


def _near_runs(path: Path) -> str:
    """Runs whose names come near, as a hint."""
    names = [p.name for p in RUNS.iterdir() if folders.is_run(p)] if RUNS.is_dir() else []
    near = close_names(path.name, names, n=2)
    return f" did you mean {' or '.join(str(RUNS / name) for name in near)}?" if near else ""


@contextmanager
def _bad_input(applies: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """What is wrong with the input is told in one sentence; errors are taken for that as long as it `applies`."""
    try:
        yield
    except (ValueError, TypeError, ImportError, EnvError) as error:
        if not applies():
            raise
        hint = "; pip install 'hadamem[train]'" if isinstance(error, ImportError) else ""
        raise UsageError(_line(error) + hint) from error


def _line(error: Exception) -> str:
    """The message, without the traceback of a worker process that may follow it."""
    return " ".join(str(error).partition("\nIn the worker")[0].split()).rstrip(".:")


@contextmanager
def _counter(total: int, seen: list[int]) -> Iterator[Callable[[int], None]]:
    """Notes how many episodes are over, and says so on a terminal."""
    if not sys.stderr.isatty():
        yield seen.append
        return

    def say(over: int) -> None:
        seen.append(over)
        print(f"\r{over} of {total} episodes", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
