"""`hadamem train`: settings from preset, file and options."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from ..agents import DEFAULT_AGENT, section_of
from ..envs import EnvError
from ..files import check_path, clip_text
from ..lookup import trust_names, trusted_names, trusting
from ..runs import folder as folders
from ..runs.checkpoint import Checkpoints, read, read_about
from ..runs.config import TrainConfig, check_sections, complete, make_config, other_agent, override, settings_table, to_dict, to_flat
from ..runs.files import CheckpointError
from ..runs.folder import RUNS
from ..runs.presets import PRESETS
from ..runs.settings import ELSEWHERE
from .errors import WorkError
from .options import add_setting, add_trust, parse_assignments, setting_flags
from .output import print_table
from .runs import bad_input, one_line, suggest_runs, trust_flags

COMMON = {      # the options that most runs need, in this order; help texts of the others are the comments beside the fields
    "env": "what to train on: a name of `hadamem list envs`, a Gymnasium id, or package.module:Class of your own",
    "network.memory": "a name of `hadamem list memories`, or package.module:Class of your own (default: shm)",
    "agent": f"the algorithm: a name of `hadamem list agents`, or package.module:Class of your own (default: {DEFAULT_AGENT})",
    "preset": f"preset to start from: {', '.join(PRESETS)} (default: default)",
    "total_steps": "env steps to train for; the last iteration may go beyond (default: 1,000,000, or the preset's)",
    "seed": "random seed (default: 0)",
    "device": "auto (default: a GPU if there is one), cpu, cuda, cuda:1, ...",
    "env_options": "an option of the env, parsed as JSON if possible: --env-option k=3; repeatable",
    "network.memory_options": "an option of the memory: --memory-option row_mode=step; repeatable",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hadamem train --env NAME [--memory NAME] [--preset NAME] [--steps N] [--seed N] [--name NAME] [options]"
    add = parser.add_argument
    agent = _find_agent(getattr(parser, "words", []))
    table = settings_table(agent)
    defaults = to_flat(make_config(agent=agent))
    parser.set_defaults(explain=lambda word: _explain(word, agent))
    for name, words in COMMON.items():
        add_setting(add, table.settings[name], table, words)
    add("--name", help="name of the run; its folder is runs/NAME (default: from env, memory and seed)")
    add("--out", metavar="DIR", help="the run's folder, instead of --name")
    add("--resume", action="store_true", help="continue the run in that folder, with its settings")
    add("--from", dest="start", metavar="WHICH", help="with --resume: best, newest, or the iteration of a checkpoint (default: newest; "
                                                      "best for a run that diverged)")
    add("--config", metavar="FILE", help="settings from a YAML file, such as config.yaml of a run; options override")
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings by name: --set gamma=0.9 num_envs=64")
    add("--plain", action="store_true", help="print lines instead of the live view, also on a terminal")
    add("--seeds", type=int, nargs="+", metavar="N", help="one run per seed, side by side, in folders seed-N of --name or --out; "
                                                          "finished ones are not repeated, others are resumed")
    add("--jobs", type=int, metavar="N", help="runs at the same time (default: three on a GPU, on a CPU one per core)")
    add_trust(parser)
    add("--trust-names", nargs="+", default=[], help=argparse.SUPPRESS)      # for a child: what the user wrote or trusted
    section = section_of(agent)
    for group, title in (("", "more settings of the run"), ("network", "the network"), (section, f"the algorithm, {agent}")):
        box = parser.add_argument_group(f"{title} [with the preset default]")
        for name, setting in table.settings.items():
            if name not in COMMON and setting.section == group:
                add_setting(box.add_argument, setting, table, f"{setting.help} [{_shown(defaults[name])}]".strip())


def run(args: argparse.Namespace) -> int:
    with bad_input():
        from ..training.loop import TrainingFailed
        from ..training.loop import train as train_run
        from ..training.processes import end_with_parent
        from ..training.signals import exit_code
        from ..view.progress import Progress

        trust_names(args.trust_names)
        end_with_parent()
        place = _folder(args)
        if args.jobs is not None and args.jobs < 1:
            raise ValueError(f"--jobs must be at least 1, got {args.jobs}")
        if args.start is not None and not args.resume:
            raise ValueError(f"--from {args.start} needs --resume: it says where to continue")
        if args.seeds is not None:
            return _train_seeds(args, place)
        if args.jobs is not None:
            raise ValueError("--jobs is for several runs, and there is one; leave it out, or add --seeds")
        config = read_settings(args, place)
        place = place or RUNS / default_name(config)
        check_path(place)
        _check_complete(place)
        if args.resume and args.start is None and _is_finished(place, config) and not _is_damaged(place):
            folders.check_same(folders.load_config(place), config, place, changeable=True)
            print(f"{place} has finished its {folders.load_config(place).total_steps:,} steps; --steps with a larger number continues it")
            return 0
    trust = trust_flags(to_dict(config))
    progress = Progress(config, str(place), live=False if args.plain else None)
    try:
        with bad_input(lambda: not progress.was_built), progress:      # once it is running, the input was fine
            run = train_run(config, place, resume=args.start or args.resume, **progress.hooks)
    except (EnvError, TrainingFailed) as error:
        hint = _hint(place, config, trust)
        raise WorkError(f"{one_line(error)}{hint}") from error
    done = bool(run.metrics) and run.metrics[-1]["steps"] >= config.total_steps
    print_table([
        ("run", str(place)), *_evaluations(run), *_best(run, place), ("curve", _draw(run)),
        ("evaluate", f"hadamem eval {place}{trust}"), ("watch", f"hadamem watch {place}{trust}"),
        *([] if done else [("resume", f"hadamem train --resume --out {place}{trust}")]),
    ], indent=2)
    return 0 if done else exit_code(run.signal)


def _hint(place: Path, config: TrainConfig, trust: str) -> str:
    """How to continue a run that failed."""
    if not folders.is_run(place):
        return ""
    command = f"hadamem train --resume --out {place}{trust}"
    rate = getattr(config.algorithm, "learning_rate", None)
    if folders.read_info(place).get("diverged") and "learning_rate" in config.agent_class.changeable and rate is not None:
        where = "its best checkpoint" if (place / folders.BEST).is_dir() else "the beginning"
        return f"; `{command} --lr {rate / 10:g}` continues from {where}"
    where = "continues from the last checkpoint" if any(Checkpoints(place / folders.CHECKPOINTS).paths()) else "starts it again"
    return f"; `{command}` {where}"


def _train_seeds(args: argparse.Namespace, place: Path | None) -> int:
    """One run per seed."""
    from ..devices import find_device, runs_at_once
    from ..training.launch import train_many

    if args.resume:
        raise ValueError("--seeds resumes unfinished runs anyway; leave out --resume")
    if getattr(args, "seed", None) is not None:
        raise ValueError(f"--seeds {' '.join(map(str, args.seeds))} and --seed {args.seed} are both given; leave out --seed")
    if len(set(args.seeds)) < len(args.seeds):
        raise ValueError(f"--seeds names a seed twice: {' '.join(map(str, args.seeds))}")
    config = read_settings(args)
    place = place or RUNS / default_name(config).rpartition("-")[0]
    jobs = args.jobs if args.jobs is not None else runs_at_once(find_device(config.device))
    configs = {f"seed-{seed}": dataclasses.replace(config, seed=seed) for seed in args.seeds}
    codes = train_many(configs, place, jobs, say=lambda text: print(text, flush=True))
    ends = [(name, "finished" if code == 0 else f"not finished (code {code})") for name, code in codes.items()]
    print_table([("runs", str(place)), *ends], indent=2)
    return next((code if code in (129, 130, 143) else 1 for code in codes.values() if code), 0)      # ended by a signal, with a checkpoint


def read_settings(args: argparse.Namespace, place: Path | None = None) -> TrainConfig:
    """The preset, then the file (of --config, or of the run to resume), then the options."""
    file = None if args.config is None else Path(args.config)
    if args.resume:
        if file is not None:
            raise ValueError("--resume takes the settings of the run itself; leave out --config")
        if place is None:
            raise ValueError("--resume needs to know which run: add --name or --out")
        if not folders.rebuild_config(place, lambda text: print(f"hadamem: {text}", file=sys.stderr)):
            _check_complete(place)
            raise ValueError(f"there is no run in {place} to resume;{suggest_runs(place)} leave out --resume to start one")
        file = place / folders.CONFIG
    saved = {} if file is None else folders.read_config(file)
    agent = _agent_of(args, saved)
    if args.resume and agent != saved.get("agent", agent):
        raise ValueError(f"the run in {place} was trained with agent {saved['agent']!r}, got --agent {agent}; leave it out, or start a new "
                         "run")
    check_sections(saved, agent, file)
    table = settings_table(agent)
    given = {name: value for name, value in vars(args).items() if name in table.settings}
    for name, value in parse_assignments(args.set, table).items():
        given[name] = {**given.get(name, {}), **value} if isinstance(value, dict) else value
    trust_names(trusted_names(given))
    if given.get("agent", agent) != agent:
        raise ValueError("--set cannot change the agent, which decides what other settings there are; use --agent")
    try:
        saved = table.flatten(saved, read=True)
        saved = complete(saved, agent) if file is not None and folders.is_of_a_run(file) else saved
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if file is not None and "preset" in given and saved.get("preset", given["preset"]) != given["preset"]:
        raise ValueError(f"--preset {given['preset']} does not go with {file}, whose settings come from {saved['preset']!r}; leave one out")
    values = override(saved, given)
    preset = PRESETS.get(values.get("preset", "default"))
    if "env" not in values and (preset is None or "env" not in preset.settings):
        raise ValueError("--env is missing: name what to train on, e.g. --env popgym/RepeatPreviousEasy; `hadamem list envs` lists them")
    return make_config(values.pop("preset", "default"), **values)


def _find_agent(words: list[str]) -> str:
    """The agent that a command line means, which decides what other options there are: --agent, the file, or the preset."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--agent", "--config", "--name", "--out", "--preset"):
        early.add_argument(flag)
    for flag in ("--resume", "--trust"):
        early.add_argument(flag, action="store_true")
    early.add_argument("--trust-names", nargs="+", default=[])
    try:
        args, _ = early.parse_known_args(words)
        trust_names(args.trust_names)
        place = _folder(args) if args.resume else None
        file = args.config if args.config is not None else None if place is None else place / folders.CONFIG
        saved = {} if file is None else _read_for_agent(Path(file))
        agent = _agent_of(args, saved)
        with trusting(args.trust):
            section_of(agent)
    except (argparse.ArgumentError, ValueError, TypeError):      # the full parser says what is wrong
        return DEFAULT_AGENT
    return agent


