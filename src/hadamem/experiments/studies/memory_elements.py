"""What memories really hold: numbers of state, parameters and bytes of a checkpoint, beside the sizes that the paper states."""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import save

from ...bench.zoo import SIZES
from ...memory import list_memories, make_memory
from ...reports.content import Cell, Figure, Section, Series, Table
from ..measure import missing, present
from ..study import MeasureTask, Study

STATED = 512       # elements of every memory in the paper's meta-learning and credit experiments
META: list[tuple[str, dict[str, Any], str]] = [      # of those experiments: memory, its options, and where the size comes from
    ("shm-paper", {"memory_size": 24}, "paper and code"),
    ("fwp", {"memory_size": 24}, "paper"),
    ("fwp", {"memory_size": 64}, "code"),
    ("mlstm", {"memory_size": 24}, "paper and code"),
    ("ffm", {"memory_size": 128, "context": 4}, "paper and code"),
    ("gru", {"memory_size": 512}, "paper"),
    ("gru", {"memory_size": 64}, "code (Wind)"),
    ("gru", {"memory_size": 128}, "code (Point Robot, credit)"),
    ("gpt2", {"memory_size": 512, "heads": 4, "window": 100}, "paper, 100 steps"),
    ("gpt2", {"memory_size": 64, "heads": 4, "window": 100}, "code (Wind), 100 steps"),
    ("s6", {"memory_size": 512}, "paper and code"),
    ("lstm", {"memory_size": 128}, "code (credit)"),
]
POPGYM = ("shm", "shm-paper", "shm-release", "gru", "ffm")       # memories whose sizes in the POPGym experiments the paper gives


def make(protocol: str = "fair", quick: bool = False, budget: float = 1.0, seed: int = 0) -> Study:
    """protocol, quick, budget: every study takes them; sizes do not depend on them."""
    popgym = [{"memory": name, "options": dict(SIZES.get(name, {})), "stated": None,
               "source": "paper" if name in POPGYM else "released code or our default"} for name in list_memories()]
    meta = [{"memory": name, "options": options, "stated": STATED, "source": source} for name, options, source in META]
    tasks = [
        MeasureTask("popgym", "memory_elements:sizes", {"rows": popgym, "input_size": 64, "output_size": 64, "seed": seed}),
        MeasureTask("meta", "memory_elements:sizes", {"rows": meta, "input_size": 40, "output_size": 128, "seed": seed}),
    ]
    about = ("The paper compares memories at equal numbers of elements. How many real numbers does each hold between two steps, at the "
             "sizes of the paper and of its released code, and how many parameters and bytes does it take to save?")
    return Study("memory_elements", "What the memories hold", tasks, about, sections=sections)


def sizes(rows: list[dict[str, Any]], input_size: int, output_size: int, seed: int = 0) -> dict[str, Any]:
    """State size, parameters and bytes of the weights in a safetensors file, for each row's memory and options."""
    torch.manual_seed(seed)
    found = []
    for row in rows:
        width = None if row["memory"] in ("gru", "lstm", "gpt2") else output_size       # these give their hidden state
        memory = make_memory(row["memory"], input_size, width, **row["options"])
        weights = {name: x.contiguous() for name, x in memory.state_dict().items()}
        found.append({**row, "state": memory.state_size, "parameters": sum(p.numel() for p in memory.parameters()),
                      "bytes": len(save(weights)) if weights else 0, "tensors": len(weights)})
    return {"rows": found, "input_size": input_size, "output_size": output_size}


# --- what the report says


def sections(results: Any) -> list[Section]:
    texts = {
        "popgym": ("Sizes of the POPGym experiments", "SHM, GRU and FFM as the paper sets them, the others as in its released code or by "
                   "our defaults."),
        "meta": ("Sizes of the meta-learning and credit experiments", f"The paper says that every memory has {STATED} elements. SHM's "
                 "24 x 24 are 576, FFM's 128 x 4 complex numbers are 1,024 real ones, the code's FWP is 64 x 64, and S6 has 512 numbers "
                 "for each of its channels. GPT-2 holds keys and values of every step. Memories of equal size were not compared."),
    }
    return [_section(results, name, *texts[name]) for name in texts]


def _section(results: Any, name: str, title: str, text: str) -> Section:
    items: list[Any] = []
    for result in present(results, [name]).values():
        rows = result["rows"]
        table = [[row["memory"], _options(row["options"]), row["source"], Cell(row["state"], paper=row["stated"], digits=0),
                  None if row["stated"] is None or not row["state"] else round(row["state"] / row["stated"], 2), row["parameters"],
                  round(row["bytes"] / 1024, 1)] for row in rows]
        items.append(Table(f"elements-{name}", f"State and parameters, {result['input_size']} features in, {result['output_size']} out",
                           ["memory", "size", "size from", "numbers held", "held / stated", "parameters", "checkpoint, KiB"], table,
                           "Numbers held: real numbers of one env's state; counters are left out, a complex number counts twice. Beside "
                           "them: what the paper states, where it does. GRU, LSTM and GPT-2 have no output layer of their own."))
        shown = [row for row in rows if row["state"]]
        labels = [f"{row['memory']} {row['options'].get('memory_size', '')}".strip() for row in shown]
        stated = [row["stated"] for row in shown if row["stated"] is not None]
        series = [Series("held", labels, [row["state"] for row in shown])]
        if len(stated) == len(shown):
            series.append(Series("stated", labels, stated, dashed=True))
        items.append(Figure(f"state-{name}", f"Numbers held: {title[0].lower()}{title[1:]}", "", "real numbers", series, kind="bar",
                            y_log=True))
    return Section(title, f"{text} {missing(results, name)}".strip(), items)


def _options(options: dict[str, Any]) -> str:
    short = {"memory_size": "H", "context": "c"}
    return ", ".join(f"{short.get(name, name)} = {value}" for name, value in options.items()) or "default"
