"""Play one episode and record what the agent's memory does, for `reports.inspect`."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ..agents.distributions import Categorical
from ..memory import Memory
from ..memory.inspection import Shown
from ..reports.inspect import EPSILONS, Curve, Recording, Trace
from ..training.evaluate import check_seed, reset_for_evaluation
from . import watch
from .reach import gradient_reach, num_probes, pool_columns, product_reach, spread

SIDE = 64                 # rows and columns of a matrix that are kept
UNITS = 128               # entries of a vector that are kept
MOST_ACTIONS = 64         # choices whose probabilities are shown
MOST_DIMENSIONS = 4       # of continuous actions
WIDEST = 480              # pixels of a frame


def record(policy: Any, env: str | Callable[..., Any], *, seed: int = 0, deterministic: bool = False, max_steps: int = 1000,
           env_options: Mapping[str, Any] | None = None, facts: list[tuple[str, str]] | None = None, title: str = "",
           report: Callable[[str], None] | None = None) -> Recording:
    """Play an episode of a policy and record its memory. env, seed, deterministic, max_steps: as in `watch.play_frames`.

    The memory shown is the first in the agent's network that acting steps. facts, title: for the top of the page.
    report: called with what is being done.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    check_seed(seed)
    say = report or (lambda text: None)
    say("playing an episode")
    with watch.open_env(policy, env, env_options=env_options) as made, ExitStack() as taps:
        memories = [_MemoryTap(name, part) for name, part in policy.network.named_modules() if isinstance(part, Memory)]
        for tap in memories:
            taps.enter_context(tap.listening())
        actor = _ActorTap(policy.agent)
        taps.enter_context(actor.listening())
        generator = torch.Generator(policy.device).manual_seed(seed)
        start = reset_for_evaluation(made, policy, seed)
        frames = _Frames()
        captions, rewards, result = list[str](), list[float](), ""
        for frame in watch.play_episode(policy, made, start, deterministic, generator, max_steps, lambda: watch.draw_env(made)):
            if frame.last:
                result = frame.caption
                continue
            frames.add(frame.view)
            captions.append(frame.caption)
            rewards.append(frame.reward)
        names, space = made.action_names(), made.single_action_space
    used = next((tap for tap in memories if len(tap.inputs) == len(rewards)), None)
    others = [tap.name for tap in memories if tap is not used and tap.inputs]
    found = Recording(list(facts or []), title, frames.files, np.asarray(frames.order, dtype=np.int64), captions,
                      np.asarray(rewards), result, has_state=False, **actor.result(names, space))
    if used is None:
        return found
    say("measuring how far back the memory reaches")
    traces = used.traces()
    triangles = [gradient_reach(used.memory, torch.cat(used.inputs), used.start)] if used.memory.state_size else []
    triangles += [product_reach(trace) for trace in traces if trace.role == "factor" and trace.kind != "attention"]
    notes = [f"The network has {len(others) + 1} memories; shown is {used.name}, not {', '.join(others)}."] if others else []
    has_state = used.memory.state_size > 0
    if has_state:
        count = num_probes(found.steps)
        notes.append(f"Gradient reach is estimated from {count} random projection{'s' * (count > 1)} of the output at each step t.")
    return Recording(**{**vars(found), "traces": traces, "triangles": triangles, "has_state": has_state, "notes": notes})


class _MemoryTap:
    """Listens to a memory while the agent acts, and asks it to show each step."""

    def __init__(self, name: str, memory: Memory):
        self.name, self.memory = name, memory
        self.inputs: list[torch.Tensor] = []                    # [1, input_size] of every step
        self.start: Any = None                                  # state before the first
        self.parts: dict[str, _Part] = {}
        self._busy = False                                      # the memory calls itself while it shows a step
        self._stepping = False                                  # or its forward within step()

    @contextmanager
    def listening(self) -> Iterator[None]:
        def forward(module: Any, args: Any, options: Any, output: Any) -> None:
            x, state, reset = (*args, *(options.get(name) for name in ("x", "state", "reset")[len(args):]))[:3]
            if x.ndim == 3 and x.shape[1] == 1 and not self._stepping:
                self._note(x[:, 0], state, None if reset is None else reset[:, 0], output[0][:, 0])

        hook = self.memory.register_forward_hook(forward, with_kwargs=True)       # of networks that act through forward()
        def step(result: Any, x: torch.Tensor, state: Any, reset: torch.Tensor | None = None) -> None:
            self._note(x, state, reset, result[0])

        with tapped(self.memory, "step", step, self._within_step):
            try:
                yield
            finally:
                hook.remove()

    @contextmanager
    def _within_step(self) -> Iterator[None]:
        before, self._stepping = self._stepping, True
        try:
            yield
        finally:
            self._stepping = before

    def _note(self, x: torch.Tensor, state: Any, reset: torch.Tensor | None, y: torch.Tensor) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            if state is None:
                state = self.memory.initial_state(x.shape[0])
            if not self.inputs:
                self.start = state
            self.inputs.append(x.detach())
            shown = {**self.memory.inspect(x, state, reset), "y": Shown(y.detach(), "read", "the memory's output")}
            for name, part in shown.items():
                self.parts.setdefault(name, _Part(name, part)).add(part)
        finally:
            self._busy = False

    def traces(self) -> list[Trace]:
        return [part.trace() for part in self.parts.values()]