def _read_for_agent(file: Path) -> dict[str, Any]:
    """The settings in a file, or of the newest checkpoint if a run lost its file."""
    if file.name == folders.CONFIG and not file.exists():
        folders.rebuild_config(file.parent, lambda text: print(f"hadamem: {text}", file=sys.stderr))
    return folders.read_config(file)


def _agent_of(args: argparse.Namespace, saved: dict[str, Any]) -> str:
    preset = PRESETS.get(getattr(args, "preset", None) or saved.get("preset", "default"))
    return getattr(args, "agent", None) or saved.get("agent") or (DEFAULT_AGENT if preset is None else preset.agent)


def _explain(option: str, agent: str) -> str:
    """What to say of an unknown option that other libraries or other agents have; "" if it is not known."""
    table, name = settings_table(agent), option.lstrip("-").replace("-", "_")
    field = ELSEWHERE.get(name.rpartition(".")[2])
    if field in table.bare:
        return f" did you mean {setting_flags(table.find(field), table)[-1 if '.' in option else 0]!r}?"
    other = other_agent(name, agent)
    return "" if other is None else f" it belongs to agent {other!r}, but the agent is {agent!r};"


def default_name(config: TrainConfig) -> str:
    """E.g. RepeatPreviousEasy-shm-0."""
    env = re.sub(r"[^\w.-]+", "-", config.env.rpartition("/")[2].rpartition(":")[2])
    agent = "" if config.agent == DEFAULT_AGENT else f"-{config.agent.rpartition(':')[2]}"
    return f"{env}{agent}-{config.network.memory.rpartition(':')[2]}-{config.seed}"


