"""How many items a matrix memory recalls (the paper's Remark 1): additive beside calibrated, written by hand and learned."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import kernels
from ...memory import make_memory
from ...reports.content import Figure, Item, Section, Series, Table
from ..measure import missing, present, sized
from ..recall import Learner, Overwrite, Recall, curriculum
from ..study import MeasureTask, Study

SYMBOLS = 8
MEMORIES: dict[str, tuple[str, dict[str, Any]]] = {
    "C = 1": ("shm", {"calibration": "none"}), "SHM": ("shm", {}), "SHM, random rows": ("shm-paper", {"clip": 1e4}), "FWP": ("fwp", {}),
}
SHORT = {"C = 1": "none", "SHM": "shm", "SHM, random rows": "random-rows", "FWP": "fwp"}      # in names of tasks
LEARNED = ("C = 1", "SHM")
EXACT = 1e-6       # largest difference of an item that counts as recalled


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seed: int = 0) -> Study:
    """protocol: every study takes it; no agent is trained here."""
    sizes = [4] if quick else [4, 8, 16]
    loads = [0.5, 2.0] if quick else [1.0, 2.0, 4.0]
    seeds = [seed] if quick else [seed, seed + 1, seed + 2]
    lengths = [8, 16] if quick else [8, 16, 32, 64]
    updates = sized(600, 60, quick, budget)
    tasks = [MeasureTask("written", "recall_limit:written", {
        "sizes": [8, 16] if quick else [8, 16, 32], "loads": [0.5, 1.0, 1.5, 2.0, 3.0, 4.0], "repeats": sized(64, 8, quick, budget),
        "seed": seed})]
    tasks += [MeasureTask(f"learned-{SHORT[name]}", "recall_limit:learned", {"memory": name, "sizes": sizes, "loads": loads,
                                                                            "updates": updates, "seeds": seeds}) for name in LEARNED]
    tasks += [MeasureTask(f"overwriting-{SHORT[name]}", "recall_limit:overwriting", {
        "memory": name, "memory_size": 16, "items": 4, "lengths": lengths, "updates": updates, "seed": seed}) for name in MEMORIES]
    about = ("The paper's Remark 1 says that a memory without calibration recalls at most H items, H its width. Three tests: items written "
             "by hand, all items asked for after training, and keys that are written again, where only the latest item counts.")
    return Study("recall_limit", "How many items a memory recalls", tasks, about, sections=sections)


# --- measurements


def written(sizes: list[int], loads: list[float], repeats: int, seed: int = 0) -> dict[str, Any]:
    """T = load x H items written by hand: how many general values come back exactly, and for symbols, the share that is the nearest one.

    Item t has the key e_(t mod H). `none` adds items up (C = 1). `erase` sets the column of the key to 0 first: theta = 1 and vc = -20
    there, in eq. 14. `random keys` adds up items with independent keys on the unit sphere; `best` is the matrix with the least squared
    error for those.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for H in sizes:
        code = torch.linalg.qr(torch.randn(H, H, dtype=torch.float64, generator=generator)).Q[:, :SYMBOLS].T       # [S, H]
        for load in loads:
            T = max(1, round(load * H))
            symbol = torch.randint(SYMBOLS, (repeats, T), generator=generator)
            general, sphere = torch.randn(2, repeats, T, H, dtype=torch.float64, generator=generator)
            slots = F.one_hot(torch.arange(T) % H, H).double().expand(repeats, T, H)
            sphere = F.normalize(sphere, dim=-1)
            for kind in ("none", "erase", "random keys", "best"):
                keys = slots if kind in ("none", "erase") else sphere
                exact = ((_recalled(kind, general, keys) - general).abs().amax(-1) < EXACT).double().sum(1).mean()
                right = ((_recalled(kind, code[symbol], keys) @ code.T).argmax(-1) == symbol).double().mean()
                rows.append({"H": H, "T": T, "kind": kind, "exact": float(exact), "accuracy": float(right)})
    return {"rows": rows, "symbols": SYMBOLS}


