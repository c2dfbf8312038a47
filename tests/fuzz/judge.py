"""What an input may end in: a result, or an error that hadamem raised itself, in one readable sentence."""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Callable
from pathlib import Path

import hadamem

PACKAGE = Path(hadamem.__file__).resolve().parent
EXPECTED = (ValueError, TypeError)      # and what is derived from them
PYTORCHS_OWN = ("Inference tensors cannot be saved for backward",)      # rules of PyTorch that hold for every function alike


class Failure(AssertionError):
    """A result that is wrong, found by a check of the fuzzer."""


def run(call: Callable[[], None]) -> str | None:
    """Call it. Returns what is wrong with how that ended, or None."""
    wrong = _run(call)
    return None if wrong is None else wrong.encode("utf-8", "backslashreplace").decode()      # to be printed


def _run(call: Callable[[], None]) -> str | None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            call()
        except Failure as failure:
            return str(failure)
        except BaseException as error:      # a SystemExit, too: nothing here may end the process
            if isinstance(error, KeyboardInterrupt):
                raise
            return problem(error)
    broken = [str(w.message) for w in said if "hadamem: backend" in str(w.message)]
    return broken[0] if broken else None


def problem(error: BaseException) -> str | None:
    """What is wrong with an error; None if it is one that a user should get."""
    words = " ".join(str(error).split())
    text = f"{type(error).__name__}: {words[:300]} ({place(error)})"
    if words.startswith(PYTORCHS_OWN):
        return None
    if not isinstance(error, EXPECTED) or not raised_by_us(error):
        return text
    if len(words.split()) < 3 or len(words) > 16_000:
        return f"not a sentence: {text}"
    return None


def place(error: BaseException) -> str:
    """The last lines of our own code on the way to an error."""
    found, step = [], error.__traceback__
    while step is not None:
        file = Path(step.tb_frame.f_code.co_filename)
        if PACKAGE in file.parents:
            found.append(f"{file.relative_to(PACKAGE)}:{step.tb_lineno}")
        step = step.tb_next
    return " > ".join(found[-3:]) or "not in hadamem"


def raised_by_us(error: BaseException) -> bool:
    """Whether a `raise` statement of hadamem raised it, rather than PyTorch, NumPy or Python on the way."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and step.tb_lineno in _raising_lines(step.tb_frame.f_code.co_filename)


@functools.cache
def _raising_lines(file: str) -> frozenset[int]:
    path = Path(file)
    if PACKAGE not in path.parents or not path.is_file():
        return frozenset()
    raises = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Raise)]
    return frozenset(line for node in raises for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))
