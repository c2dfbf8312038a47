"""Runs Python code in new processes that start fast: they are forked from one that has already imported hadamem and torch."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

METHODS = multiprocessing.get_all_start_methods()
CONTEXT = multiprocessing.get_context("forkserver" if "forkserver" in METHODS else "spawn")
if "forkserver" in METHODS:
    CONTEXT.set_forkserver_preload(["hadamem"])      # this imports torch, but not numba, triton or gymnasium


def _main(code: str, output: str, names: dict) -> None:
    with open(output, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    exec(compile(code, "<child>", "exec"), {"__name__": "__main__", **names})


def start(code: str, **names) -> tuple[BaseProcess, Iterator]:
    """Start the code; returns the process, and an iterator over what it passes to `tell` until it ends. `names` become globals."""
    here, there = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_main, args=("tell = pipe.send\n" + code, os.devnull, {**names, "pipe": there}))
    process.start()
    there.close()
    return process, _receive(here)


def _receive(pipe: Connection) -> Iterator:
    while True:
        try:
            yield pipe.recv()
        except EOFError:
            return


def run(code: str, timeout: float = 120.0) -> tuple[int | None, str]:
    """Run the code; returns its exit code (None after a timeout) and its output on stdout and stderr."""
    with tempfile.NamedTemporaryFile("r") as output:
        process = CONTEXT.Process(target=_main, args=(code, output.name, {}))
        process.start()
        process.join(timeout)
        code_or_none = process.exitcode
        process.kill()
        return code_or_none, output.read()
