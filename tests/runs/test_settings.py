"""Settings by name: one table for Python, YAML files and the command line, one type check, and configurations that come back whole."""

import dataclasses
import json
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
import torch
import yaml

import hadamem as hm
from hadamem.agents import AGENTS, PPO, Agent, NetworkConfig, PPOConfig, register_agent, section_of
from hadamem.cli import build_parser
from hadamem.cli.train import read_settings
from hadamem.memory import resolve_options
from hadamem.runs.config import TrainConfig, from_dict, make_config, settings_table, to_dict, to_flat
from hadamem.runs.folder import check_same, load_config, save_config
from hadamem.runs.presets import PRESETS
from hadamem.runs.settings import ALIASES, ELSEWHERE, Setting, Table, parse_value


@dataclass(frozen=True)
class Engine:
    power: float = 1.5              # in kW
    cylinders: int = 4
    name: str = "boxer"             # of the engine
    turbo: bool = False


@dataclass(frozen=True)
class Brakes:
    power: float = 0.5              # another one
    discs: int | None = None        # None: drums


@dataclass(frozen=True)
class Car:
    name: str = "car"               # of the car
    colours: tuple[str, ...] = ("red",)
    extras: dict[str, object] = field(default_factory=dict)
    engine: Engine = field(default_factory=Engine)


@dataclass(frozen=True)
class MineConfig:
    gamma: float = 0.5              # of this agent
    bonus: int = 3                  # of this agent alone


class Mine(PPO):
    """An agent with its own section."""

    Config = MineConfig


def setting(kind, optional=False):
    return Setting("part.x", kind, optional, None, "")


# --- one setting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value", "want"), [
    (int, 3, 3), (int, 3.0, 3), (int, 1e6, 1_000_000), (int, np.int64(3), 3), (int, np.uint8(3), 3), (int, np.float64(3), 3), (int, -2, -2),
    (float, 3, 3.0), (float, 0.5, 0.5), (float, np.float32(0.5), 0.5), (float, np.int32(2), 2.0), (float, Fraction(1, 2), 0.5),
    (bool, True, True), (bool, False, False), (str, "a", "a"), (str, "", ""),
    (tuple, ("a", "b"), ("a", "b")), (tuple, ["a"], ("a",)), (tuple, "a", ("a",)), (tuple, (), ()),
    (dict, {"a": 1}, {"a": 1}), (dict, {}, {}),
])
def test_check(kind, value, want):
    for optional in (False, True):
        got = setting(kind, optional).check(value)
        assert got == want
        assert type(got) is kind      # no numpy number in a config file
    if kind is dict:
        assert setting(kind).check(value) is not value      # the caller's stays the caller's


@pytest.mark.parametrize(("kind", "value", "words"), [
    (int, 1.5, "a whole number, got 1.5"), (int, "3", "a whole number, got '3'"), (int, True, "a whole number, got True"),
    (int, float("nan"), "a whole number, got nan"), (int, float("inf"), "a whole number, got inf"),
    (int, [3], r"a whole number, got \[3\]"),
    (int, np.float64(1.5), "a whole number, got .*1.5"),
    (float, "0.5", "a number, got '0.5'"), (float, True, "a number, got True"), (float, 1j, "a number, got 1j"),
    (float, {}, "a number, got {}"),
    (float, torch.tensor(0.5), "a number, got tensor"),
    (bool, 1, "True or False, got 1"), (bool, "yes", "True or False, got 'yes'"), (bool, 0.0, "True or False, got 0.0"),
    (str, 3, "text, got 3"), (str, b"a", "text, got b'a'"), (str, False, "text, got False"),
    (tuple, 3, "a list, got 3"), (tuple, {"a": 1}, "a list, got {'a': 1}"), (tuple, True, "a list, got True"),
    (dict, [("a", 1)], "a mapping, got"), (dict, "a", "a mapping, got 'a'"), (dict, True, "a mapping, got True"),
])
def test_check_refuses(kind, value, words):
    with pytest.raises(ValueError, match=f"^part.x must be {words}"):
        setting(kind).check(value)
    with pytest.raises(ValueError, match=f"^part.x must be {words.replace(', got', ' or None, got', 1)}"):
        setting(kind, optional=True).check(value)


