"""Times one acting step of exported policies in onnxruntime and torch.export beside `policy.act`, and compares their actions.

    PYTHONPATH=src python benchmarks/export_speed.py [--memories shm gru ...] [--envs 1] [--steps 1000]
        [--out docs/measurements/cpu-export.json] [--markdown FILE]

The policies are PPO's on RepeatPreviousEasy, with the sizes of `hadamem train` and random weights, balanced: one that always took the same
action would agree with anything. They play the same random observations,
with resets in between, in turn: ROUND steps of each, so that all suffer alike from other programs. Times are the tenth percentile, which
these disturb least; the output file has medians, too. Needs the extra `onnx`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import hadamem as hm
from hadamem.bench.timing import machine, write_json
from hadamem.runs.config import make_config
from hadamem.training.agreement import random_inputs
from hadamem.training.policy import Policy
from hadamem.training.step import Step
from hadamem.training.trainer import Trainer

ENV = "popgym/RepeatPreviousEasy"
ROUND = 25      # steps


def make_policy(memory: str) -> Policy:
    """Weights as training starts from, plus noise, so that actions depend on the memory."""
    policy = Policy.of(Trainer(make_config(env=ENV, memory=memory, device="cpu")))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.network.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return balance(policy)


def balance(policy: Policy, rounds: int = 5) -> Policy:
    """Shift the actor's biases until all actions have the same median logit: then the inputs and the memory decide."""
    step = Step(policy)
    with torch.no_grad():
        for number in range(rounds):      # actions change what is seen next
            state, logits = torch.zeros(4, step.layout.size), []
            for given in random_inputs(step, 200, 4, seed=100 + number):
                found = step({**{name: torch.from_numpy(x) for name, x in given.items()}, "state": state})
                state = found["next_state"]
                logits.append(found["logits"])
            policy.network.actor[-1].bias -= torch.cat(logits).median(0).values      # a mean would follow outliers
    return policy


def commonest(actions: np.ndarray) -> float:
    """The share of the action that was chosen most often."""
    return float(np.unique(actions, return_counts=True)[1].max() / actions.size)


def measure(memory: str, envs: int, steps: int) -> dict:
    """Microseconds per step, sizes of files, and how many actions are the same."""
    policy = make_policy(memory)
    with tempfile.TemporaryDirectory() as folder:
        files = {format: policy.export(Path(folder) / f"policy{ending}") for format, ending in (("onnx", ".onnx"), ("torch", ".pt2"))}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(files["onnx"].path), options, providers=["CPUExecutionProvider"])
        program = torch.export.load(files["torch"].path).module()
    names, step = [x.name for x in session.get_outputs()], Step(policy)
    zeros = np.zeros((envs, step.layout.size), np.float32)
    states = {"policy.act": step.layout.unpack(torch.from_numpy(zeros)), "onnxruntime": zeros, "torch.export": torch.from_numpy(zeros)}

    def act(given, tensors):
        action, states["policy.act"] = policy.act(tensors["obs"], states["policy.act"], tensors["reset"], deterministic=True)
        return action.numpy()

    def run_session(given, tensors):
        found = dict(zip(names, session.run(None, {**given, "state": states["onnxruntime"]}), strict=True))
        states["onnxruntime"] = found["next_state"]
        return found["action"]

    def run_program(given, tensors):
        with torch.no_grad():
            found = program({**tensors, "state": states["torch.export"]})
        states["torch.export"] = found["next_state"]
        return found["action"].numpy()

    calls = {"policy.act": act, "onnxruntime": run_session, "torch.export": run_program}
    times: dict[str, list[float]] = {name: [] for name in calls}
    actions: dict[str, list[np.ndarray]] = {name: [] for name in calls}
    inputs = [(given, {name: torch.from_numpy(x) for name, x in given.items()}) for given in random_inputs(step, steps, envs)]
    for start in range(0, steps, ROUND):
        for name, call in calls.items():
            for given, tensors in inputs[start:start + ROUND]:
                begin = time.perf_counter()
                actions[name].append(call(given, tensors))
                times[name].append(time.perf_counter() - begin)
    chosen = {name: np.stack(found) for name, found in actions.items()}
    return {"memory": memory, "envs": envs, "steps": steps, "state": step.layout.size,
            "microseconds": {name: 1e6 * float(np.quantile(found, 0.1)) for name, found in times.items()},
            "median_microseconds": {name: 1e6 * float(np.median(found)) for name, found in times.items()},
            "bytes": {format: made.bytes for format, made in files.items()},
            "difference": {format: made.difference for format, made in files.items()},
            "commonest_action": commonest(chosen["policy.act"]),
            "same_actions": {name: float((chosen[name] == chosen["policy.act"]).mean()) for name in ("onnxruntime", "torch.export")}}


def markdown(rows: list[dict]) -> str:
    head = ("memory", "state", ".onnx", ".pt2", "policy.act", "onnxruntime", "torch.export", "same actions", "commonest action")
    lines = [head, ("---",) * len(head)]
    for row in rows:
        sizes = [f"{row['bytes'][name] / 1e6:.1f} MB" for name in ("onnx", "torch")]
        times = [f"{row['microseconds'][name]:.0f} µs" for name in head[4:7]]
        lines.append((row["memory"], f"{row['state']:,}", *sizes, *times, f"{100 * min(row['same_actions'].values()):.4g} %",
                      f"{100 * row['commonest_action']:.0f} %"))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--memories", nargs="+", default=hm.list_memories())
    parser.add_argument("--envs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for memory in args.memories:
        rows.append(measure(memory, args.envs, args.steps))
        print(json.dumps(rows[-1]), flush=True)
    if args.out:
        write_json(args.out, {"machine": machine(torch.device("cpu")), "onnxruntime": onnxruntime.__version__, "rows": rows})
    if args.markdown:
        args.markdown.write_text(markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
