"""A child process: runs some inputs one after the other, and writes a line of JSON before and after each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TextIO

KINDS = {"ops": 9, "memories": 5, "settings": 3, "commands": 3}      # and their shares
MEMORY = 24.0      # GB of address space; PyTorch alone takes several

Case = Callable[[Random], tuple[str, Callable[[], None]]]


@contextlib.contextmanager
def cases() -> Iterator[dict[str, Case]]:
    """What makes inputs, by kind. Commands run in a folder of their own, until the end of this context."""
    from . import memories, ops, settings
    from .commands import Workshop

    with Workshop() as workshop:
        yield {"ops": ops.case, "memories": memories.case, "settings": settings.case, "commands": workshop.case}


def run_input(made: dict[str, Case], seed: int, n: int, kind: str = "",
              began: Callable[[dict[str, Any]], None] = lambda about: None) -> dict[str, Any]:
    """Run input number n. Returns its kind, what it is in words, and what is wrong, if anything."""
    import torch

    from . import judge

    rng = Random(f"{seed}:{n}")
    kind = kind or rng.choices(list(KINDS), list(KINDS.values()))[0]
    torch.manual_seed(rng.getrandbits(32))
    text, call = made[kind](rng)
    about = {"n": n, "kind": kind, "text": text}
    began(about)
    start = time.monotonic()
    failure = judge.run(call)
    return {**about, "failure": failure, "seconds": time.monotonic() - start}


def run_alone(seed: int, n: int, kind: str = "") -> int:
    """Run one input here and print all about it."""
    with cases() as made:
        result = run_input(made, seed, n, kind, lambda about: print(f"{about['kind']}: {about['text']}", flush=True))
    print(result["failure"] or "no failure")
    return 0 if result["failure"] is None else 1


def main(seed: int, first: int, last: int, kind: str, out: TextIO) -> None:
    from .commands import limited_memory

    def tell(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    with limited_memory(MEMORY), cases() as made:
        for n in range(first, last):
            tell(run_input(made, seed, n, kind, tell))


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)      # whatever else is printed
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], channel)