BEYOND = [(float, "inf"), (float, "nan"), (float, "-inf"), (float, "1e39"), (float, "-1e39"), (float, "1e-46"), (int, "1e300"),
          (int, "9" * 30)]


@pytest.mark.parametrize(("kind", "text"), BEYOND)
def test_numbers_that_no_tensor_holds_are_refused(kind, text):
    wanted = "finite, and 0 or 1e-38 to 3e.38 in size" if kind is float else r"in -2\*\*63 . 1 .. 2\*\*63 - 1"
    for optional in (False, True):
        for call in (setting(kind, optional).parse, setting(kind, optional).read):
            with pytest.raises(ValueError, match=f"^part.x must be {wanted}.*, got"):
                call(text)
    with pytest.raises(ValueError, match=r"^part.x must be .*, got a number of 16610 bits$"):      # Python does not write it as text
        setting(kind).check(10**5000)


@pytest.mark.parametrize("changes", [
    dict(learning_rate=float("inf")), dict(learning_rate=-1.0), dict(learning_rate=1e39), dict(adam_eps=1e-46),
    dict(clip_range=float("nan")), dict(ent_coef=-0.1), dict(vf_coef=-1.0), dict(kl_coef=float("inf")), dict(max_grad_norm=float("inf")),
    dict(checkpoint_every=float("inf")), dict(threads=2147483647), dict(threads=0), dict(seed=10**400), dict(num_envs=10**30),
    dict(agent="sac", ent_coef=-1.0), dict(agent="sac", learning_rate=float("inf")), dict(agent="sac", target_entropy=float("nan")),
])
def test_senseless_numbers_are_refused(changes):
    """An error names the setting, the value and what it may be; also where the dataclass itself is made."""
    (name, value), = ((name, x) for name, x in changes.items() if name != "agent")
    with pytest.raises(ValueError, match=rf"{name} must be .*, got") as error:
        make_config(**changes)
    assert len(str(error.value)) < 200
    kind = make_config(agent=changes.get("agent", "ppo")).algorithm
    if hasattr(kind, name):
        with pytest.raises(ValueError, match=rf"^{name} must be .*, got"):
            dataclasses.replace(kind, **{name: value})


@pytest.mark.parametrize("kind", [int, float, bool, str, tuple, dict])
def test_none(kind):
    may, must = setting(kind, optional=True), setting(kind)
    assert may.check(None) is may.read(None) is None
    assert may.parse("none") is may.parse("None") is may.parse("null") is None
    for call in (must.check, must.read):
        with pytest.raises(ValueError, match=r"part.x must be .*, got None"):
            call(None)
    if kind is str:
        assert must.parse("none") == "none"      # the memory's name, say
        assert may.read("none") == "none"        # YAML has null
    elif kind is tuple:
        assert must.parse("none") == ()
    else:
        with pytest.raises(ValueError, match=r"part.x must be .*, got"):
            must.parse("none")


@pytest.mark.parametrize(("kind", "text", "want"), [
    (int, "3", 3), (int, "-3", -3), (int, "1e6", 1_000_000), (int, "8_192", 8192), (int, "2.0", 2),
    (float, "3", 3.0), (float, "1e-3", 1e-3), (float, ".5", 0.5), (float, "1e38", 1e38),
    *[(bool, text, True) for text in ("true", "True", "yes", "on", "1")], *[(bool, text, False) for text in ("false", "no", "OFF", "0")],
    (str, "a b", "a b"), (str, "3", "3"), (tuple, "a", ("a",)), (tuple, "a,b", ("a", "b")), (tuple, "a, b", ("a", "b")), (tuple, "", ()),
    (dict, '{"a": [1, null]}', {"a": [1, None]}),
])
def test_parse(kind, text, want):
    got = setting(kind).parse(text)
    assert got == want
    assert type(got) is kind
    assert setting(kind).read(text) == want      # in a file, too


