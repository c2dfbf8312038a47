"""The progress of a run: a live panel on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ..devices import size_text
from ..runs.config import TrainConfig
from .curves import short

BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#"
WINDOW = 15.0         # seconds over which the speed is measured
EPISODES = 100        # the return shown is the mean over about the last 100 episodes
STOPPING = "stopping after this iteration; press Ctrl-C again to stop now"
POINTS = 256          # of the curve; when it is full, neighbouring points are merged
MAX_WIDTH, TWO_COLUMNS = 92, 60      # largest width of the panel, and smallest for two columns, in characters


class Summary:
    """A summary of the metrics so far, in constant memory."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self.clock, self.start = clock, clock()
        self.row: dict[str, Any] = {}
        self.skipped = self.restarted = 0.0
        self.evaluation: dict[str, Any] | None = None                # the last row with an evaluation
        self.seconds = {"rollout": 0.0, "update": 0.0, "eval": 0.0}
        self.times: deque[tuple[float, float]] = deque()             # (time, steps) of the last rows
        self.recent: deque[dict[str, Any]] = deque()                 # the last rows with finished episodes
        self.curve: list[tuple[float, int]] = []                     # (mean return, number of rows)
        self._pending: list[float] = []                              # returns of the next point of the curve
        self._rows_per_point = 1

    def add(self, row: dict[str, Any]) -> None:
        now = self.clock()
        if not self.times:
            batch = row["steps"] / max(1, row.get("iteration", 1))
            self.times.append((now - row.get("seconds", 0.0), row["steps"] - batch))
        self.times.append((now, row["steps"]))
        while len(self.times) > 2 and self.times[1][0] < now - WINDOW:
            self.times.popleft()
        self.row = row
        if "eval_return" in row:
            self.evaluation = row
        self.skipped += row.get("skipped", 0.0)
        self.restarted += row.get("env_restarts", 0.0)
        for name in self.seconds:
            self.seconds[name] += row.get(f"{name}_seconds", 0.0)
        if row.get("episodes") and "return" in row:
            self.recent.append(row)
            while sum(r["episodes"] for r in self.recent) - self.recent[0]["episodes"] >= EPISODES:
                self.recent.popleft()
            self._extend(row["return"])

    def _extend(self, value: float) -> None:
        self._pending.append(value)
        if len(self._pending) == self._rows_per_point:
            self.curve.append((sum(self._pending) / self._rows_per_point, self._rows_per_point))
            self._pending.clear()
        if len(self.curve) == POINTS:
            self.curve = [((a + b) / 2, n + m) for (a, n), (b, m) in zip(self.curve[::2], self.curve[1::2], strict=True)]
            self._rows_per_point *= 2

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

    def time_share(self, name: str) -> float:
        """Share of the time spent in "rollout", "update" or "eval"."""
        return self.seconds[name] / max(sum(self.seconds.values()), 1e-9)

    def seconds_left(self, steps: int) -> float | None:
        """Seconds until `steps` are done."""
        rate = self.rate
        return max(0.0, steps - self.row["steps"]) / rate if rate else None

    def sparkline(self, width: int, bars: str = BARS) -> str:
        """The curve of returns as at most `width` characters."""
        values = [value for value, _ in self.curve]
        k = min(width, len(values))
        if k < 2:
            return ""
        edges = [i * len(values) // k for i in range(k + 1)]
        means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
        low, high = min(means), max(means)
        span = max(high - low, 1e-3 * max(abs(low), abs(high)), 1e-9)
        return "".join(bars[min(len(bars) - 1, int((mean - low) / span * len(bars)))] for mean in means)


class _Screen(Console):
    """A console that survives a broken pipe, on which Rich would exit."""

    on_lost: Callable[[], None]

    def on_broken_pipe(self) -> None:
        self.quiet = True
        self.on_lost()


class Progress:
    """Use as a context manager, and call it with every row of metrics.

    folder: shown below the panel. live: draw a panel; None: if the stream is a terminal. every: seconds between lines otherwise.
    """

    def __init__(self, config: TrainConfig, folder: str = "", stream: TextIO | None = None, live: bool | None = None, every: float = 5.0):
        self.config, self.folder, self.every = config, folder, every
        self.stream = stream or sys.stdout
        self.console = _Screen(file=self.stream, highlight=False)
        self.console.on_lost = self._stop_printing
        self.live = self.console.is_terminal and not self.console.is_dumb_terminal if live is None else live
        self.shown = config.agent_class.shown
        self.tally = Summary()
        self.facts = ""
        self.was_built = False               # the run exists, and its first iteration may begin
        self.stop_requested = False          # Ctrl-C was pressed
        self._panel: Live | None = None
        self._lock = threading.Lock()
        self._printed, self._last_line = -1.0, float("-inf")

    @property
    def hooks(self) -> dict[str, Any]:
        """Arguments for `train`."""
        return {"report": self, "built": self.built, "notify": self.say, "stopping": self.stopping}

    def built(self, trainer: Any) -> None:
        """Show device, parameters and envs of the run; for `train(built=...)`."""
        self.was_built = True
        parameters = sum(p.numel() for p in trainer.network.parameters())
        self.facts = f"{trainer.device}, {parameters:,} parameters, {trainer.num_envs} envs x {trainer.steps} steps"
        if trainer.replay is not None:
            self.facts += f", replay of {trainer.replay.capacity * trainer.num_envs:,} steps ({size_text(trainer.replay.nbytes)})"
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
            self._stop_printing()

    def stopping(self) -> None:
        """Show that the run will stop after this iteration; for `train(stopping=...)`."""
        self.stop_requested = True
        if not self.live:
            with contextlib.suppress(OSError):              # of a pipe or terminal that is gone
                os.write(2, f"{STOPPING}\n".encode())      # os.write: in a signal handler, Python's streams may be in use

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
        self.stop_requested = False
        self._stop()
        if not self.live and self.tally.row and self._printed < self.tally.row["steps"]:
            self._print_line()

    def _stop(self) -> None:
        if self._panel is not None:
            panel, self._panel = self._panel, None
            try:
                panel.stop()
            except OSError:
                self._stop_printing()

    def _stop_printing(self) -> None:
        """The output was closed (`| head`, a closed terminal): keep training without it."""
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
        if tally.evaluation is not None:
            parts.append(f"eval {evaluation_text(tally.evaluation)}")
        parts += [f"{label} {number(row.get(name))}" for name, label in self.shown.items()]
        if tally.skipped:
            parts.append(f"{tally.skipped:.0f} updates skipped")
        if tally.restarted:
            parts.append(f"{tally.restarted:.0f} env workers restarted")
        parts += [f"{tally.rate or 0:,.0f} steps/s", f"{clock(tally.seconds_left(self.config.total_steps))} left"]
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
        width = min(options.max_width - 2, MAX_WIDTH)       # leave room for an echoed ^C
        inside = width - 4
        bars = PLAIN_BARS if options.ascii_only else BARS
        body = Table.grid(padding=0)
        body.add_column(width=inside)
        body.add_row(self._bar(inside))
        body.add_row("")
        body.add_row(self._figures(inside, bars))
        if self.stop_requested:
            body.add_row(Text(STOPPING, style="yellow", overflow="ellipsis", no_wrap=True))
        if tally.skipped:
            body.add_row(Text(f"{tally.skipped:.0f} updates were not finite and were skipped", style="yellow"))
        if tally.restarted:
            body.add_row(Text(f"{tally.restarted:.0f} of {self.config.env_restarts} restarts of env workers used", style="yellow"))
        title = Text.assemble((config.env, "bold"), ", ", f"{config.agent} with ", (config.network.memory, "bold"), f", {config.preset}")
        subtitle = Text(self.folder, style="dim")
        for text in (title, subtitle):
            text.truncate(inside - 2, overflow="ellipsis")      # a long title would widen the panel
        return Panel(body, title=title, title_align="left", subtitle=subtitle or None, subtitle_align="left", width=width,
                     border_style="cyan")

    def _bar(self, width: int) -> Table:
        steps, total = self.tally.row.get("steps", 0), self.config.total_steps
        bar = Table.grid(padding=0)
        text, longest = f"{steps:,} / {total:,} steps", f"{total:,} / {total:,} steps"
        if width < len(longest) + 24:
            text, longest = f"{short(steps)} / {short(total)}", f"888.8k / {short(total)}"
        text = f"{self._percent()}  {text}"
        room = max(4, width - len(f"  100 %  {longest}"))      # the bar keeps its length as the numbers grow
        bar.add_column(width=room)
        bar.add_column(width=width - room, justify="right", no_wrap=True)
        bar.add_row(ProgressBar(total=total, completed=min(steps, total)), text)
        return bar

    def _figures(self, width: int, bars: str) -> Table:
        tally, row = self.tally, self.tally.row
        columns = 2 if width >= TWO_COLUMNS else 1
        room = width // columns - 12                     # width of a value
        spark = self.tally.sparkline(min(24, room - 9), bars)
        value = Text.assemble((f"{number(tally.mean('return')):<8}", "bold"), " ", (spark, "green"))
        cells: list[tuple[str, str | Text]] = [("return", value)]
        if tally.mean("success") is not None:
            cells.append(("success", Text(percent(tally.mean("success")), style="bold")))
        else:
            length = tally.mean("length")
            cells.append(("length", "-" if length is None else f"{length:.4g} steps"))
        if self.config.eval_every:
            cells.append(("eval", "-" if tally.evaluation is None else Text(evaluation_text(tally.evaluation, room), style="bold")))
        cells += [(label, number(row.get(name))) for name, label in self.shown.items()]
        parts = {"rollout": "rollout", "update": "update"} | ({"eval": "evaluation"} if self.config.eval_every else {})
        cells += [
            ("speed", "-" if tally.rate is None else f"{tally.rate:,.0f} steps/s"),
            *((label, percent(tally.time_share(name)) + " of the time") for name, label in parts.items()),
            ("elapsed", clock(tally.clock() - tally.start)), ("left", clock(tally.seconds_left(self.config.total_steps) if row else None)),
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


def evaluation_text(row: Mapping[str, Any], width: int | None = None) -> str:
    """"0.830 (success 91 %) at 40,000 steps" of a row with an evaluation, or as much of it as fits into `width` characters."""
    value, won, steps = number(row["eval_return"]), row.get("eval_success"), row["steps"]
    full, brief = (value, value) if won is None else (f"{value} (success {percent(won)})", f"{value} ({percent(won)})")
    texts = (f"{full} at {steps:,} steps", f"{full} at {short(steps)}", f"{brief} at {short(steps)}", brief)
    return next((text for text in texts if width is None or len(text) <= width), value)


def number(x: float | None) -> str:
    """Three digits; "-" for None."""
    if x is None:
        return "-"
    return f"{x:.3f}" if 0.0995 <= abs(x) < 100 or x == 0 else f"{x:.3g}"


def percent(x: float | None) -> str:
    """"25 %" for 0.25; "-" for None."""
    return "-" if x is None else f"{100 * x:.0f} %"


def clock(seconds: float | None) -> str:
    """Minutes and seconds, with hours if there are any: 1:02 or 1:02:03."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
