"""Train the same continuous tasks with hadamem's SAC and Stable-Baselines3's, without memory: returns, updates per second, times.

    PYTHONPATH=src python benchmarks/sac_peers.py --task Pendulum-v1 --steps 20000 --seeds 0 1 2 [--libraries sb3 hadamem]
        [--out docs/measurements/sac-peers.json]

Both have the settings of SETTINGS, which are SB3's defaults, one env, one update per env step and one CPU thread. Finished runs (library,
task, steps, seed) in the output file are not run again. Afterwards, both play the same 20 episodes with their most likely actions.
`seconds` are those of the whole training, `update seconds` those of its updates. `cpu seconds` are the processor time of this process
and tell more on a machine that others use too. ContinuousCartPole-v0 is defined here. Needs stable-baselines3, which the package itself
does not need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from importlib import metadata
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from hadamem.bench.timing import machine

SETTINGS = {
    "hidden layers": [256, 256], "learning_rate": 3e-4, "batch_size": 256, "gamma": 0.99, "tau": 0.005, "buffer": "all steps",
    "random steps first": 100, "updates per env step": 1, "temperature": "learned, target entropy -A", "envs": 1, "torch threads": 1,
}
HADAMEM = dict(      # the same in hadamem's words; rollouts have the agent's own length
    num_envs=1, workers=0, threads=1, previous_action=False, first_step=False, hidden_sizes=(256, 256), learning_rate=3e-4, batch_size=256,
    sequence_length=1, gamma=0.99, tau=0.005, learning_starts=100, updates_per_step=1.0, initial_ent_coef=1.0,
)
WHAT = ("SAC without memory: hadamem against Stable-Baselines3. Return: mean of deterministic episodes after training, with the same start "
        "states for all. Curve: mean return of the training episodes that ended in each tenth of the steps; null: none did.")
FIRST_EPISODE = 1_000_000      # seed of the first evaluation episode
POINTS = 10                    # of a curve


class ContinuousCartPole(gymnasium.ActionWrapper):
    """CartPole with a force in [-10, 10] instead of -10 or 10: unlike Pendulum, its episodes can end in failure. Best return: 200."""

    def __init__(self, render_mode: str | None = None):
        super().__init__(CartPoleEnv(render_mode=render_mode))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action(self, action):
        self.unwrapped.force_mag = 10 * abs(float(action[0]))
        return int(action[0] > 0)


gymnasium.register("ContinuousCartPole-v0", ContinuousCartPole, max_episode_steps=200)


def train_sb3(task: str, steps: int, seed: int):
    """Train with Stable-Baselines3: what acts, and the facts of the run."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback

    ended: list[tuple[int, float]] = []       # step, return of each training episode
    spent = [0.0]                             # seconds of updates

    class Timed(SAC):
        def train(self, *args, **kwargs):
            before = time.perf_counter()
            super().train(*args, **kwargs)
            spent[0] += time.perf_counter() - before

    class Episodes(BaseCallback):
        def _on_step(self) -> bool:
            ended.extend((self.num_timesteps, float(info["episode"]["r"])) for info in self.locals["infos"] if "episode" in info)
            return True

    model = Timed("MlpPolicy", task, learning_rate=3e-4, buffer_size=steps, learning_starts=100, batch_size=256, tau=0.005, gamma=0.99,
                  train_freq=1, gradient_steps=1, ent_coef="auto", policy_kwargs={"net_arch": [256, 256]}, seed=seed, device="cpu")
    before = time.perf_counter(), time.process_time()
    model.learn(steps, callback=Episodes())
    facts = {"seconds": time.perf_counter() - before[0], "cpu seconds": time.process_time() - before[1],
             "updates": model._n_updates, "update seconds": spent[0]}

    def act(obs, state):
        return model.predict(obs, deterministic=True)[0], None

    return act, facts, ended


def train_hadamem(task: str, steps: int, seed: int):
    """Train with hadamem: what acts, and the facts of the run."""
    import hadamem as hm

    before = time.perf_counter(), time.process_time()
    run = hm.train(task, "none", agent="sac", total_steps=steps, replay_size=steps, seed=seed, device="cpu", quiet=True, **HADAMEM)
    facts = {"seconds": time.perf_counter() - before[0], "cpu seconds": time.process_time() - before[1],
             "updates": round(sum(row.get("updates", 0) for row in run.metrics)),
             "update seconds": sum(row["update_seconds"] for row in run.metrics)}
    ended = [(row["steps"], row["return"]) for row in run.metrics for _ in range(round(row.get("episodes", 0)))]

    def act(obs, state):
        return run.policy.act(obs, state, deterministic=True)

    return act, facts, ended


LIBRARIES = {"sb3": train_sb3, "hadamem": train_hadamem}