@pytest.mark.parametrize(("kind", "text", "words"), [
    (int, "many", "a whole number, got 'many'"), (int, "1.5", "a whole number, got 1.5"), (int, "", "a whole number, got ''"),
    (int, "nan", "a whole number, got"), (int, "true", "a whole number, got 'true'"), (float, "half", "a number, got 'half'"),
    (bool, "perhaps", "True or False, got 'perhaps'"), (bool, "2", "True or False, got '2'"), (dict, "a", "a mapping, got 'a'"),
    (dict, "[1]", r"a mapping, got \[1\]"),
])
def test_parse_refuses(kind, text, words):
    for call in (setting(kind).parse, setting(kind).read):
        with pytest.raises(ValueError, match=f"^part.x must be {words}"):
            call(text)


def test_read_takes_values_too():
    assert setting(float).read(3) == 3.0
    assert setting(tuple).read(["a", "b"]) == ("a", "b")
    assert setting(dict).read({"a": "3"}) == {"a": "3"}      # what is inside is not a setting
    with pytest.raises(ValueError, match="must be text, got 3"):
        setting(str).read(3)


def test_a_value_of_unknown_type():
    for text, want in (("3", 3), ("3e-1", 0.3), ("true", True), ("True", True), ("None", None), ("null", None), ("[1, 2]", [1, 2]),
                       ("step", "step"), ('"3"', "3")):
        assert parse_value(text) == want
        assert type(parse_value(text)) is type(want)


# --- the table -----------------------------------------------------------------------------------------------------


@pytest.fixture
def table():
    return Table({"": Car, "engine": Engine, "brakes": Brakes})


def test_fields_become_settings(table):
    assert list(table.settings) == ["name", "colours", "extras", "engine.power", "engine.cylinders", "engine.name", "engine.turbo",
                                    "brakes.power", "brakes.discs"]
    assert table.settings["engine.power"] == Setting("engine.power", float, False, 1.5, "in kW")
    assert table.settings["brakes.discs"] == Setting("brakes.discs", int, True, None, "None: drums")
    assert table.settings["colours"] == Setting("colours", tuple, False, ("red",), "")
    assert table.settings["extras"][1:4] == (dict, False, {})
    assert (table.settings["engine.power"].section, table.settings["engine.power"].field) == ("engine", "power")
    assert (table.settings["name"].section, table.settings["name"].field) == ("", "name")


def test_find_by_dotted_and_bare_name(table):
    assert table.find("engine.cylinders") is table.find("cylinders") is table.settings["engine.cylinders"]
    assert table.find("brakes.discs") is table.find("discs")
    assert table.find("name") is table.settings["name"]      # the outer one, though the engine has a name as well
    assert table.find("engine.name") is table.settings["engine.name"]


def test_an_ambiguous_name_is_refused(table):
    with pytest.raises(ValueError, match=r"^unknown setting 'power'; did you mean 'engine.power' or 'brakes.power'\?$"):
        table.find("power")
    assert "power" not in table.bare
    with pytest.raises(ValueError, match=r"'power'.*'engine.power' or 'brakes.power'"):
        table.flatten({"power": 3})


def test_unknown_names(table):
    for name, words in (("cylnders", "did you mean 'engine.cylinders'"), ("engine.cylindres", "did you mean 'engine.cylinders'"),
                        ("brakes.cylinders", "did you mean 'engine.cylinders'"), ("motor.power", "'engine.power' or 'brakes.power'"),
                        ("zzz", "choose from name, colours, extras, engine.power, .*, brakes.discs$"), ("", "choose from name"),
                        ("engine", "did you mean|choose from")):
        with pytest.raises(ValueError, match=f"^unknown setting {name!r}; ?.*{words}"):
            table.find(name)


