"""The settings of a training run, `TrainConfig`: what `config.yaml` holds. `make_config` builds one from a preset and changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..agents import AGENTS, DEFAULT_AGENT, NetworkConfig, find_agent, section_of
from ..agents.agent import Agent
from ..memory import resolve_options
from ..names import did_you_mean, shorten
from ..ranges import check_floats
from .presets import PRESETS
from .settings import ALIASES, Table

MOST_THREADS = 1024      # torch takes any number, and aborts the process where the system has no more
OF_THE_RUN = {"num_envs", "seed", "device", "workers", "env_restarts", "env_timeout"}      # not options of an env
LOGS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run. The same file starts the same run again.

    In files and on the command line, `algorithm` is the section with the agent's name: `ppo.gamma`.
    """

    env: str = "popgym/RepeatPreviousEasy"               # a name of `hadamem list envs`, a Gymnasium id, or package.module:Class
    env_options: dict[str, Any] = field(default_factory=dict)
    agent: str = DEFAULT_AGENT                             # a name of `hadamem list agents`, or package.module:Class
    total_steps: int = 1_000_000                         # env steps to train for; the last iteration may go beyond
    seed: int = 0
    device: str = "auto"                                 # auto: a GPU if there is one
    preset: str = "default"                              # what the other settings were derived from
    num_envs: int | None = None                          # parallel envs; None: steps_per_iteration / num_steps
    num_steps: int | None = None                         # steps of each env per iteration; None: one episode, or what suits the agent
    max_num_steps: int = 256                             # longer episodes are collected in parts of this length
    steps_per_iteration: int | None = 4096               # about num_envs x num_steps; None: total_steps / 128, from 1024 to 4096
    workers: int | None = None                           # processes for a Gymnasium env; None: one per CPU
    env_restarts: int = 0                                # how often workers that died or hung are started again; then the run fails
    env_timeout: float | None = None                     # seconds that a worker may take for a step or reset; None: no limit
    threads: int = 1                                     # torch threads on a CPU; more help little on idle cores and hurt on busy ones
    previous_action: bool = True                         # the network sees the previous action
    joint_previous_action: bool = False                  # a MultiDiscrete previous action is one code, up to 1024 combinations
    first_step: bool = True                              # the network sees a flag at the first step of an episode
    previous_reward: bool = False                        # the network sees the reward of the previous step
    network: Any = field(default_factory=NetworkConfig)      # settings of the network
    algorithm: Any = field(default_factory=AGENTS[DEFAULT_AGENT].Config)      # settings of the agent
    eval_every: int = 0                                  # env steps between evaluations while training; 0: none
    eval_episodes: int = 20                              # episodes of such an evaluation
    eval_env_options: dict[str, Any] = field(default_factory=dict)      # options of the env for evaluations, beside env_options; repeatable
    eval_deterministic: bool = True                      # evaluate the most likely actions; false: sample them
    checkpoint_every: float = 60.0                       # seconds between checkpoints
    keep_checkpoints: int = 2                            # older ones are deleted
    save_replay: bool = True                             # checkpoints hold the replay, if there is one; False: it is empty after a resume
    max_skipped: int = 50                                # stop after this many updates in a row that were not finite
    log: tuple[str, ...] = ("tensorboard",)              # where metrics go beside metrics.jsonl: tensorboard, wandb, mlflow
    compile: bool = False                                # torch.compile on a GPU: 20 s at the start, then a quarter faster
    tf32: bool = True                                    # faster matrix products on a GPU, with 10 bits of mantissa

    def __post_init__(self) -> None:
        check_floats(self)
        for name in ("total_steps", "threads", "max_num_steps", "keep_checkpoints", "max_skipped",
                     "eval_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.threads > MOST_THREADS:
            raise ValueError(f"threads must be in 1 .. {MOST_THREADS}, got {self.threads}; at most one per core is of use")
        for name in ("num_envs", "num_steps", "steps_per_iteration"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.eval_every < 0:
            raise ValueError(f"eval_every must be 0 (no evaluations) or more env steps, got {self.eval_every}")
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers must be at least 0, got {self.workers}")
        if self.env_restarts < 0:
            raise ValueError(f"env_restarts must be at least 0, got {self.env_restarts}")
        if self.env_timeout is not None and not self.env_timeout > 0:
            raise ValueError(f"env_timeout must be None or seconds above 0, got {self.env_timeout}")
        if not self.checkpoint_every >= 0:
            raise ValueError(f"checkpoint_every must be 0 seconds or more, got {self.checkpoint_every}")
        for options in ("env_options", "eval_env_options"):
            for name in OF_THE_RUN & set(getattr(self, options)):
                raise ValueError(f"{options} has {name!r}, which is a setting of the run itself; use {name}, not an option of the env. (An "
                                 "env of your own that takes it gets it from a function that makes the env.)")
        if not 0 <= self.seed < 1 << 31:
            raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {self.seed}")
        object.__setattr__(self, "log", (self.log,) if isinstance(self.log, str) else tuple(self.log))
        for name in self.log:
            if name not in LOGS:
                raise ValueError(f"unknown log {name!r};{did_you_mean(name, LOGS)} choose from {', '.join(LOGS)}")
        for kind, given in ((self.agent_class.Config, self.algorithm), (self.agent_class.Network, self.network)):
            if not isinstance(given, kind):
                raise ValueError(f"agent {self.agent!r} takes settings of type {kind.__name__}, got {type(given).__name__}; "
                                 "make_config builds them")

    @property
    def iteration_steps(self) -> int:
        """`steps_per_iteration`, or what follows from the length of the run."""
        return self.steps_per_iteration or min(4096, max(1024, self.total_steps // 128))

    @property
    def agent_class(self) -> type[Agent]:
        return find_agent(self.agent)


def settings_table(agent: str = DEFAULT_AGENT) -> Table:
    """All settings of a run with that agent."""
    kind = find_agent(agent)
    if kind not in _tables:
        section = section_of(agent)
        if section in {"network", *(field.name for field in dataclasses.fields(TrainConfig))}:
            raise ValueError(f"agent {agent!r} has the section {section!r}, which is a setting of the run; set {kind.__name__}.section")
        _tables[kind] = Table({"": TrainConfig, "network": kind.Network, section: kind.Config})
        del _tables[kind].settings["algorithm"], _tables[kind].bare["algorithm"]      # it stands under the agent's name
    return _tables[kind]


_tables: dict[Any, Table] = {}


def make_config(preset: str = "default", **changes: Any) -> TrainConfig:
    """A configuration from a preset and changes: make_config("default", env="TMaze", memory="gru", num_epochs=4).

    Changes are named as in `Table.find`: bare ("gamma"), dotted (**{"ppo.gamma": 0.9}), with two underscores (ppo__gamma=0.9), or nested
    (ppo={"gamma": 0.9}). What the run will use is spelled out in the result: sizes and options of the memory, too.
    """
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ValueError(f"unknown preset {shorten(preset)};{did_you_mean(preset, PRESETS)} choose from {', '.join(PRESETS)}")
    agent = changes.get("agent", PRESETS[preset].agent)
    table = settings_table(agent)
    check_sections(changes, agent)
    given = table.flatten(changes)
    memory = given.get("network.memory", PRESETS[preset].settings.get("network.memory", NetworkConfig.memory))
    if memory == "none" and given.get("network.actor_memory", "same") != "same":      # settings for no memory at all do not fit
        memory = given["network.actor_memory"]
    others = {section_of(other) for other in AGENTS} - set(table.sections)
    usual = {name: x for name, x in PRESETS[preset].resolve(memory, section_of(agent)).items() if name.partition(".")[0] not in others}
    if agent != PRESETS[preset].agent:      # whose network may have other settings
        usual = {name: x for name, x in usual.items() if name in table.settings}
    config = _build(table, {**table.flatten(usual), "agent": agent, "preset": preset, **given})
    return dataclasses.replace(config, steps_per_iteration=config.iteration_steps, network=spell_out(config.network))


def read_values(values: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """Changes of a preset that stand in a YAML file, where numbers and "none" may be text, in the types of their settings."""
    if not isinstance(preset, str) or preset not in PRESETS:
        return dict(values)      # `make_config` says what is wrong
    agent = values.get("agent", PRESETS[preset].agent)
    table, found = settings_table(agent), dict[str, Any]()
    check_sections(values, agent)
    for name, value in values.items():
        flat = table.flatten({name: value}, read=True)
        found |= flat if name in table.sections or not flat else {name: next(iter(flat.values()))}
    return found


def check_sections(values: Mapping[str, Any], agent: str, file: Any = None) -> None:
    """Refuse settings of another agent than the run's."""
    for name in values:
        other = other_agent(str(name), agent)
        if other is not None:
            raise ValueError(f"{'' if file is None else f'{file}: '}{name!r} belongs to agent {other!r}, but the agent is {agent!r}; "
                             f"leave it out, or choose agent {other!r}")


def other_agent(name: str, agent: str) -> str | None:
    """The agent that has this setting or section, if `agent` has not."""
    name = name.replace("-", "_").replace("__", ".")
    name = ALIASES.get(name, name)
    head, table = name.partition(".")[0], settings_table(agent)
    if head in table.sections or any(name in (full, full.rpartition(".")[2]) for full in table.settings):
        return None
    return next((other for other in AGENTS if section_of(other) == head or name in settings_table(other).bare), None)


def spell_out(network: Any) -> Any:
    """The settings of a network with every option of its memories, so that a run stays what it is when a default changes."""
    for memory in ("memory", "actor_memory"):      # some networks have a second one
        name = getattr(network, memory, "same")
        if name == "same":
            continue
        size = getattr(network, f"{memory}_size")
        options = resolve_options(name, {**({} if size is None else {"memory_size": size}), **getattr(network, f"{memory}_options")})
        if isinstance(options.get("backend"), str) and options["backend"] == "auto":      # chosen on each machine
            del options["backend"]
        network = dataclasses.replace(network, **{f"{memory}_size": options.pop("memory_size", None), f"{memory}_options": options})
    return network


def override(saved: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Saved settings with changes, both by full dotted name, for `make_config`.

    A saved file spells out sizes and options of its memory. Where another memory or memory size is given, those that were only defaults of
    the saved one are left out, so that they become the defaults of the new one. Options (of the env, of the memory) are added to those of
    the file or the preset; another env has none of them.
    """
    values = dict(saved)
    memory, size = (saved.get(f"network.{name}") for name in ("memory", "memory_size"))
    if memory is not None and given.get("network.memory", memory) != memory:
        preset, agent = saved.get("preset", "default"), saved.get("agent", DEFAULT_AGENT)
        usual = to_flat(make_config(preset, agent=agent, memory=memory))
        own = (PRESETS[preset].for_memory(kind, section_of(agent)) for kind in (memory, given["network.memory"]))
        for name in {"network.memory_size", "network.memory_output_size", *(name for changes in own for name in changes)}:
            if name in usual and saved.get(name) == usual[name]:
                values.pop(name, None)
        values.pop("network.memory_options", None)
    elif memory is not None and given.get("network.memory_size", size) != size:
        usual = resolve_options(memory, {} if size is None else {"memory_size": size})
        options = saved.get("network.memory_options", {})
        values["network.memory_options"] = {name: x for name, x in options.items() if name not in usual or usual[name] != x}
    if given.get("network.actor_memory", saved.get("network.actor_memory")) != saved.get("network.actor_memory"):
        for name in ("actor_memory_size", "actor_memory_output_size", "actor_memory_options"):      # of another memory
            values.pop(f"network.{name}", None)
    preset = PRESETS.get(given.get("preset", saved.get("preset", "default")))
    chosen = given.get("network.memory", memory or (preset and preset.settings.get("network.memory")) or NetworkConfig.memory)
    agent = given.get("agent", saved.get("agent", preset.agent if preset else DEFAULT_AGENT))
    usual = {} if preset is None else preset.resolve(chosen, section_of(agent))
    if given.get("env", usual.get("env")) != usual.get("env"):
        usual = {name: x for name, x in usual.items() if not name.endswith("env_options")}
        if given["env"] != saved.get("env"):      # or they are that env's own
            values |= {name: {} for name in ("env_options", "eval_env_options") if preset is not None and name in preset.settings}
    merged = {name: {**values.get(name, usual.get(name, {})), **x} if isinstance(x, dict) else x for name, x in given.items()}
    return {**values, **merged}


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain nested values for YAML and JSON: the agent's settings stand under its name."""
    values = dataclasses.asdict(config)
    values[section_of(config.agent)] = values.pop("algorithm")
    return values


def to_flat(config: TrainConfig) -> dict[str, Any]:
    """Every setting by its dotted name."""
    return settings_table(config.agent).flatten(to_dict(config))


def from_dict(values: Mapping[str, Any]) -> TrainConfig:
    """A configuration from nested values, as `to_dict` writes them. What is missing has its default."""
    agent = values.get("agent", DEFAULT_AGENT)
    table = settings_table(agent)
    return _build(table, {"agent": agent, **table.flatten(values, read=True)})


def complete(saved: Mapping[str, Any], agent: str) -> dict[str, Any]:
    """Settings that a run wrote, by full dotted name, with those that its version of hadamem did not have yet: they mean what it did."""
    return {**to_flat(from_dict({"agent": agent})), **saved}


def _build(table: Table, values: Mapping[str, Any]) -> TrainConfig:
    parts = table.nest(values)
    outer = parts.pop("")
    made = {}
    for section, fields in parts.items():
        try:
            made["network" if section == "network" else "algorithm"] = table.sections[section](**fields)
        except ValueError as error:      # begins with the name of the field
            raise ValueError(f"{section}.{error}") from error
    return TrainConfig(**outer, **made)
