"""What an agent's memory erases, keeps and strengthens in Visual Match: M and C over the phases of an episode."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import diagnostics, envs
from ...reports.content import Figure, HeatMap, Item, Section, Series, Table
from ...runs.config import make_config
from ...training.evaluate import evaluate
from ..acting import Recording, record, trained_policy
from ..measure import missing, present, sized
from ..study import MeasureTask, Study

MEMORIES = {"shm": "our SHM", "shm-paper": "the paper's SHM (random rows)"}
QUANTILES = (0.05, 0.5, 0.95)      # of the products of C
CHANGED = 0.1         # a factor below 1 - CHANGED erases, above 1 + CHANGED strengthens
SOLVED = 0.9          # success rate from which the report says that the task was solved


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seed: int = 0) -> Study:
    """protocol: fair agents see the previous action and a first-step flag, those of the release do not."""
    settings = {"explore": 15, "distractor": 20 if quick else 100, "reward": 10, "train_steps": sized(300_000, 720, quick, budget),
                "memory_size": 8 if quick else 32, "episodes": 4 if quick else 32, "eval_episodes": 20 if quick else 100,
                "protocol": protocol, "seed": seed}
    tasks = [MeasureTask(memory, "forgetting:phases", {"memory": memory, **settings}) for memory in MEMORIES]
    about = ("In Visual Match a colour is shown first (15 steps), then apples distract (100 steps), then the object of that colour has "
             "to be found (10 steps). What does the calibration C do to the memory M in each phase? The paper shows M and C of one "
             "agent, and says that it erases what is no longer needed and strengthens what is. Here an agent is trained with PPO, and what "
             "it does is measured over several episodes.")
    return Study("forgetting", "Erasing and strengthening over an episode", tasks, about, sections=sections)


# --- the measurement


def phases(memory: str, train_steps: int, explore: int, distractor: int, reward: int, memory_size: int, episodes: int,
           eval_episodes: int, protocol: str, seed: int = 0) -> dict[str, Any]:
    """Train an agent, then record C and M over episodes: curves over time, means by phase, and matrices of one episode at the borders."""
    options = {"preset": "release", "explore": explore, "distractor": distractor, "reward": reward}
    more: dict[str, Any] = {} if protocol == "fair" else {"previous_action": False, "first_step": False}
    if train_steps < 10_000:
        more["steps_per_iteration"] = 8 * (explore + distractor + reward)
    config = make_config(env="VisualMatch", env_options=options, memory=memory, memory_size=memory_size, total_steps=train_steps, seed=seed,
                         device="cpu", **more)
    policy = trained_policy(config)
    score = evaluate(policy, "VisualMatch", eval_episodes, seed=seed, env_options=options)
    env = envs.make("VisualMatch", num_envs=episodes, **options)
    try:
        recording = record(policy, env, seed=seed + 1)
    finally:
        env.close()
    borders = [explore, explore + distractor, explore + distractor + reward]
    won = recording.reward[:, borders[1]:].amax(1) > 1                  # an apple pays 1, the right object 10
    return {"memory": memory, "trained": train_steps, "success": score.success, "success_ci": score.success_ci, "return": score.mean,
            "eval_episodes": eval_episodes, "borders": borders, "episodes": episodes, "won": float(won.float().mean()),
            **_measure(recording, borders, int(won.int().argmax()))}


@torch.no_grad()
def _measure(recording: Recording, borders: list[int], shown: int) -> dict[str, Any]:
    """shown: the episode whose matrices are kept."""
    C = torch.stack(list(diagnostics.calibrations(recording.memory, recording.x, recording.state, recording.reset)))   # [T, N, V, K]
    M = _states(recording)
    since = C[borders[0]:].cumprod(0)                                   # products of C since the explore phase
    left = torch.cat([M[: borders[0]], M[borders[0] - 1] * since])      # [T, N, V, K]: what was written in it, calibrated since
    spread = since.flatten(1).quantile(torch.tensor(QUANTILES, dtype=since.dtype), dim=1)
    change = (C - 1).abs().mean((1, 2, 3))
    erased, grown = (C < 1 - CHANGED).double().mean((1, 2, 3)), (C > 1 + CHANGED).double().mean((1, 2, 3))
    norm, norm_left = (x.square().sum((2, 3)).sqrt() for x in (M, left))
    growth = norm_left / norm[borders[0] - 1]
    weight = M[borders[0] - 1].square() / M[borders[0] - 1].square().sum((1, 2), keepdim=True)      # where the explore phase wrote
    log_since = torch.cat([torch.zeros_like(M[: borders[0]]), since.clamp(min=1e-300).log()])       # [T, N, V, K]
    chosen, typical = (log_since * weight).sum((2, 3)), log_since.mean((2, 3))                      # [T, N]
    curves = {"change": change, "erased": erased, "strengthened": grown, "kept": 1 - erased - grown,
              "norm": norm.median(1).values, "early": (norm_left / norm.clamp(min=1e-30)).median(1).values}
    rows = []
    for start, stop in zip([0, *borders], borders, strict=False):
        product = C[start:stop].log().sum(0)
        rows.append({"from": start, "to": stop, **{name: float(curves[name][start:stop].mean()) for name in ("change", "erased", "kept",
                                                                                                           "strengthened")},
                     "median_product": float(product.median().exp()), "halved": float((product < -math.log(2)).double().mean()),
                     "doubled": float((product > math.log(2)).double().mean()), "norm": float(curves["norm"][stop - 1]),
                     "early": float(curves["early"][stop - 1]), "growth": float(growth[stop - 1].median()),
                     "chosen": float(chosen[stop - 1].median().exp()), "typical": float(typical[stop - 1].median().exp())})
    return {
        "phases": rows, "curves": {name: _rounded(values[None], ".5g")[0] for name, values in curves.items()},
        "since": _rounded(spread, ".5g"),
        "columns": _rounded(C[:, shown].mean(1).T, ".5f"), "column_norms": _rounded(M[:, shown].square().mean(1).sqrt().T, ".3g"),  # [K, T]
        "matrices": [{"step": t, "M": _rounded(M[t - 1, shown], ".3g"), "C": _rounded(C[t - 1, shown], ".4f")} for t in (1, *borders)],
    }


def _states(recording: Recording) -> Tensor:
    """M after every step [T, N, V, K], in float64."""
    state, found = recording.state, []
    for t in range(recording.x.shape[1]):
        _, state = recording.memory.step(recording.x[:, t], state, recording.reset[:, t])
        found.append(state.M.double())
    return torch.stack(found)


def _rounded(x: Tensor, form: str) -> list[list[float]]:
    return [[float(format(value, form)) for value in row] for row in x.tolist()]


# --- what the report says


def sections(results: Any) -> list[Section]:
    return [_section(results, memory) for memory in MEMORIES]


def _section(results: Any, memory: str) -> Section:
    if memory not in results.measures:
        return Section(f"With {MEMORIES[memory]}", missing(results, memory))
    result = present(results, [memory])[memory]
    low, high = result["success_ci"]
    verdict = "The task was solved" if result["success"] >= SOLVED else "The task was not solved: read this as an agent in training"
    text = (f"Trained with PPO for {result['trained']:,} steps: success {result['success']:.0%} ({low:.0%} to {high:.0%} with 95 % "
            f"confidence, {result['eval_episodes']} episodes; guessing gives at most 33 %). {verdict}. C and M over {result['episodes']} "
            f"episodes, of which it won {result['won']:.0%}.")
    return Section(f"With {MEMORIES[memory]}", text, [*_tables(result), *_curves(result), *_maps(result)])


def _tables(result: dict[str, Any]) -> list[Item]:
    named = list(zip(("explore", "distractor", "reward"), result["phases"], strict=True))
    calibration = [[phase, f"{row['from'] + 1} to {row['to']}", f"{row['change']:.3f}", f"{row['erased']:.0%}", f"{row['kept']:.0%}",
                    f"{row['strengthened']:.0%}", f"{row['median_product']:.2g}", f"{row['halved']:.0%}", f"{row['doubled']:.0%}"]
                   for phase, row in named]
    left = [[phase, f"{row['norm']:.3g}", f"{row['early']:.0%}", f"{row['growth']:.3g}", f"{row['chosen']:.2g}", f"{row['typical']:.2g}"]
            for phase, row in named]
    return [
        Table(f"phases-{result['memory']}", "What C does in each phase",
              ["phase", "steps", "mean |C - 1|", "erased", "kept", "strengthened", "median product", "below 1/2", "above 2"], calibration,
              f"At single steps, erased: share of entries with C below {1 - CHANGED:g}; strengthened: above {1 + CHANGED:g}. Then the "
              "products of C over the phase: their median, and the shares below 1/2 and above 2."),
        Table(f"left-{result['memory']}", "What is left of the explore phase, at the end of each phase",
              ["phase", "norm of M", "of it from explore", "times what it was", "typical factor where it wrote", "on all entries"], left,
              "Medians over episodes. Times: the norm of what the explore phase wrote, calibrated since, over what it was. Factors: the "
              "geometric mean of the products of C since the explore phase, weighted with the squares of what it had written, and over "
              "all entries. If C strengthens what was written, the first is the larger one."),
    ]


def _curves(result: dict[str, Any]) -> list[Item]:
    memory, curves = result["memory"], result["curves"]
    steps = list(range(1, len(curves["change"]) + 1))
    note = f"Phases end after steps {', '.join(map(str, result['borders']))}. Means over {result['episodes']} episodes."
    shares = [Series(name, steps, [100 * x for x in curves[name]]) for name in ("erased", "kept", "strengthened")]
    norms = [Series("norm of M", steps, curves["norm"]), Series("left of the explore phase", steps, [
        n * e for n, e in zip(curves["norm"], curves["early"], strict=True)], dashed=True)]
    low, middle, high = result["since"]
    return [Figure(f"since-{memory}", "Product of C since the end of the explore phase", "step", "factor on an entry of M",
                   [Series("median, with the middle 90 % of entries", steps[result["borders"][0]:], middle, low, high)], y_log=True,
                   note=note),
            Figure(f"shares-{memory}", "Entries that C erases, keeps and strengthens", "step", "% of entries", shares, y_range=(0, 105),
                   note=note),
            Figure(f"change-{memory}", "How far C is from 1", "step", "mean |C - 1|", [Series("mean |C - 1|", steps, curves["change"])],
                   note=note),
            Figure(f"norm-{memory}", "Size of the memory", "step", "Frobenius norm", norms, y_log=True,
                   note=note.replace("Means", "Medians"))]


def _maps(result: dict[str, Any]) -> list[Item]:
    memory = result["memory"]
    items: list[Item] = [
        HeatMap(f"columns-{memory}", "Mean of C in each column of M, one episode", "step", "column", np.array(result["columns"]), "mean C",
                centre=1.0),
        HeatMap(f"column-norms-{memory}", "Size of each column of M, one episode", "step", "column",
                np.log10(np.maximum(np.array(result["column_norms"]), 1e-6)), "log10 of the root mean square"),
    ]
    for entry in result["matrices"]:
        M, step = np.array(entry["M"]), entry["step"]
        largest = float(np.abs(M).max()) or 1.0
        items.append(HeatMap(f"M-{step}-{memory}", f"M after step {step}", "column (key)", "row (value)", M / largest,
                             f"M / {largest:.3g}", centre=0.0))
        items.append(HeatMap(f"C-{step}-{memory}", f"C at step {step}", "column (key)", "row (value)", np.array(entry["C"]), "C",
                             centre=1.0))
    return items