def test_find_in_a_run():
    table = settings_table()
    gamma = table.settings["ppo.gamma"]
    assert table.find("ppo.gamma") is table.find("gamma") is gamma
    assert table.find("gae-lambda") is table.find("ppo.gae-lambda") is table.settings["ppo.gae_lambda"]
    assert ALIASES == {"steps": "total_steps", "lr": "learning_rate"}
    assert table.find("steps") is table.find("total_steps") is table.settings["total_steps"]
    assert table.find("lr") is table.find("learning_rate") is table.settings["ppo.learning_rate"]
    assert "algorithm" not in table.settings
    for section, kind in (("", TrainConfig), ("network", NetworkConfig), ("ppo", PPOConfig)):
        fields = {f.name for f in dataclasses.fields(kind)} - {"network", "algorithm"}
        assert {x.field for x in table.settings.values() if x.section == section} == fields


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_names_of_other_libraries(name):
    """Each is refused, with ours as a hint, which is a setting."""
    agent = next(agent for agent in ("ppo", "sac") if ELSEWHERE[name] in settings_table(agent).bare)
    table = settings_table(agent)
    assert table.find(ELSEWHERE[name]).field == ELSEWHERE[name]
    assert name not in table.bare
    for written in (name, name.replace("_", "-"), f"{agent}.{name}"):
        with pytest.raises(ValueError, match=f"^unknown setting {written!r}; did you mean {ELSEWHERE[name]!r}\\?$"):
            table.find(written)


def test_every_setting_of_a_run_has_a_bare_name():
    """Else it must be written with its section, and the list in the docs is wrong."""
    table = settings_table()
    assert set(table.bare.values()) == set(table.settings)
    for name, found in table.settings.items():
        assert table.find(found.field).name == name


def test_flatten(table):
    want = {"name": "t", "engine.power": 2.0, "brakes.power": 3.0, "brakes.discs": None, "extras": {"engine": {"power": 1}}}
    for values in (
        {"name": "t", "engine": {"power": 2}, "brakes": {"power": 3, "discs": None}, "extras": {"engine": {"power": 1}}},
        {"name": "t", "engine.power": 2, "brakes.power": 3, "discs": None, "extras": {"engine": {"power": 1}}},
        {"name": "t", "engine__power": 2, "brakes__power": 3, "brakes__discs": None, "extras": {"engine": {"power": 1}}},
        {"name": "t", "engine": {"power": 2}, "brakes.power": 3, "brakes__discs": None, "extras": {"engine": {"power": 1}}},
    ):
        assert table.flatten(values) == want
    assert table.flatten({}) == table.flatten({"engine": {}}) == table.flatten({"engine": None}) == table.flatten({"extras": None}) == {}
    assert table.flatten({"engine": {"cylinders": "8", "turbo": "yes"}}, read=True) == {"engine.cylinders": 8, "engine.turbo": True}
    assert settings_table().flatten({"ppo": {"learning-rate": 1, "num-epochs": 2}}) == {"ppo.learning_rate": 1.0, "ppo.num_epochs": 2}


@pytest.mark.parametrize(("values", "words"), [
    ({"engine": 4}, "^engine is a section with settings such as engine.power, got 4$"),
    ({"engine": "fast"}, "^engine is a section with settings such as engine.power, got 'fast'$"),
    ({"wheels": {"size": 3}}, "^unknown setting 'wheels'; choose from"),
    ({"engines": {"power": 3}}, "^unknown setting 'engines'; did you mean"),
    ({"engine": {"discs": 3}}, "^unknown setting 'engine.discs'; did you mean 'brakes.discs'"),
    ({"engine": {"brakes": {"discs": 3}}}, "^unknown setting 'engine.brakes';"),
    ({"engine": {"cylinders": "8"}}, "^engine.cylinders must be a whole number, got '8'$"),
    ({"": {"name": "t"}}, "^unknown setting '';"), ({3: 4}, "^unknown setting '3';"),
])
def test_flatten_refuses(table, values, words):
    with pytest.raises(ValueError, match=words):
        table.flatten(values)


def test_nest(table):
    assert table.nest({"name": "t", "engine.power": 2.0, "brakes.discs": 3}) == {"": {"name": "t"}, "engine": {"power": 2.0},
                                                                                  "brakes": {"discs": 3}}


# --- configurations ------------------------------------------------------------------------------------------------


