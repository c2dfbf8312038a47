"""The progress of a run: a live panel on a terminal, else a line every few seconds."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..runs.config import TrainConfig
from .curves import short

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#"
WINDOW = 15.0         # seconds over which the speed is measured
EPISODES = 100        # the return shown is the mean over about the last 100 episodes
STOPPING = "stopping after this iteration; Ctrl-C again stops at once"
POINTS = 256          # of the curve; at this length neighbours are merged
WIDEST, TWO_COLUMNS = 92, 60      # columns of the terminal


class Tally:
    """Sums up rows of metrics for the view, in constant memory."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock, self.start = clock, clock()
        self.row: dict[str, Any] = {}
        self.skipped = 0.0
        self.seconds = {"rollout": 0.0, "update": 0.0}
        self.times: deque[tuple[float, float]] = deque()             # (time, steps) of the last rows
        self.recent: deque[dict[str, Any]] = deque()                 # the last rows with finished episodes
        self.curve: list[tuple[float, int]] = []                     # (mean return, number of rows)
        self._waiting: list[float] = []
        self._stride = 1

    def add(self, row: dict[str, Any]) -> None:
        now = self.clock()
        if not self.times:
            batch = row["steps"] / max(1, row.get("iteration", 1))
            self.times.append((now - row.get("seconds", 0.0), row["steps"] - batch))
        self.times.append((now, row["steps"]))
        while len(self.times) > 2 and self.times[1][0] < now - WINDOW:
            self.times.popleft()
        self.row = row
        self.skipped += row.get("skipped", 0.0)
        for name in self.seconds:
            self.seconds[name] += row.get(f"{name}_seconds", 0.0)
        if row.get("episodes") and "return" in row:
            self.recent.append(row)
            while sum(r["episodes"] for r in self.recent) - self.recent[0]["episodes"] >= EPISODES:
                self.recent.popleft()
            self._extend(row["return"])

    def _extend(self, value: float) -> None:
        self._waiting.append(value)
        if len(self._waiting) == self._stride:
            self.curve.append((sum(self._waiting) / self._stride, self._stride))
            self._waiting.clear()
        if len(self.curve) == POINTS:
            self.curve = [((a + b) / 2, n + m) for (a, n), (b, m) in zip(self.curve[::2], self.curve[1::2], strict=True)]
            self._stride *= 2

    def mean(self, name: str) -> float | None:
        """Mean over the last finished episodes."""
        rows = [row for row in self.recent if name in row]
        total = sum(row["episodes"] for row in rows)
        return sum(row[name] * row["episodes"] for row in rows) / total if total else None

    @property
    def rate(self) -> float | None:
        """Recent env steps per second."""
        if len(self.times) < 2:
            return None
        (t0, s0), (t1, s1) = self.times[0], self.times[-1]
        return (s1 - s0) / max(t1 - t0, 1e-9)

    def share(self, name: str) -> float:
        """Share of the time spent in "rollout" or "update"."""
        return self.seconds[name] / max(sum(self.seconds.values()), 1e-9)

    def left(self, steps: int) -> float | None:
        """Seconds until `steps` are done."""
        rate = self.rate
        return max(0.0, steps - self.row["steps"]) / rate if rate else None

    def sparkline(self, width: int, bars: str = BARS) -> str:
        """The curve of returns in at most `width` characters."""
        values = [value for value, _ in self.curve]
        k = min(width, len(values))
        if k < 2:
            return ""
        cuts = [i * len(values) // k for i in range(k + 1)]
        means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
        low, high = min(means), max(means)
        span = max(high - low, 1e-3 * max(abs(low), abs(high)), 1e-9)
        return "".join(bars[min(len(bars) - 1, int((mean - low) / span * len(bars)))] for mean in means)


class _Screen(Console):
    """A console that survives a closed pipe; Rich would end the process."""

    lost: Callable[[], None]

    def on_broken_pipe(self) -> None:
        self.quiet = True
        self.lost()


class Progress:
    """A context; call it with every row of metrics.

    live: draw a panel; None: if the stream is a terminal. every: seconds between lines otherwise.
    """

    def __init__(self, config: TrainConfig, place: str = "", stream: TextIO | None = None, live: bool | None = None, every: float = 5.0):
        self.config, self.place, self.every = config, place, every
        self.stream = stream or sys.stdout
        self.console = _Screen(file=self.stream, highlight=False)
        self.console.lost = self._go_silent
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal if live is None else live
        self.shown = config.agent_class.shown
        self.tally = Tally()
        self.facts = ""
        self.stops = False                   # Ctrl-C was pressed
        self._panel: Live | None = None
        self._lock = threading.Lock()
        self._printed, self._last_line = -1.0, float("-inf")

    @property
    def hooks(self) -> dict[str, Any]:
        """Arguments for `train`."""
        return {"report": self, "built": self.built, "notify": self.say, "stopping": self.stopping}

    def built(self, trainer: Any) -> None:
        """Show the sizes of the run; for `train(built=...)`."""
        parameters = sum(p.numel() for p in trainer.network.parameters())
        self.facts = f"{trainer.device}, {parameters:,} parameters, {trainer.num_envs} envs x {trainer.steps} steps"
        if self.live:
            self._stop()
            self._panel = Live(self, console=self.console, refresh_per_second=4, vertical_overflow="crop")
            self._panel.start()
        else:
            config = self.config
            self.say(f"{config.env}, {config.agent} with {config.network.memory}, preset {config.preset}: {self.facts}")

    def say(self, text: str) -> None:
        """Print a line, above the panel if there is one; for `train(notify=...)`."""
        try:
            if self._panel is not None:
                self.console.print(Text(text))
            else:
                print(text, file=self.stream, flush=True)
        except OSError:
            self._go_silent()

    def stopping(self) -> None:
        """The run will end after this iteration; for `train(stopping=...)`."""
        self.stops = True
        if not self.live:
            os.write(2, f"{STOPPING}\n".encode())      # os.write: a signal may arrive while Python's streams are in use

    def __enter__(self) -> Progress:
        if self.live:
            self._panel = Live(Spinner("dots", "building the run"), console=self.console, refresh_per_second=8, transient=True)
            self._panel.start()
        return self

    def __call__(self, row: dict[str, Any]) -> None:
        with self._lock:
            self.tally.add(row)
        now = time.perf_counter()
        if not self.live and now - self._last_line >= self.every:
            self._last_line = now
            self._print_line()

    def __exit__(self, *error: object) -> None:
        self.stops = False
        self._stop()
        if not self.live and self.tally.row and self._printed < self.tally.row["steps"]:
            self._print_line()

    def _stop(self) -> None:
        if self._panel is not None:
            panel, self._panel = self._panel, None
            try:
                panel.stop()
            except OSError:
                self._go_silent()

    def _go_silent(self) -> None:
        """stdout is gone (`| head`, a closed terminal): keep training."""
        self.live, self._panel = False, None
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with contextlib.suppress(OSError):                # a stream without a file descriptor
            os.dup2(nowhere, self.stream.fileno())
        os.close(nowhere)

    # --- lines -----------------------------------------------------------------------------------------------------

    def line(self) -> str:
        """Progress in one line."""
        tally, row = self.tally, self.tally.row
        parts = [f"step {row['steps']:,} ({self._percent()})", f"return {number(tally.mean('return'))}"]
        if tally.mean("success") is not None:
            parts.append(f"success {percent(tally.mean('success'))}")
        parts += [f"{label} {number(row.get(name))}" for name, label in self.shown.items()]
        if tally.skipped:
            parts.append(f"{tally.skipped:.0f} updates skipped")
        parts += [f"{tally.rate or 0:,.0f} steps/s", f"{clock(tally.left(self.config.total_steps))} left"]
        return ", ".join(parts)

    def _print_line(self) -> None:
        self._printed = self.tally.row["steps"]
        self.say(self.line())

    def _percent(self) -> str:
        return percent(min(1.0, self.tally.row.get("steps", 0) / self.config.total_steps))

    # --- the panel -------------------------------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:                     # Rich draws the panel in a thread
            drawn = self._draw(options)
        yield drawn

    def _draw(self, options: ConsoleOptions) -> Panel:
        config, tally = self.config, self.tally
        width = min(options.max_width - 2, WIDEST)       # room for what a terminal echoes (^C)
        inside = width - 4
        bars = PLAIN_BARS if options.ascii_only else BARS
        body = Table.grid(padding=0)
        body.add_column(width=inside)
        body.add_row(self._bar(inside))
        body.add_row("")
        body.add_row(self._figures(inside, bars))
        if self.stops:
            body.add_row(Text(STOPPING, style="yellow", overflow="ellipsis", no_wrap=True))
        if tally.skipped:
            body.add_row(Text(f"{tally.skipped:.0f} updates were not finite and were skipped", style="yellow"))
        title = Text.assemble((config.env, "bold"), ", ", f"{config.agent} with ", (config.network.memory, "bold"), f", {config.preset}")
        subtitle = Text(self.place, style="dim")
        for text in (title, subtitle):
            text.truncate(inside - 2, overflow="ellipsis")      # a panel grows with its title
        return Panel(body, title=title, title_align="left", subtitle=subtitle or None, subtitle_align="left", width=width,
                     border_style="cyan")

    def _bar(self, width: int) -> Table:
        steps, total = self.tally.row.get("steps", 0), self.config.total_steps
        bar = Table.grid(padding=0)
        words, longest = f"{steps:,} / {total:,} steps", f"{total:,} / {total:,} steps"
        if width < len(longest) + 24:
            words, longest = f"{short(steps)} / {short(total)}", f"888.8k / {short(total)}"
        words = f"{self._percent()}  {words}"
        room = max(4, width - len(f"  100 %  {longest}"))      # the bar keeps its length while the numbers grow
        bar.add_column(width=room)
        bar.add_column(width=width - room, justify="right", no_wrap=True)
        bar.add_row(ProgressBar(total=total, completed=min(steps, total)), words)
        return bar

    def _figures(self, width: int, bars: str) -> Table:
        tally, row = self.tally, self.tally.row
        columns = 2 if width >= TWO_COLUMNS else 1
        room = width // columns - 12                     # for a value
        spark = self.tally.sparkline(min(24, room - 9), bars)
        value = Text.assemble((f"{number(tally.mean('return')):<8}", "bold"), " ", (spark, "green"))
        cells: list[tuple[str, str | Text]] = [("return", value)]
        if tally.mean("success") is not None:
            cells.append(("success", Text(percent(tally.mean("success")), style="bold")))
        else:
            length = tally.mean("length")
            cells.append(("length", "-" if length is None else f"{length:.4g} steps"))
        cells += [(label, number(row.get(name))) for name, label in self.shown.items()]
        cells += [
            ("speed", "-" if tally.rate is None else f"{tally.rate:,.0f} steps/s"),
            ("rollout", percent(tally.share("rollout")) + " of the time"), ("update", percent(tally.share("update")) + " of the time"),
            ("running", clock(tally.clock() - tally.start)), ("left", clock(tally.left(self.config.total_steps) if row else None)),
        ]
        table = Table.grid(padding=(0, 1, 0, 0))
        for _ in range(columns):
            table.add_column(width=10, style="dim")
            table.add_column(width=room, no_wrap=True)
        half = -(-len(cells) // columns)
        for i in range(half):
            table.add_row(*(part for cell in cells[i::half] for part in cell))
        if self.facts:
            outer = Table.grid(padding=0)
            outer.add_row(table)
            outer.add_row("")
            outer.add_row(Text(self.facts, style="dim", overflow="ellipsis", no_wrap=True))
            return outer
        return table


def number(x: float | None) -> str:
    """Three digits, or a dash."""
    if x is None:
        return "-"
    return f"{x:.3f}" if 0.0995 <= abs(x) < 100 or x == 0 else f"{x:.3g}"


def percent(x: float | None) -> str:
    return "-" if x is None else f"{100 * x:.0f} %"


def clock(seconds: float | None) -> str:
    """1:02 or 1:02:03."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
