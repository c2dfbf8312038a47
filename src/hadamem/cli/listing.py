"""`hadamem list`: memories, agents, envs, presets or kernel backends."""

from __future__ import annotations

import argparse

from .output import print_table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, metavar="|".join(KINDS), help="what to list")


def run(args: argparse.Namespace) -> int:
    print_table(KINDS[args.kind]())
    return 0


def _memories() -> list[tuple[str, ...]]:
    from ..memory import MEMORIES

    return [(name, (make.__doc__ or "").strip().partition("\n")[0]) for name, make in MEMORIES.items()]


def _backends() -> list[tuple[str, ...]]:
    from ..kernels import _backends

    return [(name, _backend_status(name)) for name in _backends.NAMES]


def _backend_status(name: str) -> str:
    import torch

    from ..kernels import _backends

    reason = _backends.missing(name)
    if reason is not None:
        return f"not usable here: {reason}"
    if name == "triton" and _backends.interpreting():
        return "usable in Triton's interpreter (TRITON_INTERPRET is set): for tests, very slow"
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    preferred = [f"chosen by auto on {device}" for device in devices if _backends.candidates("shm", device)[0] == name]
    return ", ".join(["usable", *preferred])


def _envs() -> list[tuple[str, ...]]:
    from ..envs import listing

    return [listing.HEAD, *listing.rows()]


def _agents() -> list[tuple[str, ...]]:
    from ..agents import AGENTS

    return [(name, (agent.__doc__ or "").strip().partition("\n")[0]) for name, agent in AGENTS.items()]


def _presets() -> list[tuple[str, ...]]:
    from ..runs.presets import PRESETS

    rows = [(name, preset.agent, preset.settings.get("env", "any env"), f"{preset.settings.get('total_steps', 1_000_000):,} steps")
            for name, preset in PRESETS.items()]
    return [("preset", "agent", "env", "length"), *rows]


KINDS = {"memories": _memories, "agents": _agents, "envs": _envs, "presets": _presets, "backends": _backends}
