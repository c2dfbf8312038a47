"""Memories with random names, sizes, options, inputs and states; whole sequences and single steps must agree."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

import hadamem as hm
from hadamem.memory import resolve_options

from . import values
from .judge import Failure
from .ops import compare


def case(rng: Random) -> tuple[str, Callable[[], None]]:
    """A memory and a call of it: in words, and as a function."""
    name: Any = rng.choice(hm.list_memories()) if rng.random() < 0.95 else values.thing(rng)
    sizes: dict[str, Any] = {"input_size": values.size(rng), "output_size": rng.choice([None, values.size(rng)])}
    options: dict[str, Any] = {"memory_size": values.size(rng)} if rng.random() < 0.8 else {}
    sound = True
    if rng.random() < 0.4:
        known = list(_options(name)) or ["clip"]
        option = rng.choice([*known, *known, "nonsense", "backend"])
        options[option] = values.thing(rng) if rng.random() < 0.7 else rng.choice(list(_options(name).values()) or [None])
        sound = False
    if rng.random() < 0.1:
        key = rng.choice(list(sizes))
        sizes[key], sound = values.thing(rng), False
    text = f"make_memory({values.brief(name)}, {', '.join(f'{k}={values.brief(x)}' for k, x in {**sizes, **options}.items())})"
    seed, how = rng.getrandbits(32), rng.choice(["forward", "step"])
    inner = Random(rng.getrandbits(64))

    def call() -> None:
        torch.manual_seed(seed)
        memory = hm.make_memory(name, sizes["input_size"], sizes["output_size"], **options)
        with torch.no_grad() if inner.random() < 0.7 else torch.enable_grad():
            use(inner, memory.eval(), how, sound)

    return f"{text}.{how}", call


def _options(name: Any) -> dict[str, Any]:
    return resolve_options(name) if isinstance(name, str) and name in hm.list_memories() else {}


def use(rng: Random, memory: hm.Memory, how: str, sound: bool) -> None:
    """Call the memory with inputs that fit or not; compare a sequence with its steps where they do."""
    B, T = values.size(rng, 4), rng.choice([1, 2, rng.randint(1, 12)])
    x = values.noise(rng, (B, T, memory.input_size))
    state = memory.initial_state(B) if rng.random() < 0.5 else None
    reset = values.flags(rng, (B, T)) if rng.random() < 0.5 else None
    given: dict[str, Any] = {"x": x, "state": state, "reset": reset}
    spoilt = False
    if rng.random() < 0.2:
        given["x"] = values.restride(rng, x)[1]
    if rng.random() < 0.15:
        odd, given["x"] = values.special(rng, x, rows=False)
        spoilt = bool(odd)
    if rng.random() < 0.4:
        name = rng.choice(list(given))
        given[name] = _spoil_state(rng, memory, state, B) if name == "state" else values.spoil(rng, given[name])[1]
        spoilt = True
    if how == "step":
        x_0 = given["x"][:, 0] if isinstance(given["x"], Tensor) and given["x"].ndim == 3 and given["x"].layout == torch.strided \
            and given["x"].shape[1] else given["x"]
        first = given["reset"]
        first = first[:, 0] if isinstance(first, Tensor) and first.ndim == 2 and first.layout == torch.strided and first.shape[1] else first
        y, _ = memory.step(x_0, memory.initial_state(B) if given["state"] is None else given["state"], first)
    else:
        y, _ = memory(given["x"], given["state"], given["reset"])
    if spoilt:
        return
    if not sound and not bool(torch.isfinite(y).all()):
        return      # an option may be senseless, such as a rate of 1e38
    if not bool(torch.isfinite(y).all()):
        raise Failure("the output is not finite")
    if how == "forward" and state is not None:      # without one, each call starts from rows of its own
        start, steps = state, []
        for t in range(T):
            y_t, start = memory.step(given["x"][:, t], start, None if reset is None else reset[:, t])
            steps.append(y_t)
        compare("the sequence beside its steps", torch.stack(steps, 1).detach(), y.detach())


def _spoil_state(rng: Random, memory: hm.Memory, state: Any, B: int) -> Any:
    """A state that may not fit: of another batch, another memory, or with one tensor changed."""
    kind = rng.randrange(4)
    if kind == 0:
        return values.thing(rng)
    if kind == 1:
        return memory.initial_state(B + rng.choice([1, 3]))
    if kind == 2:
        return hm.make_memory(rng.choice(hm.list_memories()), memory.input_size, memory_size=3).initial_state(B)
    parts = list(memory.initial_state(B) if state is None else state)
    if not parts:
        return None
    n = rng.randrange(len(parts))
    if isinstance(parts[n], Tensor):
        parts[n] = values.spoil(rng, parts[n])[1]
    made = memory.initial_state(B)
    return type(made)(*parts)
