"""How many files a reader visits: the source files that a training iteration and an acting step run through, and switches between them.

    PYTHONPATH=src python benchmarks/file_switches.py [--calls]

Counts calls of functions in src/hadamem, in the order in which they happen, for `Trainer.iteration` with a single update of PPO and for
`Policy.act`, with SHM on RepeatPrevious. A switch is a call into another file than the call before. --calls lists the files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import hadamem as hm

PACKAGE = Path(hm.__file__).parent


def visited(call):
    """The files of the package that a call runs through, in order, without repeats in a row."""
    files = []

    def note(frame, event, arg):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)):
            short = str(Path(name).relative_to(PACKAGE))
            if not files or files[-1] != short:
                files.append(short)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", action="store_true")
    args = parser.parse_args()
    run, trainer, update = build()
    trainer.iteration()
    obs, state = run[1], None
    policy = run[0]
    _, state = policy.act(obs, state)
    parts = {"iteration": trainer.iteration, "update": update, "acting step": lambda: policy.act(obs, state)}
    for name, call in parts.items():
        files = visited(call)
        print(f"{name:<12} {len(set(files)):>3} files {len(files) - 1:>6} switches")
        if args.calls:
            print("   ", ", ".join(dict.fromkeys(files)))


def build():
    """A trainer with one update per iteration, its policy with an observation, and the update alone. Works with older trees, too."""
    from hadamem.training.policy import Policy
    from hadamem.training.trainer import Trainer

    small = {"env": "popgym/RepeatPreviousEasy", "memory": "shm", "num_envs": 4, "device": "cpu"}
    try:
        from hadamem.runs.config import make_config

        trainer = Trainer(make_config(**small, num_epochs=1, num_minibatches=1))
        update = trainer.agent.update
    except ImportError:
        from hadamem.training.config import make_config

        trainer = Trainer(make_config(**small, **{"ppo.epochs": 1, "ppo.minibatches": 1}))
        update = trainer._update
    env = hm.envs.make("popgym/RepeatPreviousEasy", num_envs=4, seed=0)
    return (Policy.of(trainer), env.reset()[0]), trainer, update


if __name__ == "__main__":
    main()