def _evaluations(run: Any) -> list[tuple[str, str]]:
    """A line with the latest and the best evaluation while training, if there was one."""
    from ..view.progress import evaluation_text, number

    found = run.summary()
    if "eval_return" not in found:
        return []
    return [("evaluation", f"{evaluation_text({**found, 'steps': found['eval_steps']})}, best {number(found['best_eval_return'])}")]


def _best(run: Any, place: Path) -> list[tuple[str, str]]:
    """A line about the best checkpoint, if it is not the last one and the run was not better at its end."""
    from ..view.progress import number

    try:
        about = read_about(place / folders.BEST)
        score, steps = about["best"]["score"], about["env_steps"]
        last = next(iter(folders.Checkpoints(place / folders.CHECKPOINTS).paths()))
    except (CheckpointError, KeyError, StopIteration):
        return []
    latest = run.summary().get(about["best"].get("by", "return"))
    if score is None or int(last.name) == about.get("iteration") or (latest is not None and latest >= score):
        return []
    return [("best", f"{number(score)} after {steps:,} steps: --best for eval and watch, --from best for --resume")]


def _draw(run: Any) -> str:
    """Draw the learning curve. Returns its path, or why there is none."""
    try:
        from ..view.curves import draw_run

        return str(draw_run(run))
    except ImportError:      # no reason to fail after hours of training
        return "not drawn: matplotlib is not installed (pip install 'hadamem[train]')"
    except OSError as error:      # nor is a full disk
        return f"not drawn, it cannot be written: {clip_text(error)}"