def _recalled(kind: str, v: Tensor, k: Tensor) -> Tensor:
    """What is read for the key of every item [B, T, H] after all were written."""
    if kind == "best":
        return k @ torch.linalg.lstsq(k, v).solution
    theta, vc, form = (torch.ones_like(v), -20 * k, "tanh") if kind == "erase" else (None, None, "none")
    M = kernels.shm(theta, vc, v, k, k, calibration=form, backend="reference")[1]
    return k @ M.mT


def learned(memory: str, sizes: list[int], loads: list[float], updates: int, seeds: list[int]) -> dict[str, Any]:
    """Accuracies after training on load x H items, all of them asked for, and with C = 1 at the questions. Chance is 1 / SYMBOLS."""
    rows = []
    for H in sizes:
        for load in loads:
            task = Recall(symbols=SYMBOLS, items=max(1, round(load * H)))
            steps, found = 2 * task.items, []
            for seed in seeds:
                learner = _learner(memory, H, task, seed)
                outcome = learner.solve(steps, goal=0.99, updates=updates)
                with _no_calibration_at_questions(learner):
                    found.append((outcome.accuracy, learner.accuracy(steps), outcome.updates))
            accuracy, without, spent = zip(*found, strict=True)
            rows.append({"H": H, "items": task.items, "accuracy": list(accuracy), "without": list(without), "updates": list(spent)})
    return {"memory": memory, "seeds": seeds, "rows": rows}


@contextmanager
def _no_calibration_at_questions(learner: Learner) -> Iterator[None]:
    """C = 1 at the last steps within a `with` block, where the symbols are asked for."""
    calibration: Any = learner.memory.calibration
    original = calibration.forward

    def forward(*args: Any, **options: Any) -> Any:
        found = original(*args, **options)
        if found is None:                                                # C = 1 at all steps
            return None
        asked = torch.arange(found.vc.shape[1]) >= found.vc.shape[1] - learner.task.items
        return found._replace(vc=found.vc.masked_fill(asked[:, None], 0.0))

    calibration.forward = forward
    try:
        yield
    finally:
        del calibration.forward


def overwriting(memory: str, memory_size: int, items: int, lengths: list[int], updates: int, seed: int = 0) -> dict[str, Any]:
    """Accuracy for the latest symbol of each key, from few writes to many; each length starts from the weights of the one before."""
    learner = _learner(memory, memory_size, Overwrite(symbols=SYMBOLS, items=items), seed)
    rows = [{"T": o.steps - items, "accuracy": o.accuracy, "updates": o.updates, "skipped": o.skipped}
            for o in curriculum(learner, tuple(lengths), goal=0.99, updates=updates)]
    return {"memory": memory, "H": memory_size, "items": items, "rows": rows}


def _learner(memory: str, memory_size: int, task: Recall, seed: int) -> Learner:
    torch.manual_seed(seed)
    name, options = MEMORIES[memory]
    return Learner(make_memory(name, task.input_size, 32, memory_size=memory_size, **options), task, seed=seed)


# --- what the report says


def sections(results: Any) -> list[Section]:
    return [_written_section(results), _learned_section(results), _overwriting_section(results)]


