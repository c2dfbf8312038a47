"""Everyday tasks that need memory, and two learners of them: hadamem with its default settings, and sb3-contrib's RecurrentPPO.

Both run in this process with one thread, so that their CPU times can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch

from ..runs.config import make_config
from ..training.evaluate import evaluate
from ..training.loop import train
from .measure import one_thread

EPISODES = 50      # of the evaluation after training, with the most likely actions


@dataclass(frozen=True)
class Everyday:
    """A task."""

    make: Callable[[], gymnasium.Env[Any, Any]]                      # a single Gymnasium env
    text: str                                                        # what it asks for
    tuned: Mapping[str, Any]                                         # settings of RecurrentPPO that suit it
    native: str = ""                                                 # the same task among hadamem's own
    needs: str = ""                                                  # a package beside Gymnasium
    options: Mapping[str, Any] = field(default_factory=dict)         # of the native task
    policy: str = "MlpLstmPolicy"                                    # of RecurrentPPO


def only(env: gymnasium.Env[Any, Any], kept: list[int]) -> gymnasium.Env[Any, Any]:
    """The env with these entries of its observations alone."""
    space = env.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[kept], gymnasium.spaces.Box(space.low[kept], space.high[kept],
                                                                                                    dtype=space.dtype.type))


def cartpole() -> gymnasium.Env[Any, Any]:
    return only(gymnasium.make("CartPole-v1"), [0, 2])


def pendulum() -> gymnasium.Env[Any, Any]:
    return only(gymnasium.make("Pendulum-v1"), [0, 1])


def acrobot() -> gymnasium.Env[Any, Any]:
    return only(gymnasium.make("Acrobot-v1"), [0, 1, 2, 3])


def lunar_lander() -> gymnasium.Env[Any, Any]:
    return only(gymnasium.make("LunarLander-v3"), [0, 1, 4, 6, 7])


def minigrid_memory() -> gymnasium.Env[Any, Any]:
    """The agent's view as numbers between 0 and 1; the actions left, right and forward."""
    import minigrid

    env = minigrid.wrappers.ImgObsWrapper(gymnasium.make("MiniGrid-MemoryS7-v0"))
    env = gymnasium.wrappers.TransformAction(env, lambda action: action, gymnasium.spaces.Discrete(3))
    return gymnasium.wrappers.TransformObservation(env, lambda obs: np.asarray(obs, np.float32).reshape(-1) / 10,
                                                   gymnasium.spaces.Box(0.0, 1.0, (147,), np.float32))


def minigrid_pixels() -> gymnasium.Env[Any, Any]:
    """The same as a picture of 56 x 56 pixels."""
    import minigrid

    env = minigrid.wrappers.RGBImgPartialObsWrapper(gymnasium.make("MiniGrid-MemoryS7-v0"), tile_size=8)
    return gymnasium.wrappers.TransformAction(minigrid.wrappers.ImgObsWrapper(env), lambda action: action, gymnasium.spaces.Discrete(3))


def repeat_previous() -> gymnasium.Env[Any, Any]:
    from popgym.envs.repeat_previous import RepeatPrevious  # plain Python, faster than a batch of one

    return RepeatPrevious(num_decks=1, k=6)


def tmaze() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("hadamem/TMaze-v0")


# Settings of rl-zoo3 for these tasks where it has them, with its network of 64 units; for the others, the same ones adapted by hand.
_SMALL = {"lstm_hidden_size": 64, "net_arch": {"pi": [64], "vf": [64]}, "ortho_init": False, "activation_fn": "ReLU"}
_CARTPOLE = {"n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
             "learning_rate": "linear 1e-3", "clip_range": "linear 0.2", "policy_kwargs": _SMALL}
_RECALL = {**_CARTPOLE, "gae_lambda": 0.95, "gamma": 0.99}

