"""Signals while training: the first Ctrl-C, SIGTERM or closed terminal asks a run to stop, the second stops it at once."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

HANGUP = getattr(signal, "SIGHUP", None)      # the terminal was closed; does not exist on Windows
STOP_WITHIN = 30.0                            # seconds that an env may keep a run waiting once a signal has asked it to stop
CHECK_EVERY = 0.2                             # seconds between looks at the envs


class Stopped(KeyboardInterrupt):
    """A second signal, or an env that hangs, stopped a run in the middle of an iteration. number: the signal that came first."""

    def __init__(self, number: int):
        super().__init__("stopped in the middle of an iteration")
        self.number = number

    @property
    def exit_code(self) -> int:
        return exit_code(self.number)


def exit_code(number: int | None) -> int:
    """What a process that a signal ended returns to its shell; None: as after Ctrl-C."""
    return 128 + (number or signal.SIGINT)


def error_of(number: int, text: str) -> BaseException:
    """What ends a Python program after a signal: KeyboardInterrupt after Ctrl-C, SystemExit with 143 after SIGTERM."""
    return KeyboardInterrupt(text) if number == signal.SIGINT else SystemExit(exit_code(number))


class Waiting:
    """What a run waits for while it steps envs: those of the trainer, or of its evaluations."""

    def __init__(self, trainer: Any, evaluator: Any = None):
        self.trainer = trainer
        self.envs = [trainer.env.unwrapped, *([] if evaluator is None else [evaluator.env.unwrapped])]

    def since(self) -> float | None:
        """When the envs were asked for what they have not answered yet (`time.monotonic`); None: nothing is waited for."""
        for env in self.envs:
            if getattr(env, "waiting_since", None) is not None:
                return env.waiting_since
        return self.trainer.collector.waiting_since      # of a batched env

    def whom(self) -> str:
        """The envs that have not answered."""
        for env in self.envs:
            if getattr(env, "waiting_since", None) is not None:
                return env.backend.waiting_for()
        return str(self.trainer.config.env)


class Signals:
    """Inside this context the first Ctrl-C, SIGTERM or SIGHUP only sets `number`; the next raises Stopped, a KeyboardInterrupt.

    Once a signal has come, a call of an env that takes longer than STOP_WITHIN seconds raises Stopped as well, and `hung` says which env.
    That reaches Python code and workers; an env that hangs in C code of this process stays until that code returns.

    In threads other than the main one, which get no signals, it does nothing.

    stopping: called at the first signal; None: Ctrl-C prints a line. saves: whether that line may promise a checkpoint.
    """

    def __init__(self, stopping: Callable[[], None] | None = None, waiting: Waiting | None = None, saves: bool = True) -> None:
        self.number: int | None = None            # the first signal
        self.hung = ""                            # which envs did not answer; "": they all did
        self.stopping, self.waiting, self.saves = stopping, waiting, saves
        self._came = 0.0                          # when the first signal came
        self._alarm = False                       # the next signal is from `_watch`
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.number is not None

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, HANGUP):
                if number is not None and (number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN):      # ignored: nohup
                    self._before[number] = signal.signal(number, self._handle)
            # The thread runs from the start, since a signal handler must not take locks, as starting one would.
            self._thread = threading.Thread(target=self._watch, daemon=True, name="hadamem-signals")
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        try:
            if self._thread is not None:      # no signal of it may come later
                self._thread.join()
        finally:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._alarm:
            self._alarm = False
            if self._overdue() and self.waiting is not None and self.number is not None:      # it may have answered since
                self.hung = f"{self.waiting.whom()} did not answer for {STOP_WITHIN:g} s after the signal"
                self.waiting = None      # only once
                raise Stopped(self.number)
            return
        if self.number is not None and number == HANGUP:      # a closed terminal may send it twice
            return
        if self.number is not None:
            raise Stopped(self.number)
        self._came, self.number = time.monotonic(), number
        if self.stopping is not None:
            with contextlib.suppress(OSError):      # it may print where nobody reads any more
                self.stopping()
        elif number == signal.SIGINT:          # os.write: Python's streams may be in use
            with contextlib.suppress(OSError):
                how = b", with a checkpoint" if self.saves else b"; nothing is saved, as the run has no folder"
                os.write(2, b"\nstopping after this iteration" + how + b"; press Ctrl-C again to stop at once\n")

    def _overdue(self) -> bool:
        """Whether an env keeps the run waiting for too long after a signal."""
        if self.number is None or self.waiting is None:
            return False
        since = self.waiting.since()
        return since is not None and time.monotonic() - max(since, self._came) > STOP_WITHIN

    def _watch(self) -> None:
        """Thread: interrupt the main one when an env is overdue, in system calls too, such as waiting for a worker."""
        main = threading.main_thread().ident
        while not self._over.wait(CHECK_EVERY):
            if self._overdue() and not self._alarm:
                self._alarm = True
                if hasattr(signal, "pthread_kill") and main is not None:
                    signal.pthread_kill(main, signal.SIGINT)
                else:
                    _thread.interrupt_main()
