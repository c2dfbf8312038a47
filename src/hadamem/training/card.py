"""The card of a saved policy: what is known of its training, as plain values, and as a README in plain English.

Nothing reads the README again: a policy loads without it, and whatever it says.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._version import __version__
from ..envs.foreign.spaces import choices
from ..envs.spaces import describe
from ..runs.folder import read_info
from .run import LAST, Run, open_run

if TYPE_CHECKING:
    from .policy import Policy

NUMBER = (int, float)
CARD = {"env": str, "env_options": dict, "preset": str, "steps": int, "scores": dict, "evaluation": dict, "versions": dict}
SCORES = {"steps": int, "return": NUMBER, "success": NUMBER, "best_return": NUMBER,      # of `Run.summary`
          "eval_return": NUMBER, "eval_success": NUMBER, "eval_steps": int}
EVALUATION = {"date": str, "env": str, "env_options": dict, "deterministic": bool, "seed": int, "steps": int, "episodes": int,
              "mean": NUMBER, "low": NUMBER, "high": NUMBER, "success": NUMBER}
VERSIONS = {"hadamem": str, "git": str, "python": str, "torch": str}


def make_card(policy: Policy) -> dict[str, Any]:
    """Facts of the run that a policy comes from; what was saved with it, if the run is not there."""
    card = known(policy.card, CARD)
    for name, kinds in (("scores", SCORES), ("evaluation", EVALUATION), ("versions", VERSIONS)):
        if name in card:
            card[name] = known(card[name], kinds)
    card |= {"agent": policy.name, "memory": policy.spec.network.memory, "seed": policy.seed,
             "parameters": sum(p.numel() for p in policy.network.parameters())}
    if policy.steps is not None:
        card["steps"] = policy.steps
    run = _find_run(policy.source)
    if run is None:
        card.setdefault("versions", {"hadamem": __version__, "python": platform.python_version(), "torch": torch.__version__})
        return card
    summary = run.summary()
    card |= {"env": run.config.env, "env_options": run.config.env_options, "preset": run.config.preset}
    card.setdefault("steps", summary["steps"])
    card["scores"] = known(summary, SCORES) if card["steps"] == summary["steps"] else {}      # else an earlier checkpoint, as `best/` is
    latest = [row for row in run.evaluations if row.get("steps") == card["steps"]][-1:]
    card.pop("evaluation", None)
    if latest:
        low, high = latest[0].get("ci") or (None, None)
        card["evaluation"] = known({**latest[0], "low": low, "high": high}, EVALUATION)
    card["versions"] = known({} if run.folder is None else read_info(run.folder).get("versions"), VERSIONS)
    return card


def known(values: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The entries with these names and types: a file of unknown origin may hold anything."""
    return {name: values[name] for name, kind in kinds.items() if isinstance(values.get(name), kind)} if isinstance(values, dict) else {}


def write_readme(policy: Policy, card: dict[str, Any], name: str) -> str:
    """The text of README.md, in a folder called `name`."""
    env = card.get("env")
    options = _plain(", ".join(f"{key}={value}" for key, value in card.get("env_options", {}).items()))
    size = policy.spec.network.memory_size
    facts = [
        ("environment", "unknown" if env is None else f"{_code(env)}{f' with {options}' if options else ''}"),
        ("agent", _code(card["agent"])), ("memory", _code(card["memory"]) + ("" if size is None else f", memory_size {size}")),
        ("trained for", "unknown" if card.get("steps") is None else f"{card['steps']:,} env steps, seed {card['seed']}"),
        ("parameters", f"{card['parameters']:,}"),
        ("made with", ", ".join(f"{key} {_plain(value)}" for key, value in card.get("versions", {}).items()) or "unknown"),
    ]
    parts = [
        f"# A policy for {_plain(env)}" if env else "# A policy with memory",
        "It chooses actions from observations and from what it remembers of the episode. `tensors.safetensors` has its weights, "
        "`about.json` the rest; this page is for people, and loading does not read it.",
        "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in facts)]),
        "## Scores", _scores(card), "## Use", _usage(policy, name), "## Inputs and outputs", _ports(policy),
    ]
    return "\n\n".join(parts) + "\n"


def _scores(card: dict[str, Any]) -> str:
    lines = []
    scores, found = card.get("scores", {}), card.get("evaluation")
    if {"return", "steps"} <= set(scores):
        rate = f", success {100 * scores['success']:.1f} %" if "success" in scores else ""
        lines.append(f"- While training: mean return {scores['return']:.4g}{rate}, over the last {LAST} iterations of its run "
                     f"({scores['steps']:,} steps), with drawn actions.")
    if {"eval_return", "eval_steps"} <= set(scores):
        rate = f", success {100 * scores['eval_success']:.1f} %" if "eval_success" in scores else ""
        lines.append(f"- Evaluated while training, after {scores['eval_steps']:,} steps: mean return {scores['eval_return']:.4g}{rate}.")
    if found and "mean" in found:
        interval = f" (95 % interval {found['low']:.4g} to {found['high']:.4g})" if {"low", "high"} <= set(found) else ""
        rate = f", success {100 * found['success']:.1f} %" if "success" in found else ""
        lines.append(f"- `hadamem eval` after {found.get('steps', 0):,} steps: mean return {found['mean']:.4g}{interval}{rate}, "
                     f"{found.get('episodes')} episodes on {_code(found.get('env'))}, "
                     f"{'most likely' if found.get('deterministic') else 'drawn'} actions.")
    return "\n".join(lines) or "None are known."


def _usage(policy: Policy, name: str) -> str:
    reward = ", reward=reward" if policy.sees_reward else ""
    named = any(":" in str(part) for part in (policy.name, policy.spec.network.memory, getattr(policy.spec.network, "actor_memory", "")))
    trust = ", trust=True" if named else ""      # it imports classes of the author
    return f"""```python
import hadamem as hm

policy = hm.load_policy({name!r}{trust})
state = None      # a new episode
action, state = policy.act(obs, state{reward})      # at every step; deterministic=True takes the most likely action
```

Without hadamem: `policy.export("policy.onnx")` writes a file for onnxruntime."""


def _ports(policy: Policy) -> str:
    lines = [f"- Observation: {_plain(describe(policy.observation_space))}. For N envs at once, with N as the first axis."]
    if policy.sees_reward:
        lines.append("- Reward of the previous step.")
    if choices(policy.action_space):
        lines.append("- A mask of allowed actions, if the env has one.")
    lines.append(f"- Action: {_plain(describe(policy.action_space))}.")
    lines.append("- State: what it remembers, to be passed on from step to step.")
    return "\n".join(lines)


def _find_run(source: Run | Path | None) -> Run | None:
    """The run that a policy comes from; None if there is none that can be read."""
    if not isinstance(source, Path):
        return source
    try:
        return open_run(source)
    except (ValueError, TypeError, ImportError, OSError):      # its settings are damaged, or name a class that is not here
        return None


def _plain(text: Any) -> str:
    """Text that neither ends a cell of a table nor starts markup."""
    return " ".join(str(text).replace("|", "/").replace("<", "(").replace(">", ")").replace("`", "'").split())


def _code(text: Any) -> str:
    return f"`{_plain(text)}`"