def _is_finished(place: Path, config: TrainConfig) -> bool:
    return folders.read_info(place).get("status") == "finished" and folders.load_config(place).total_steps >= config.total_steps


def _is_damaged(place: Path) -> bool:
    """Whether the newest checkpoint of a finished run is damaged, which is said: training goes on from the one before."""
    path = next(folders.Checkpoints(place / folders.CHECKPOINTS).paths(), None)
    try:
        if path is not None:
            read(path)
    except CheckpointError as error:
        print(f"hadamem: {place} has finished, but its newest checkpoint is damaged: {error}", file=sys.stderr)
        return True
    return False


def _check_complete(place: Path) -> None:
    """Refuse a folder that lost its settings: it cannot be resumed, and a new run must not overwrite it."""
    left = [name for name in (folders.CHECKPOINTS, folders.METRICS, folders.RUN) if (place / name).exists()]
    if left and not folders.is_run(place):
        raise ValueError(f"{place} has {' and '.join(left)} of a run but not its {folders.CONFIG}, so it cannot be resumed; "
                         f"put {folders.CONFIG} back, or choose a new name")


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, dict)):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _folder(args: argparse.Namespace) -> Path | None:
    if args.name is not None and args.out is not None:
        raise ValueError("--name and --out both say where the run goes; leave one out")
    if args.out is not None and not args.out.strip():
        raise ValueError(f"--out must name a folder, got {args.out!r}: is it an unset shell variable? `--out .` is the current folder")
    if args.name is not None and (not args.name.strip() or args.name == ".." or Path(args.name).name != args.name):
        raise ValueError(f"--name must be a single name, got {args.name!r}; --out takes a path")
    place = RUNS / args.name if args.name is not None else None if args.out is None else Path(args.out)
    if place is not None:
        check_path(place)
    return place