def test_ways_of_writing_give_the_same_configuration(tmp_path):
    want = make_config(env="TMaze", memory="gru", total_steps=5000)
    want = dataclasses.replace(want, algorithm=dataclasses.replace(want.algorithm, gamma=0.9, learning_rate=1e-4, max_grad_norm=None),
                               network=dataclasses.replace(want.network, memory_size=32))
    written = {
        "bare": {"gamma": 0.9, "learning_rate": 1e-4, "max_grad_norm": None, "memory": "gru", "memory_size": 32, "total_steps": 5000},
        "alias": {"gamma": 0.9, "lr": 1e-4, "max_grad_norm": None, "memory": "gru", "memory_size": 32, "steps": 5e3},
        "dotted": {"ppo.gamma": 0.9, "ppo.learning_rate": 1e-4, "ppo.max_grad_norm": None, "network.memory": "gru",
                   "network.memory_size": 32, "total_steps": 5000},
        "underscores": {"ppo__gamma": 0.9, "ppo__learning_rate": 1e-4, "ppo__max_grad_norm": None, "network__memory": "gru",
                        "network__memory_size": 32, "total_steps": 5000},
        "nested": {"ppo": {"gamma": 0.9, "learning_rate": 1e-4, "max_grad_norm": None}, "network": {"memory": "gru", "memory_size": 32},
                   "total_steps": 5000},
    }
    for how, changes in written.items():
        assert make_config(env="TMaze", **changes) == want, how
        argv = [word for name, value in settings_table().flatten(changes).items() for word in ("--set", f"{name}={value}")]
        assert read_settings(build_parser(["train"]).parse_args(["train", "--env", "TMaze", *argv])) == want, how
        if how != "underscores":
            (tmp_path / "c.yaml").write_text(yaml.safe_dump({"env": "TMaze", **changes}))
            assert read_settings(build_parser(["train"]).parse_args(["train", "--config", str(tmp_path / "c.yaml")])) == want, how


def test_numbers_of_numpy_are_plain_in_a_configuration():
    config = make_config(env="TMaze", gamma=np.float32(0.5), seed=np.int64(3), total_steps=np.float64(1e5))
    assert config == make_config(env="TMaze", gamma=0.5, seed=3, total_steps=100_000)
    assert [type(x) for x in (config.algorithm.gamma, config.seed, config.total_steps)] == [float, int, int]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("memory", hm.list_memories())
def test_a_configuration_comes_back(preset, memory, tmp_path):
    config = make_config(preset, env="TMaze", memory=memory, seed=3, log=("tensorboard", "wandb"), env_options={"length": 5})
    values = to_dict(config)
    assert set(values) - {section_of(config.agent)} == {f.name for f in dataclasses.fields(TrainConfig)} - {"algorithm"}
    assert values[section_of(config.agent)] == dataclasses.asdict(config.algorithm)
    assert from_dict(values) == config
    assert from_dict(json.loads(json.dumps(values))) == config      # as in a checkpoint
    save_config(config, tmp_path / "c.yaml")
    assert load_config(tmp_path / "c.yaml") == config
    assert from_dict(to_flat(config)) == config
    assert set(to_flat(config)) == set(settings_table(config.agent).settings)
    changes = {name: x for name, x in to_flat(config).items() if name != "preset"}
    assert make_config(preset, **changes) == config      # nothing is added twice
    # Everything that the memory is built with is spelled out.
    size = config.network.memory_size
    own = PRESETS[preset].for_memory(memory, section_of(config.agent)).get("network.memory_options", {})
    options = resolve_options(memory, {**({} if size is None else {"memory_size": size}), **own})
    assert config.network.memory_options == {name: x for name, x in options.items() if name not in ("memory_size", "backend")}


def test_sizes_and_options_of_the_memory_are_spelled_out():
    network = make_config(env="TMaze", memory="shm", memory_size=32, memory_options={"clip": 2.0}).network
    assert (network.memory_size, network.memory_options["clip"], network.memory_options["key_size"]) == (32, 2.0, 32)
    assert "backend" not in network.memory_options                   # chosen on each machine
    assert make_config(env="TMaze", memory_options={"backend": "reference"}).network.memory_options["backend"] == "reference"
    own = make_config(env="TMaze", memory="gru", memory_size=None).network.memory_size
    assert own == resolve_options("gru", {})["memory_size"]


