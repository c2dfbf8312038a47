"""Products of C over the steps of episodes, for every way to calibrate: which vanish, which explode, untrained and trained."""

from __future__ import annotations

import math
from typing import Any

from ... import diagnostics, envs
from ...reports.content import Figure, Section, Series, Table
from ...runs.config import make_config
from ...training.evaluate import evaluate
from ..acting import record, trained_policy, untrained_policy
from ..measure import missing, present, sized
from ..study import MeasureTask, Study

ENV = "popgym/AutoencodeEasy"
DESIGNS: dict[str, dict[str, Any]] = {       # options of hm.SHM, beside Xavier theta and no read norm
    "fixed-C": {"calibration": "fixed", "clip": None},
    "random-C": {"calibration": "random", "clip": None},
    "fixed-theta": {"row_mode": "first"},
    "neural-theta": {"calibration": "neural_theta"},
    "random-theta": {"row_mode": "step"},
    "no-calibration": {"calibration": "none"},
    "zero-drift": {"calibration": "exp", "row_mode": "step"},
    "learned-drift": {"calibration": "drift", "row_mode": "step"},
    "shm": {"row_mode": "first", "theta_init": 0.0, "read_norm": True},
}
LABELS = {
    "fixed-C": "fixed C", "random-C": "random C", "fixed-theta": "fixed theta", "neural-theta": "neural theta",
    "random-theta": "random theta (the paper's SHM)", "no-calibration": "C = 1",
    "zero-drift": "exp, random theta (ours)", "learned-drift": "drift, random theta (ours)", "shm": "our SHM (starts at C = 1)",
}
STAGES = ("untrained", "trained")
SHOWN = (0.01, 3.0)      # range of the figure of medians


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seed: int = 0) -> Study:
    """protocol: fair agents see the previous action and a first-step flag, those of the release do not."""
    sizes = {"episodes": 20 if quick else 100, "memory_size": 8 if quick else 32, "protocol": protocol, "env": ENV, "seed": seed}
    steps = {"untrained": 0, "trained": sized(150_000, 2_000, quick, budget)}
    tasks = [MeasureTask(f"{design}-{stage}", "vanishing:products", {"options": options, "train_steps": steps[stage], **sizes})
             for stage in STAGES for design, options in DESIGNS.items()]
    about = ("What is left of a written value after t steps is the product of the calibrations since. The paper plots the mean of the "
             "products below 1 over the steps of 100 episodes for six designs of C. Here are the same curves, with the median and the mean "
             "logarithm beside them, for untrained agents and for agents trained briefly on Autoencode-Easy.")
    return Study("vanishing", "Vanishing and exploding products of C", tasks, about, sections=sections)


def products(options: dict[str, Any], train_steps: int, episodes: int, memory_size: int, protocol: str, env: str,
             seed: int = 0) -> dict[str, Any]:
    """Curves of the products over one episode of each of `episodes` envs, with what the agent's memory sees there."""
    defaults = {"theta_init": 1.0, "read_norm": False}
    more: dict[str, Any] = {} if protocol == "fair" else {"previous_action": False, "first_step": False}
    if train_steps < 10_000:
        more["steps_per_iteration"] = 1024
    config = make_config(env=env, memory="shm", memory_size=memory_size, memory_options={**defaults, **options}, seed=seed, device="cpu",
                         total_steps=max(train_steps, 1), **more)
    policy = trained_policy(config) if train_steps else untrained_policy(config)
    played = envs.make(env, num_envs=episodes)
    try:
        recording = record(policy, played, seed=seed)
    finally:
        played.close()
    curves = diagnostics.critical_gradients(recording.memory, recording.x, recording.state, recording.reset)
    returns = evaluate(policy, env, episodes, seed=seed + 1)
    names = ("mean", "median", "mean_log", "mean_log_C", "mean_below_one", "typical", "underflow", "overflow", "largest_state")
    return {"return": returns.mean, "steps": len(curves), "trained": train_steps,
            **{name: [_plain(x) for x in getattr(curves, name).tolist()] for name in names}}


def _plain(x: float) -> float | None:
    """JSON has no inf and nan; five digits are enough."""
    return float(f"{x:.5g}") if math.isfinite(x) else None


# --- what the report says


def sections(results: Any) -> list[Section]:
    return [_section(results, stage) for stage in STAGES]


def _section(results: Any, stage: str) -> Section:
    found = {LABELS[name.removesuffix(f"-{stage}")]: result
             for name, result in present(results, [f"{design}-{stage}" for design in DESIGNS]).items()}
    rows = []
    for label, result in found.items():
        last = result["steps"] - 1
        middle = min(9, last)
        rate = [x for x in result["mean_log_C"] if x is not None]
        rows.append([label, *(_show(result["mean_below_one"][t]) for t in (middle, last)),
                     *(_show(result["median"][t]) for t in (middle, last)), _show(result["mean"][last]),
                     f"{sum(rate) / len(rate):.4f}" if rate else "-", _show(result["largest_state"][last]), f"{result['return']:.2f}"])
    steps = max((result["steps"] for result in found.values()), default=0)
    table = Table(f"products-{stage}", f"Products of C after 10 and {steps} steps, {stage} agents",
                  ["calibration", "below 1, t = 10", f"t = {steps}", "median, t = 10", f"t = {steps}", f"mean, t = {steps}",
                   "mean log C", "largest entry of M", "return"], rows,
                  "Below 1: mean of the products below 1, as the paper plots it; - where there are none. Mean log C: for each step.")
    titles = {"mean_below_one": "Mean of the products below 1, as in the paper", "median": "Median of the products",
              "mean": "Mean of the products"}
    figures = [Figure(f"{name.replace('_', '-')}-{stage}", f"{title} ({stage})", "steps t", "product of C",
                      [_series(label, result, name) for label, result in found.items()], y_log=True, group=stage,
                      y_range=SHOWN if name == "median" else None, note=f"Below {SHOWN[0]:g}: see the table." if name == "median" else "")
               for name, title in titles.items()] if found else []
    text = {
        "untrained": "Agents with initial weights, Xavier theta where the paper has it.",
        "trained": "The same agents after a short training with PPO; the return says how much they learned.",
    }[stage]
    return Section(f"{stage[0].upper()}{stage[1:]} agents", f"{text} {missing(results, *(f'{d}-{stage}' for d in DESIGNS))}".strip(),
                   [table, *figures] if found else [])


def _series(label: str, result: dict[str, Any], name: str) -> Series:
    points = [(t + 1, x) for t, x in enumerate(result[name]) if x is not None]
    return Series(label, [t for t, _ in points], [x for _, x in points])


def _show(x: float | None) -> str:
    return "-" if x is None else f"{x:.2g}"