class _Part:
    """One tensor that a memory shows, over the steps so far: the cells that are kept, and shares over all cells."""

    def __init__(self, name: str, first: Shown):
        self.name, self.kind, self.role, self.help = name, first.kind, first.role, first.help
        self.shape = tuple(first.values.shape[1:])
        most = SIDE if self.kind == "matrix" else UNITS
        self.columns = spread(self.shape[-1], most) if self.shape else np.zeros(0, dtype=np.int64)
        self.rows = spread(self.shape[0], most) if self.kind == "matrix" else np.zeros(0, dtype=np.int64)
        self.values: list[np.ndarray] = []
        self.shares: list[list[tuple[float, float]]] = []

    def add(self, shown: Shown) -> None:
        x = shown.values[0].detach().float().cpu().numpy()
        if self.role == "factor":
            self.shares.append([(float((x < 1 - e).mean()), float((x > 1 + e).mean())) for e in EPSILONS])
        if self.kind == "matrix":
            x = x[np.ix_(self.rows, self.columns)]
        elif self.kind == "vector":
            x = x[self.columns]
        elif self.kind == "attention":
            x = x[:, -len(self.values) - 1:]                    # [heads, steps seen]: no others exist yet
        self.values.append(x)

    def trace(self) -> Trace:
        values = _attention_map(self.values) if self.kind == "attention" else np.stack(self.values)
        shares = np.asarray(self.shares).transpose(1, 0, 2) if self.shares else None      # [epsilons, T, 2]
        return Trace(self.name, self.kind, self.role, self.help, values, self.shape, self.rows, self.columns, shares)


def _attention_map(rows: list[np.ndarray]) -> np.ndarray:
    """rows[t] [heads, steps seen], the present last -> [heads, bins, bins]: the largest weight in each bin of steps."""
    T, heads = len(rows), rows[0].shape[0]
    starts, _ = pool_columns(np.zeros((1, T)))
    pooled = np.zeros((heads, len(starts), len(starts)), dtype=np.float32)
    for t, row in enumerate(rows):
        full = np.zeros((heads, T), dtype=np.float32)
        full[:, t + 1 - row.shape[1]:t + 1] = row
        k = int(np.searchsorted(starts, t, side="right")) - 1
        pooled[:, k] = np.maximum(pooled[:, k], np.maximum.reduceat(full, starts, axis=1))
    return pooled


class _ActorTap:
    """Listens to an agent: distributions of actions and estimated values."""

    def __init__(self, agent: Any):
        self.agent = agent
        self.latest: torch.Tensor | None = None
        self.dists: list[torch.Tensor] = []
        self.actions: list[torch.Tensor] = []
        self.values: list[float] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        with tapped(self.agent.actions, "parameters_of", self._distribution), tapped(self.agent, "act", self._acted):
            yield

    def _distribution(self, result: torch.Tensor, *args: Any, **options: Any) -> None:
        self.latest = result

    def _acted(self, result: Any, *args: Any, **options: Any) -> None:
        self.actions.append(result.action[0].detach().cpu())
        if self.latest is not None:
            self.dists.append(self.latest[0].detach().cpu())
        if "value" in result.extras:
            self.values.append(float(result.extras["value"][0]))

    def result(self, names: Mapping[int, str], space: Any) -> dict[str, Any]:
        """Fields of a `Recording`."""
        found: dict[str, Any] = {"curves": [Curve("value", np.asarray(self.values))] if self.values else []}
        actions = torch.stack(self.actions)                                          # [T, K]
        if len(self.dists) != len(actions):
            return found
        dist, kind = torch.stack(self.dists), self.agent.actions
        if isinstance(kind, Categorical) and kind.width <= MOST_ACTIONS:
            offset = torch.tensor([0, *kind.sizes[:-1]]).cumsum(0)
            labels = [f"{f'part {i + 1}: ' if len(kind.sizes) > 1 else ''}{n}" for i, size in enumerate(kind.sizes) for n in range(size)]
            if isinstance(space, spaces.Discrete):
                labels = [names.get(n, f"action {n}") for n in range(int(space.n))]
            found |= {"probabilities": dist.exp().numpy(), "action_names": labels, "taken": (actions + offset).numpy()}
        elif not isinstance(kind, Categorical):
            device = next(kind.buffers()).device
            means, taken = (kind.to_env(x.to(device)).cpu().numpy() for x in (kind.mode(dist.to(device)), actions))
            for n in range(min(means.shape[1], MOST_DIMENSIONS)):
                found["curves"] += [Curve(f"action {n}: most likely", means[:, n]), Curve(f"action {n}: taken", taken[:, n])]
        return found


class _Frames:
    """Pictures as PNG files, each different one once."""

    def __init__(self) -> None:
        self.files: list[bytes] = []
        self.order: list[int] = []
        self._known: dict[bytes, int] = {}

    def add(self, view: np.ndarray) -> None:
        key = hashlib.sha1(view.tobytes(), usedforsecurity=False).digest()
        if key not in self._known:
            self._known[key] = len(self.files)
            self.files.append(_png(view))
        self.order.append(self._known[key])


def _png(view: np.ndarray) -> bytes:
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(view))
    if image.width > WIDEST:
        image = image.resize((WIDEST, max(1, round(image.height * WIDEST / image.width))))
    out = io.BytesIO()
    image.quantize(64, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(out, format="PNG")
    return out.getvalue()


@contextmanager
def tapped(owner: Any, name: str, note: Callable[..., None], during: Callable[[], Any] = nullcontext) -> Iterator[None]:
    """Within a `with` block, every call owner.name(*args) also calls note(result, *args); `during` is entered around the call."""
    method = getattr(owner, name)
    own = name in vars(owner)

    def listen(*args: Any, **options: Any) -> Any:
        with during():
            result = method(*args, **options)
        note(result, *args, **options)
        return result

    setattr(owner, name, listen)
    try:
        yield
    finally:
        setattr(owner, name, method) if own else delattr(owner, name)