@pytest.mark.parametrize(("changes", "words"), [
    ({"network": 3}, "network is a section with settings such as network.memory, got 3"),
    ({"sacc": {"gamma": 0.9}}, "unknown setting 'sacc'"), ({"algorithm": PPOConfig()}, "unknown setting 'algorithm'; did you mean 'agent'"),
    ({"agent": "pop"}, "unknown agent 'pop'; did you mean 'ppo'"),
    ({"preset": "defalt"}, "unknown preset 'defalt'; did you mean 'default'"),
    ({"preset": ["default"]}, r"unknown preset \['default'\]; choose from default"),
    ({"preset": 10**5000}, "unknown preset a number of 16610 bits; choose from default"),
    ({"x" * 5000: 1}, "unknown setting 'x{79}[.]{3};"),
    ({"gamma": 2}, "ppo.gamma must be between 0 and 1, got 2.0"),
    ({"actor_gamma": -1}, "ppo.actor_gamma must be None or between 0 and 1, got -1.0"),
    ({"gamma": "0.9"}, "ppo.gamma must be a number, got '0.9'"),
    ({"num_envs": 0}, "num_envs must be at least 1, got 0"), ({"eval_every": -1}, "eval_every must be 0"),
    ({"eval_episodes": 0}, "eval_episodes must be at least 1, got 0"), ({"eval_env_options": {"seed": 1}}, "eval_env_options has 'seed'"),
    ({"compile": 1}, "compile must be True or False, got 1"),
])
def test_bad_changes(changes, words):
    with pytest.raises(ValueError, match=words):
        make_config(**changes)


# --- other agents --------------------------------------------------------------------------------------------------


def test_an_agent_by_its_class():
    name = f"{__name__}:Mine"
    assert section_of(name) == "mine"
    table = settings_table(name)
    assert [x for x in table.settings if x.startswith(("mine.", "ppo."))] == ["mine.gamma", "mine.bonus"]
    assert table.settings["mine.bonus"].help == "of this agent alone"
    config = make_config(env="TMaze", agent=name, gamma=0.25, mine={"bonus": 4})
    assert config.agent_class is Mine
    assert config.algorithm == MineConfig(0.25, 4)
    assert config == make_config(env="TMaze", agent=name, **{"mine.gamma": 0.25, "bonus": 4})
    assert config.network == make_config(env="TMaze").network      # the preset holds for everything else
    values = to_dict(config)
    assert (values["agent"], values["mine"], "ppo" in values) == (name, {"gamma": 0.25, "bonus": 4}, False)
    assert from_dict(json.loads(json.dumps(values))) == config
    for bad, words in (({"ppo": {"gamma": 0.9}}, "'ppo' belongs to agent 'ppo', but the agent is"),
                       ({"bonuses": 1}, "unknown setting 'bonuses'"),
                       ({"ppo.bonus": 1}, "'ppo.bonus' belongs to agent 'ppo'"),
                       ({"num_epochs": 1}, "'num_epochs' belongs to agent 'ppo'")):
        with pytest.raises(ValueError, match=words):
            make_config(env="TMaze", agent=name, **bad)


def test_ppo_by_its_class():
    config = make_config(env="TMaze", agent="hadamem.agents:PPO", gamma=0.9)
    assert section_of("hadamem.agents:PPO") == "ppo"
    assert dataclasses.replace(config, agent="ppo") == make_config(env="TMaze", gamma=0.9)
    assert from_dict(to_dict(config)) == config


def test_the_command_line_has_the_options_of_the_agent(tmp_path):
    name = f"{__name__}:Mine"
    words = ["train", "--env", "TMaze", "--agent", name, "--bonus", "5", "--mine.gamma", "0.25"]
    config = read_settings(build_parser(words).parse_args(words))
    assert config == make_config(env="TMaze", agent=name, bonus=5, gamma=0.25)
    save_config(config, tmp_path / "c.yaml")
    words = ["train", "--config", str(tmp_path / "c.yaml"), "--bonus", "6"]
    assert read_settings(build_parser(words).parse_args(words)).algorithm == MineConfig(0.25, 6)


def test_an_agent_by_a_registered_name(monkeypatch):
    monkeypatch.setattr("hadamem.agents.AGENTS", dict(AGENTS))
    with pytest.raises(ValueError, match="unknown agent 'mine'"):
        make_config(agent="mine")
    register_agent("mine", Mine)
    assert make_config(env="TMaze", agent="mine", bonus=1).algorithm == MineConfig(0.5, 1)


