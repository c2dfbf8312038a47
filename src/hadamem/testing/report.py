"""The report of `check_memory`: each distinct error once, with the checks that hit it and a hint."""

from __future__ import annotations

import linecache
import os
import re
import sys
import textwrap
import traceback
from dataclasses import dataclass, field

SIGNATURES = {
    "initial_state": "def initial_state(self, batch_size, device=None, dtype=None, generator=None)",
    "forward": "def forward(self, x, state=None, reset=None)",
    "step": "def step(self, x, state, reset=None)",
}
_NOT_THE_USERS = {"hadamem", "torch", "numpy", "numba", "triton", *sys.stdlib_module_names}


@dataclass(frozen=True)
class Check:
    """The outcome of one check."""

    name: str
    passed: bool
    message: str = ""
    hint: str = ""       # where it was raised, or what to do

    @property
    def raised(self) -> bool:
        """Whether the memory raised an error, rather than returned wrong values."""
        return self.message.startswith("raised ")

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'}  {self.name}{': ' + self.message if self.message else ''}"


@dataclass
class Report:
    """The outcome of every check on one memory; true if all passed."""

    subject: str
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(c.passed for c in self.checks)

    @property
    def failures(self) -> list[Check]:
        return [c for c in self.checks if not c.passed]

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = f"{self.subject}: {len(self.checks) - len(self.failures)} of {len(self.checks)} properties hold"
        return "\n".join([head, *(f"  {c}" for c in self.checks)] if self.ok else [head, self.complaint("FAIL  ")])

    def complaint(self, mark: str = "- ") -> str:
        """Each distinct error once: the first check that failed with it, a hint, and the names of the other checks."""
        groups: dict[tuple[str, str], list[Check]] = {}
        for check in self.failures:
            groups.setdefault(_kind(check), []).append(check)
        lines, indent = [], " " * (2 + len(mark))
        for first, *rest in groups.values():
            lines.append(f"  {mark}{first.name}: {' '.join(first.message.split())}")
            if first.hint:
                lines.append(f"{indent}{first.hint}")
            if rest:
                names = f"the same in {len(rest)} more: {'; '.join(c.name for c in rest)}"
                lines += textwrap.wrap(names, 120, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
        first_of_all = "Start with the first error; the others often follow from it. " if len(groups) > 1 else ""
        return "\n".join([*lines, f"{first_of_all}help(hadamem.Memory) describes what a memory must do."])


def explain(error: Exception) -> str:
    """A hint for an error: the last line of the user's code in its traceback, or the right signature of a method."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [_is_the_users(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    called = re.search(r"\b(initial_state|forward|step)\(\) (got|takes|missing)", str(error)) if isinstance(error, TypeError) else None
    if called and not any(own[-1:]):      # the call itself failed: wrong signature
        return f"to do: write it as {SIGNATURES[called[1]]}"
    if not any(own):
        return ""
    frame, number = frames[max(i for i, mine in enumerate(own) if mine)]
    code = frame.f_code
    path = os.path.relpath(code.co_filename) if code.co_filename.startswith(os.getcwd() + os.sep) else code.co_filename
    text = linecache.getline(code.co_filename, number, frame.f_globals).strip()
    return f"at {path}:{number} in {code.co_name}" + (f": {text}" if text else "")


def _is_the_users(module: str) -> bool:
    return module.partition(".")[0] not in _NOT_THE_USERS


def _kind(check: Check) -> tuple[str, str]:
    """The key that groups equal errors. Numbers in raised errors are ignored: they are often shapes."""
    if check.raised:
        return re.sub(r"\d+(, \d+)*", "#", check.message), check.hint
    return check.message, ""