def play(act, task: str, episodes: int) -> list[float]:
    """Returns of episodes with fixed start states."""
    env, found = gymnasium.make(task), []
    for episode in range(episodes):
        obs, _ = env.reset(seed=FIRST_EPISODE + episode)
        state, total, done = None, 0.0, False
        while not done:
            action, state = act(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, done = total + float(reward), terminated or truncated
        found.append(total)
    env.close()
    return found


def curve(ended: list[tuple[int, float]], steps: int) -> list[float | None]:
    """Mean return of the episodes in each of POINTS equal parts of the steps."""
    parts = [[value for step, value in ended if i < step * POINTS / steps <= i + 1] for i in range(POINTS)]
    return [round(statistics.fmean(part), 2) if part else None for part in parts]


def measure(library: str, task: str, steps: int, seed: int, episodes: int) -> dict:
    about = machine(torch.device("cpu"))      # before the run: the tree may change while it trains
    act, facts, ended = LIBRARIES[library](task, steps, seed)
    returns = play(act, task, episodes)
    version = metadata.version("stable-baselines3") if library == "sb3" else about["hadamem"]
    return {
        "library": library, "version": version, "task": task, "steps": steps, "seed": seed,
        "return": round(float(np.mean(returns)), 2), "std of episodes": round(float(np.std(returns, ddof=1)), 2) if episodes > 1 else None,
        "episodes": episodes, "updates": facts["updates"], "updates per second": round(facts["updates"] / facts["seconds"], 1),
        **{name: round(facts[name], 1) for name in ("seconds", "cpu seconds", "update seconds")},
        "curve": curve(ended, steps), "load": about["load"], "date": about["date"][:10], "commit": about["commit"],
    }


def write(path: Path, record: dict) -> None:
    """Write the record as JSON, one run per line."""
    head = json.dumps({name: record[name] for name in record if name != "runs"}, indent=1)
    rows = ",\n".join("  " + json.dumps(run) for run in record["runs"])
    part = path.with_name(path.name + ".part")
    part.write_text(head.removesuffix("\n}") + ',\n "runs": [\n' + rows + "\n ]\n}\n", encoding="utf-8")
    os.replace(part, path)


def read(path: Path) -> dict:
    """Read a record, or begin one on this machine."""
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    about = machine(torch.device("cpu"))
    software = (f"Python {platform.python_version()}, torch {about['torch']}, gymnasium {metadata.version('gymnasium')}, "
                f"numpy {metadata.version('numpy')}")
    return {"what": WHAT, "machine": f"{about['cpu']}, {about['cores']} cores, shared with other work", "software": software,
            "command": "python benchmarks/sac_peers.py --task TASK --steps STEPS --seeds 0 1 2", "settings": SETTINGS, "runs": []}


def table(runs: list[dict]) -> str:
    """Rows of a markdown table: task and library, with the mean over seeds of all but the return, which is shown for each."""
    lines = ["| task | steps | library | return, each seed | updates/s | updates per CPU second | seconds | CPU seconds |",
             "|---|---|---|---|---|---|---|---|"]
    for task, steps, library in dict.fromkeys((run["task"], run["steps"], run["library"]) for run in runs):
        group = [run for run in runs if (run["task"], run["steps"], run["library"]) == (task, steps, library)]
        returns = ", ".join(f"{run['return']:.1f}" for run in group)
        per_cpu = statistics.fmean(run["updates"] / run["cpu seconds"] for run in group)
        means = [statistics.fmean(run[name] for run in group) for name in ("updates per second", "seconds", "cpu seconds")]
        lines.append(f"| {task} | {steps:,} | {library} | {returns} | {means[0]:.0f} | {per_cpu:.0f} | {means[1]:.0f} | {means[2]:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Pendulum-v1", help="a Gymnasium id with continuous actions")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    parser.add_argument("--episodes", type=int, default=20, help="of the evaluation")
    parser.add_argument("--out", type=Path, default=Path("docs/measurements/sac-peers.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    record = read(args.out)
    for seed in args.seeds:
        for library in args.libraries:
            key = (library, args.task, args.steps, seed)
            if any((run["library"], run["task"], run["steps"], run["seed"]) == key for run in record["runs"]):
                print(f"{library}, {args.task}, seed {seed}: already done", flush=True)
                continue
            run = measure(*key, args.episodes)
            record["runs"] = sorted([*record["runs"], run], key=lambda r: (r["task"], r["steps"], r["library"], r["seed"]))
            args.out.parent.mkdir(parents=True, exist_ok=True)
            write(args.out, record)
            print(json.dumps(run), flush=True)
    print(table(record["runs"]))


if __name__ == "__main__":
    main()
