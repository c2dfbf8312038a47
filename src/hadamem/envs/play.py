"""Play a task by hand in a terminal, seeing what the agent sees."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

import numpy as np
from gymnasium import Space, spaces

from . import render
from .foreign import AdaptedEnv
from .registry import TASKS, make

QUIT, HELP, RESTART = ("q", "quit"), ("?", "help"), ("r", "restart")


def play(name: str, *, seed: int | None = None, options: Mapping[str, Any] | None = None, hidden: bool = False,
         source: TextIO | None = None, out: TextIO | None = None) -> None:
    """Play episodes of a task until the player quits or the input ends.

    hidden: show the whole state, not only what the agent sees. source, out: files to use instead of the terminal.
    """
    source, out = source or sys.stdin, out or sys.stdout
    env = make(name, 1, autoreset_mode="disabled", seed=seed, validate=True, **(options or {}))
    try:
        _Game(env, hidden, source, out).run(f"{name}: {TASKS[name].text}" if name in TASKS else name)
    finally:
        env.close()


class _Game:
    def __init__(self, env: Any, hidden: bool, source: TextIO, out: TextIO):
        self.env, self.hidden, self.source, self.out = env, hidden, source, out
        self.keys = env.unwrapped.keys
        self.colour = out.isatty()

    def run(self, title: str) -> None:
        self.say(title)
        self.say(self.how())
        while self.episode():
            pass
        self.say("bye")

    def episode(self) -> bool:
        """Play one episode. Returns False if the player quits."""
        env = self.env
        obs, _ = env.reset()
        total = 0.0
        waiting: list[np.ndarray] = []
        self.show(obs)
        while True:
            while not waiting:
                line = self.ask("action> ")
                if line is None or line.lower() in QUIT:
                    return False
                if line.lower() in RESTART:
                    return True
                if line.lower() in HELP:
                    self.say(self.how())
                    continue
                try:
                    waiting = self.actions(line)
                except ValueError as error:
                    self.say(str(error))
            obs, reward, terminated, truncated, info = env.step(waiting.pop(0)[None])
            total += float(reward[0])
            over = bool(terminated[0]) or bool(truncated[0])
            if over or not waiting:
                self.show(obs)
            self.say(f"reward {float(reward[0]):+.4g}, so far {total:+.4g}")
            if over:
                break
        success = f", {'success' if bool(info['success'][0]) else 'no success'}" if "success" in info else ""
        how = "terminated" if bool(terminated[0]) else "truncated"
        self.say(f"episode {how} after {int(env.elapsed[0])} steps: return {total:+.4g}{success}")
        line = self.ask("Enter for another episode, q to quit> ")
        return line is not None and line.lower() not in QUIT

    def show(self, obs: Any) -> None:
        self.say("")
        if not isinstance(self.env, AdaptedEnv) or self.env.render_mode is None:
            self.say(render.text(self.env, hidden=self.hidden, colour=self.colour))
        else:
            shown = self.env.render()
            self.say(shown if isinstance(shown, str) else render.text(self.env))
        self.say(f"the agent sees: {render.format_value(render.row(obs, 0))}")

    def how(self) -> str:
        """The help line."""
        return f"actions: {_choices(self.env.single_action_space, self.keys)}; r restarts, ? shows this help, q quits"

    def actions(self, line: str) -> list[np.ndarray]:
        """The actions in a line. For Discrete actions a line may hold several keys or numbers, taken one after the other."""
        space, words = self.env.single_action_space, line.lower().replace(",", " ").split()
        if isinstance(space, spaces.Discrete):
            letters = [letter for word in words for letter in (word if not word.isdigit() else [word])]
            chosen = [np.array(self.keys[letter][0] if letter in self.keys else _whole(letter, line)) for letter in letters]
            if not chosen:
                raise ValueError(f"type an action: {_choices(space, self.keys)}")
        elif isinstance(space, spaces.Box):
            chosen = [_shaped(words, space, float)]
        else:
            chosen = [_shaped(words, space, int)]
        for action in chosen:
            if not isinstance(space, spaces.Box) and not space.contains(action.astype(space.dtype)):
                raise ValueError(f"{line!r} is not an action; type {_choices(space, self.keys)}")
        return chosen

    def ask(self, prompt: str) -> str | None:
        print(prompt, end="", file=self.out, flush=True)
        line = self.source.readline()
        if not self.source.isatty():
            print(line.rstrip("\n"), file=self.out)      # so that the output of a scripted game is complete
        return line.strip() if line else None

    def say(self, words: str) -> None:
        print(words, file=self.out)


def _choices(space: Space[Any], keys: Mapping[str, tuple[int, str]]) -> str:
    if keys:
        return ", ".join(f"{key} {word}" for key, (_, word) in keys.items()) + f" (or 0 to {len(keys) - 1})"
    if isinstance(space, spaces.Discrete):
        return f"a number from {int(space.start)} to {int(space.start + space.n) - 1}"
    if isinstance(space, spaces.MultiDiscrete):
        names = ("row", "column") if space.nvec.size == 2 else tuple(f"number {i}" for i in range(space.nvec.size))
        ranges = zip(names, space.start.reshape(-1), space.nvec.reshape(-1), strict=True)
        return " and ".join(f"{name} ({int(low)} to {int(low + n) - 1})" for name, low, n in ranges) + ", e.g. 1 2"
    size = int(np.prod(space.shape or ()))
    if isinstance(space, spaces.Box):
        low, high = float(space.low.min()), float(space.high.max())
        return f"{size} numbers from {low:g} to {high:g}" if size > 1 else f"a number from {low:g} to {high:g}"
    return f"{size} times 0 or 1"


def _whole(word: str, line: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"{line!r} is not an action; type ? for help") from None


def _shaped(words: list[str], space: Space[Any], kind: type) -> np.ndarray:
    size = int(np.prod(space.shape or ()))
    try:
        values = [kind(word) for word in words]
    except ValueError:
        raise ValueError(f"{' '.join(words)!r} is not an action; type {_choices(space, {})}") from None
    if len(values) != size or not np.isfinite(values).all():
        raise ValueError(f"{' '.join(words)!r} is not an action; type {_choices(space, {})}")
    return np.array(values, dtype=space.dtype).reshape(space.shape or ())