TASKS: dict[str, Everyday] = {
    "cartpole": Everyday(cartpole, "CartPole-v1 without velocities", _CARTPOLE),
    "pendulum": Everyday(pendulum, "Pendulum-v1 without velocity", {
        "n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 1e-3,
        "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4, "policy_kwargs": _SMALL}),
    "repeat-previous": Everyday(repeat_previous, "POPGym's RepeatPrevious with k = 6: say which card came five steps ago", {
        **_RECALL, "n_steps": 52, "batch_size": 416, "n_epochs": 10, "ent_coef": 0.003}, "popgym/RepeatPreviousEasy", "popgym",
                                options={"k": 6}),
    "tmaze": Everyday(tmaze, "T-Maze: remember the signal at the start until the junction", {**_RECALL, "ent_coef": 0.01}, "TMaze"),
    "acrobot": Everyday(acrobot, "Acrobot-v1 without velocities", {
        "normalize": True, "n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0}),
    "lunar-lander": Everyday(lunar_lander, "LunarLander-v3 without velocities", {
        "n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
                             needs="Box2D"),
    "minigrid-memory": Everyday(minigrid_memory, "MiniGrid-MemoryS7: go to the object that was shown at the start", {
        **_RECALL, "n_steps": 128, "n_epochs": 4, "ent_coef": 0.01}, needs="minigrid"),
    "minigrid-pixels": Everyday(minigrid_pixels, "the same, seen as pictures", {
        **_RECALL, "n_steps": 128, "n_epochs": 4, "ent_coef": 0.01}, needs="minigrid", policy="CnnLstmPolicy"),
}
RECURRENT_PPO = {"recurrent-ppo": "defaults", "recurrent-ppo-tuned": "tuned"}      # learners beside the memories


@dataclass
class Learned:
    """What a learner reached: returns of training episodes by env steps and CPU seconds, and the mean return of an evaluation."""

    score: float = 0.0
    cpu_seconds: float = 0.0
    curve: dict[str, list[float]] = field(default_factory=lambda: {"steps": [], "cpu_seconds": [], "return": []})

    def note(self, steps: int, seconds: float, value: float | None) -> None:
        if value is not None and np.isfinite(value):
            for name, x in (("steps", steps), ("cpu_seconds", round(seconds, 3)), ("return", round(float(value), 4))):
                self.curve[name].append(x)


def learn(task: str, learner: str, steps: int, seed: int, settings: Mapping[str, Any] | None = None) -> Learned:
    """Train and evaluate. learner: the name of a memory, or of RECURRENT_PPO. settings: changes of hadamem's default settings."""
    with one_thread():
        if learner in RECURRENT_PPO:
            return learn_with_sb3(task, RECURRENT_PPO[learner], steps, seed)
        return learn_with_hadamem(task, learner, steps, seed, settings or {})


def learn_with_hadamem(task: str, memory: str, steps: int, seed: int, settings: Mapping[str, Any]) -> Learned:
    chosen = TASKS[task]
    env: Any = chosen.native or chosen.make
    own: dict[str, Any] = {"env_options": dict(chosen.options)} if chosen.native else {"workers": 0}      # others' CPU time is not counted
    config = make_config(**{"env": chosen.native or task, "memory": memory, "total_steps": steps, "seed": seed, "device": "cpu", "log": (),
                            **own, **settings})
    found, start = Learned(), time.process_time()
    run = train(config, env=None if chosen.native else env,
                report=lambda row: found.note(row["steps"], time.process_time() - start, row.get("return")))
    if run.status != "finished":      # its agent must not pass for a trained one
        raise KeyboardInterrupt
    found.cpu_seconds = time.process_time() - start
    found.score = evaluate(run.policy, env, EPISODES, seed=seed + 1, deterministic=True, env_options=chosen.options).mean
    return found


def learn_with_sb3(task: str, kind: str, steps: int, seed: int) -> Learned:
    """kind: "defaults", with eight envs, or "tuned"."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    settings = {"n_envs": 8} if kind == "defaults" else dict(TASKS[task].tuned)
    num_envs, normalize = settings.pop("n_envs"), settings.pop("normalize", False)
    env = make_vec_env(TASKS[task].make, num_envs, seed=seed)
    test = make_vec_env(TASKS[task].make, num_envs, seed=seed + 10_000)
    if normalize:
        env = VecNormalize(env, gamma=settings["gamma"])
        test = VecNormalize(test, training=False, norm_reward=False)
    model = RecurrentPPO(TASKS[task].policy, env, seed=seed, device="cpu", **_for_sb3(settings))
    found, start = Learned(), time.process_time()

    class Note(BaseCallback):
        ended: list[float]      # returns of the episodes that ended in this rollout

        def _on_rollout_start(self) -> None:
            self.ended = []

        def _on_step(self) -> bool:
            self.ended += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            return True

        def _on_rollout_end(self) -> None:
            found.note(self.num_timesteps, time.process_time() - start, float(np.mean(self.ended)) if self.ended else None)

    model.learn(steps, callback=Note())
    found.cpu_seconds = time.process_time() - start
    if normalize:
        test.obs_rms = env.obs_rms
    found.score = float(evaluate_policy(model, test, EPISODES, deterministic=True)[0])
    return found


def _for_sb3(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of TASKS as RecurrentPPO takes them: schedules and activations are functions there."""
    made = dict(settings)
    for name in ("learning_rate", "clip_range"):
        if isinstance(made.get(name), str):
            first = float(made[name].removeprefix("linear "))
            made[name] = lambda left, first=first: left * first
    if "policy_kwargs" in made:
        made["policy_kwargs"] = {**made["policy_kwargs"], "activation_fn": getattr(torch.nn, made["policy_kwargs"]["activation_fn"])}
    return made
