"""The progress of many runs: a live table on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .curves import short
from .progress import clock, number, percent

SHOWN = 12            # running tasks in the table
ORDER = ("finished", "pruned", "running", "interrupted", "waiting", "failed")
ENDED = ("finished", "pruned", "failed")


class ManyProgress:
    """Use as a context manager, and call it with the state of all tasks (`experiments.status.TaskStatus`) and the seconds left."""

    def __init__(self, title: str, stream: TextIO | None = None, live: bool | None = None, every: float = 10.0):
        self.title, self.every, self.stream = title, every, stream or sys.stdout
        self.console = Console(file=self.stream, highlight=False)
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal if live is None else live
        self._panel: Live | None = None
        self._last, self._line = float("-inf"), ""
        self._said = set[str]()

    def __enter__(self) -> ManyProgress:
        if self.live:
            self._panel = Live(Text(f"{self.title}: starting"), console=self.console, refresh_per_second=4)
            self._panel.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._panel is not None:
            self._panel.stop()
            self._panel = None

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):      # the output was closed; keep training
            if self._panel is not None:
                self.console.print(Text(text))
            else:
                print(text, file=self.stream, flush=True)

    def __call__(self, tasks: Sequence[Any], left: float | None) -> None:
        for task in tasks:
            if task.state == "failed" and task.name not in self._said:
                self._said.add(task.name)
                self.say(f"{task.name} failed: {task.error}")
        if self._panel is not None:
            self._panel.update(self._draw(tasks, left))
            return
        done = all(task.state in ENDED for task in tasks)
        line, now = f"{self.title}: {summary(tasks, left)}", time.monotonic()
        if line != self._line and (done or now - self._last >= self.every):
            self._last, self._line = now, line
            self.say(line)

    def _draw(self, tasks: Sequence[Any], left: float | None) -> Panel:
        body = Table.grid(padding=(0, 2, 0, 0))
        for justify in ("left", "left", "right", "right"):
            body.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
        running = [task for task in tasks if task.state == "running"]
        body.add_row(Text("all", style="bold"), ProgressBar(total=1.0, completed=_share(tasks), width=24), percent(_share(tasks)), "")
        for task in running[:SHOWN]:
            steps = f"{short(task.steps)} / {short(task.total)}" if task.total else ""
            body.add_row(task.name, ProgressBar(total=1.0, completed=task.share, width=24), steps,
                         "" if task.value is None else f"return {number(task.value)}")
        if len(running) > SHOWN:
            body.add_row(f"and {len(running) - SHOWN} more", "", "", "")
        return Panel(body, title=Text(self.title, style="bold"), title_align="left", subtitle=Text(summary(tasks, left), style="dim"),
                     subtitle_align="left", border_style="cyan", expand=False)


def summary(tasks: Sequence[Any], left: float | None) -> str:
    """"12 of 36 finished, 2 running, 1 failed, 45 %, 12:30 left"."""
    counts = Counter(task.state for task in tasks)
    parts = [f"{counts['finished']} of {len(tasks)} finished", *(f"{counts[state]} {state}" for state in ORDER[1:] if counts[state])]
    parts.append(percent(_share(tasks)))
    if sum(counts[state] for state in ENDED) < len(tasks) and left is not None:
        parts.append(f"{clock(left)} left")
    return ", ".join(parts)


def _share(tasks: Sequence[Any]) -> float:
    return sum(task.share for task in tasks) / max(1, len(tasks))