@pytest.mark.parametrize(("name", "kind", "words"), [
    ("hadamem.agents:PPOConfig", TypeError, "must be a subclass of hadamem.agents.Agent, got"),
    ("hadamem.agents:PPOO", ValueError, "has no 'PPOO'; did you mean 'ppo'"),
    ("nowhere.at_all:X", ValueError, "cannot import module 'nowhere.at_all'"),
])
def test_no_agent(name, kind, words):
    with pytest.raises(kind, match=words):
        make_config(agent=name)


def test_the_settings_must_be_the_agents_own():
    assert issubclass(Mine, Agent)
    with pytest.raises(ValueError, match=r"agent 'ppo' takes settings of type PPOConfig, got MineConfig"):
        TrainConfig(algorithm=MineConfig())


def test_a_saved_config_with_another_memory_or_size(tmp_path):
    """Options spelled out for the saved memory do not carry over to another one."""
    def read(saved, *options):
        path = tmp_path / "config.yaml"
        save_config(saved, path)
        return read_settings(build_parser(["train"]).parse_args(["train", "--config", str(path), *options]))

    for preset in PRESETS:
        saved = make_config(preset, env="TMaze", memory="shm", seed=3)
        assert read(saved, "--memory", "gru") == make_config(preset, env="TMaze", memory="gru", seed=3)
        assert read(saved, "--memory-size", "32") == make_config(preset, env="TMaze", memory="shm", seed=3, memory_size=32)
    kept = make_config(env="TMaze", memory="shm", memory_options={"row_mode": "step"}, memory_output_size=7)
    assert read(kept, "--memory-size", "32").network.memory_options["row_mode"] == "step"
    assert read(kept, "--memory", "gru").network.memory_output_size == 7


@pytest.mark.parametrize("text", ["env: !!int TMaze", "env: !!int ''", "env: !!bool x", "env: !!timestamp x", "seed: " + "9" * 5000,
                                  "seed: 2026-13-45", "learning_rate: 0x" + "f" * 5000])
def test_yaml_that_python_cannot_read(tmp_path, text):
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"has a value that is not what it looks like: .*; put it in quotes|(seed|learning_rate) must be"):
        load_config(tmp_path / "settings.yaml")


def test_options_that_no_file_can_hold(tmp_path):
    with pytest.raises(ValueError, match=r"config cannot be written to .*: settings must be numbers, strings"):
        save_config(make_config(env_options={"k": 10**5000}), tmp_path / "config.yaml")


def test_a_tuple_among_options_is_a_list_in_the_file(tmp_path):
    """A run with one can be resumed."""
    config = make_config(env_options={"shape": (2, [3, (4,)])})
    save_config(config, tmp_path / "config.yaml")
    check_same(load_config(tmp_path), config, tmp_path)


@pytest.mark.parametrize("sizes", [(float("inf"),), (float("nan"), 3), (2.5,), "2,x", [[]]])
def test_sizes_that_are_no_whole_numbers(sizes):
    with pytest.raises(ValueError, match=r"network.hidden_sizes must be whole numbers such as 256,256, got"):
        make_config(agent="sac", hidden_sizes=sizes)
    assert make_config(agent="sac", hidden_sizes=[2.0, "3"]).network.hidden_sizes == (2, 3)


@pytest.mark.parametrize("given", [{"steps": 5000, "total_steps": 70000}, {"ppo__gamma": 0.5, "gamma": 0.6},
                                   {"ppo": {"gamma": 0.5}, "gamma": 0.6}])
def test_a_setting_that_is_given_twice(given):
    with pytest.raises(ValueError, match=r"(total_steps|ppo\.gamma) is given twice"):
        make_config(env="TMaze", **given)


@pytest.mark.parametrize("name", ["workers", "env_timeout", "seed"])
def test_settings_of_the_run_are_no_options_of_the_env(name):
    with pytest.raises(ValueError, match=f"env_options has '{name}', which is a setting of the run itself"):
        make_config(env="TMaze", env_options={name: 1})
