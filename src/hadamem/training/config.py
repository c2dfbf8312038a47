"""The settings of a training run, as data: what `config.yaml` holds, and presets of them."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..agents.network import NetworkConfig
from ..agents.ppo import PPOConfig

LOGS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a run. The same file starts the same run again."""

    env: str = "popgym/RepeatPreviousEasy"               # a name of `hadamem list envs`, or a Gymnasium id
    env_options: dict[str, Any] = field(default_factory=dict)
    steps: int = 1_000_000                               # env steps to train for; the last iteration may go beyond
    seed: int = 0
    device: str = "auto"                                 # auto: a GPU if there is one
    preset: str = "default"                              # what the other fields were derived from
    num_envs: int | None = None                          # None: from the batch size and the length of rollouts
    rollout: int | None = None                           # steps of each env between updates; None: one episode, or `longest_rollout`
    longest_rollout: int = 256                           # longer episodes are collected in parts of this length
    batch: int = 4096                                    # env steps between updates, about: num_envs times rollout
    workers: int | None = None                           # processes for a Gymnasium env; None: as many as cores
    threads: int = 1                                     # of torch on a CPU: more help a little on idle cores, and cost a lot on busy ones
    previous_action: bool = True                         # the network sees its last action
    first_step: bool = True                              # and a flag at the first step of an episode
    network: NetworkConfig = field(default_factory=NetworkConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    checkpoint_every: float = 60.0                       # seconds between checkpoints
    keep_checkpoints: int = 2
    max_skipped: int = 50                                # updates in a row that may be skipped because they are not finite
    log: tuple[str, ...] = ("tensorboard",)              # where metrics go beside metrics.jsonl: tensorboard, wandb, mlflow
    compile: bool = False                                # on a GPU: torch.compile the loss; 20 s at the start, then a quarter faster
    tf32: bool = True                                    # faster matrix products on a GPU, with 10 bits of mantissa

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "threads", "longest_rollout", "keep_checkpoints", "max_skipped"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("num_envs", "rollout"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers must be at least 0, got {self.workers}")
        if not self.checkpoint_every >= 0:
            raise ValueError(f"checkpoint_every must be 0 seconds or more, got {self.checkpoint_every}")
        for name in {"num_envs", "seed", "device"} & set(self.env_options):
            raise ValueError(f"env_options has {name!r}, which is a setting of the run itself; use {name}, not an option of the env")
        if not 0 <= self.seed < 1 << 31:
            raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {self.seed}")
        object.__setattr__(self, "log", (self.log,) if isinstance(self.log, str) else tuple(self.log))      # YAML has lists
        for name in self.log:
            if name not in LOGS:
                raise ValueError(f"unknown log {name!r};{_near(name, LOGS)} choose from {', '.join(LOGS)}")


# What each preset changes, by dotted name. `default` suits a laptop; the others follow the POPGym experiments of the paper.
PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "ppo.epochs": 8, "ppo.minibatches": 4, "ppo.learning_rate": 1e-3, "ppo.schedule": "linear", "ppo.trace": 0.95, "ppo.clip": 0.2,
        "ppo.kl_target": 0.02, "ppo.kl_floor": 0.05, "ppo.value_clip": None, "ppo.normalize_values": True, "ppo.entropy_coefficient": 0.003,
        "network.memory_output": 128, "network.memory_size": 64,
    },
    "popgym-fair": {"steps": 15_000_000, "batch": 65_536, "longest_rollout": 1024, "compile": True},
    "popgym-release": {
        "steps": 15_000_000, "batch": 65_536, "longest_rollout": 1024, "compile": True, "previous_action": False, "first_step": False,
        "network.memory": "shm-release", "network.time_encoding": "shm", "ppo.max_grad_norm": None, "ppo.reshuffle": False,
    },
}


# What other libraries call our settings: such a name is refused, too, but with the right one.
ELSEWHERE = {
    "lr": "ppo.learning_rate", "gamma": "ppo.discount",
    **dict.fromkeys(("gae_lambda", "lambda_", "lam"), "ppo.trace"), **dict.fromkeys(("n_epochs", "update_epochs"), "ppo.epochs"),
    **dict.fromkeys(("n_minibatches", "num_minibatches"), "ppo.minibatches"), **dict.fromkeys(("clip_range", "clip_coef"), "ppo.clip"),
    "target_kl": "ppo.kl_target", "ent_coef": "ppo.entropy_coefficient", "vf_coef": "ppo.value_coefficient",
    **dict.fromkeys(("total_timesteps", "timesteps", "total_steps"), "steps"), **dict.fromkeys(("n_steps", "num_steps"), "rollout"),
    "n_envs": "num_envs", "env_id": "env", **dict.fromkeys(("hidden_size", "hidden_dim"), "network.memory_size"),
}


def make_config(preset: str = "default", **changes: Any) -> TrainConfig:
    """A configuration from a preset and changes by dotted name: make_config("default", env="TMaze", **{"ppo.epochs": 4}).

    `memory` is short for `network.memory`.
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r};{_near(preset, PRESETS)} choose from {', '.join(PRESETS)}")
    if "memory" in changes:
        changes["network.memory"] = changes.pop("memory")
    values = {**PRESETS[preset], "preset": preset, **changes}
    return from_dict(_nest(values))


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain values, for YAML and JSON."""
    return dataclasses.asdict(config)


def from_dict(values: dict[str, Any]) -> TrainConfig:
    """A configuration from nested values; unknown names are refused with the nearest known ones."""
    return _build(TrainConfig, values, "")


def _nest(values: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        group, _, rest = name.partition(".")
        if rest:
            out.setdefault(group, {})[rest] = value
        else:
            out[name] = value
    return out


def _build(kind: Any, values: dict[str, Any], path: str) -> Any:
    known = {f.name: f for f in dataclasses.fields(kind)}
    parts = {"network": NetworkConfig, "ppo": PPOConfig} if kind is TrainConfig else {}
    hints = get_type_hints(kind)
    for name in values:
        if name not in known:
            homes = [f"{part}.{name}" for part, inner in parts.items() if name in {f.name for f in dataclasses.fields(inner)}]
            homes += [ELSEWHERE[name]] if name in ELSEWHERE else []
            hint = f" did you mean {homes[0]!r}?" if homes else _near(name, known)
            raise ValueError(f"unknown setting {path + name!r};{hint} known are {', '.join(known)}")
    return kind(**{name: _build(parts[name], value, f"{name}.") if name in parts and isinstance(value, dict)
                   else _checked(path + name, value, hints[name]) for name, value in values.items()})


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value of a setting as its type has it, or an error that says what it must be."""
    kinds = [get_origin(kind) or kind for kind in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))]
    for kind in kinds:
        number = {int: Integral, float: Real}.get(kind)
        if number is not None and isinstance(value, number) and not isinstance(value, bool):
            return kind(value)
        if number is None and isinstance(value, (tuple, list, str) if kind is tuple else kind):
            return value
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "text", tuple: "texts", type(None): "None"}
    raise ValueError(f"{name} must be {' or '.join(words.get(kind, 'a ' + kind.__name__) for kind in kinds)}, got {value!r}")


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" did you mean {near[0]!r}?" if near else ""