def _written_section(results: Any) -> Section:
    items: list[Any] = []
    labels = {"none": "C = 1", "erase": "C erases the column", "random keys": "C = 1, random keys", "best": "best matrix, random keys"}
    for result in present(results, ["written"]).values():
        table = []
        for H, T in dict.fromkeys((row["H"], row["T"]) for row in result["rows"]):
            by_kind = {row["kind"]: row for row in result["rows"] if (row["H"], row["T"]) == (H, T)}
            table.append([H, T, *(f"{by_kind[kind]['exact']:.1f}" for kind in labels),
                          *(f"{by_kind[kind]['accuracy']:.0%}" for kind in labels)])
        items.append(Table("written", "Items written by hand", ["H", "T", *(f"{label}: exact" for label in labels.values()),
                                                                *(f"{label}: symbols" for label in labels.values())], table,
                           f"Exact: items of T with general values that are recalled to within {EXACT:g}. Symbols: where each value is one "
                           f"of {result['symbols']} symbols, the share whose nearest symbol is right."))
        H = max(row["H"] for row in result["rows"])
        own = [row for row in result["rows"] if row["H"] == H]
        for measure, title, unit in (("exact", f"Items recalled exactly, H = {H}", "items"), ("accuracy", f"Symbols right, H = {H}", "%")):
            scale = 100 if measure == "accuracy" else 1
            series = [Series(label, [row["T"] for row in own if row["kind"] == kind],
                             [scale * row[measure] for row in own if row["kind"] == kind]) for kind, label in labels.items()]
            items.append(Figure(f"written-{measure}", title, "items written T", unit, series, group="written"))
    text = ("M has H columns, so at most H keys can be orthogonal, and no matrix M returns more than H general items exactly as M k: "
            "Remark 1 holds for such a read. Without calibration, later items are added on top of earlier ones, and at T = 2 H nothing is "
            "exact. A calibration that erases the column before it is written keeps the latest H. Fewer bits "
            "than an exact value, such as one of eight symbols, can be recalled for more than H items. " + missing(results, "written"))
    return Section("Written by hand", text.strip(), items)


def _learned_section(results: Any) -> Section:
    names = [f"learned-{SHORT[name]}" for name in LEARNED]
    rows: list[list[Any]] = []
    series = []
    for result in present(results, names).values():
        rows += [[result["memory"], row["H"], row["items"], *map(_range, (row["accuracy"], row["without"])), max(row["updates"])]
                 for row in result["rows"]]
        for H in dict.fromkeys(row["H"] for row in result["rows"]):
            own = [row for row in result["rows"] if row["H"] == H]
            middle, low, high = ([100 * pick(row["accuracy"]) for row in own] for pick in (statistics.median, min, max))
            series.append(Series(f"{result['memory']}, H = {H}", [row["items"] / H for row in own], middle, low, high,
                                 dashed=result["memory"] == "C = 1"))
    items: list[Item] = [
        Table("learned", "All items asked for, after training", ["memory", "H", "items", "accuracy", "with C = 1 at the questions",
                                                                 "updates"], rows, "Median over seeds, with the lowest and the highest."),
        Figure("learned-accuracy", "All items asked for, after training", "items / H", "% right", series, x_log=True, y_range=(0, 105)),
    ]
    text = ("Each item is a symbol with its own position flag, shown once; then all are asked for, one at each step. Training stops at "
            "99 % or when its updates are used up. C acts at the questions, too: what is read is (M ⊙ C) q with a C that depends on the "
            "question, which no longer is a linear read of one matrix. The last column takes this away after training. "
            + missing(results, *names))
    return Section("Learned, all items asked for", text.strip(), items if rows else [])


def _range(values: list[float]) -> str:
    middle = f"{statistics.median(values):.0%}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.0%} to {max(values):.0%})"


def _overwriting_section(results: Any) -> Section:
    names = [f"overwriting-{short}" for short in SHORT.values()]
    found = present(results, names)
    rows = [[result["memory"], row["T"], f"{row['accuracy']:.0%}", row["updates"]] for result in found.values() for row in result["rows"]]
    series = [Series(result["memory"], [row["T"] for row in result["rows"]], [100 * row["accuracy"] for row in result["rows"]])
              for result in found.values()]
    first = next(iter(found.values()), {"items": 0, "H": 0})
    title = f"The latest symbol of {first['items']} keys, H = {first['H']}"
    items: list[Item] = [
        Table("overwriting", title, ["memory", "writes", "accuracy", "updates"], rows),
        Figure("overwriting-accuracy", "The latest symbol of each key", "writes T", "% right", series, x_log=True, y_range=(0, 105)),
    ]
    text = ("There are fewer keys than columns, but each is written many times, and only its latest symbol counts. An additive memory "
            "holds the sum of all symbols of a key. " + missing(results, *names))
    return Section("Learned, keys written again", text.strip(), items if found else [])
