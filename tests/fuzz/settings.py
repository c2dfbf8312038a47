"""Settings by keyword and from YAML files: refused in one sentence, or the same after they were written and read again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import yaml

from hadamem.agents import AGENTS
from hadamem.memory import list_memories
from hadamem.runs.config import from_dict, make_config, settings_table, to_dict
from hadamem.runs.folder import check_same, load_config, save_config
from hadamem.runs.presets import PRESETS
from hadamem.runs.settings import Setting

from . import values
from .judge import Failure


def case(rng: Random) -> tuple[str, Callable[[], None]]:
    """Settings for `make_config`, or a YAML file: in words, and as a function."""
    return _keywords(rng) if rng.random() < 0.65 else _file(rng)


def _keywords(rng: Random) -> tuple[str, Callable[[], None]]:
    preset: Any = rng.choice(list(PRESETS)) if rng.random() < 0.9 else values.thing(rng)
    changes = {name: x for name, x in draw(rng).items() if name != "preset"}
    text = f"make_config({values.brief(preset)}, {', '.join(f'{name}={values.brief(x)}' for name, x in changes.items())})"

    def call() -> None:
        config = make_config(preset, **changes)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.yaml"
            save_config(config, file)
            check_same(config, load_config(file), file)      # an error if the run could not be resumed
        if from_dict(to_dict(config)) != config:
            raise Failure(f"the config is not the one from a dict of it: {to_dict(config)}"[:1000])

    return text, call


def draw(rng: Random) -> dict[str, Any]:
    """Some settings, most of them with values of their type; how names may be written varies."""
    agent: Any = rng.choice(list(AGENTS))
    table = settings_table(agent)
    changes: dict[str, Any] = {"agent": agent} if agent != "ppo" else {}
    for _ in range(rng.randint(1, 4)):
        setting = table.settings[rng.choice(list(table.settings))]
        name = rng.choice([setting.name, setting.field, setting.name.replace(".", "__"), setting.field.replace("_", "-")])
        changes[name] = value(rng, setting) if rng.random() < 0.6 else values.thing(rng)
    if rng.random() < 0.15:
        name = rng.choice(["nonsense", "env_id", "ppo.nonsense", "network", "sac", "ppo", "", "lr", "n_steps", rng.choice(values.TEXTS)])
        changes[name] = values.thing(rng)
    return changes


def value(rng: Random, setting: Setting) -> Any:
    """A value of the setting's type, in its range or not."""
    if setting.optional and rng.random() < 0.2:
        return None
    if setting.kind is bool:
        return rng.random() < 0.5
    if setting.kind in (int, float):
        return rng.choice([setting.default, values.size(rng), rng.uniform(-1, 2), rng.choice(values.NUMBERS)])
    if setting.kind is dict:
        return {rng.choice(["memory_size", "k", "clip", "nonsense", "backend", ""]): values.thing(rng)}
    if setting.kind is tuple:
        return [values.thing(rng) for _ in range(rng.randint(0, 3))]
    return rng.choice([setting.default, *list_memories(), *values.TEXTS])


def _file(rng: Random) -> tuple[str, Callable[[], None]]:
    data = document(rng)

    def call() -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "settings.yaml"
            file.write_bytes(data)
            config = load_config(file)
            save_config(config, file)
            if load_config(file) != config:
                raise Failure("the config is not the one from its file")

    return f"load_config of {values.brief(data)}", call


def document(rng: Random) -> bytes:
    """A YAML file with settings, damaged or not."""
    changes = draw(rng)
    if rng.random() < 0.3:
        changes = to_dict(make_config()) | changes
    try:
        text = yaml.safe_dump({name: x for name, x in changes.items() if _plain(x)}, allow_unicode=rng.random() < 0.5)
    except (yaml.YAMLError, ValueError):      # such as an int of thousands of digits
        text = "env: TMaze\n"
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(rng.choice([0, 0, 1, 3])):
        at = rng.randrange(len(data) + 1)
        piece = rng.choice([b"\x00", b"\xff", b"\n", b"  ", b": ", b"- ", b"{", b"]", b"&a ", b"*a", b"!!python/object:os.system ",
                            b"!!int ", b"|", b"\t", b"'", b"#", b"1e999", b".inf", b"2026-13-45", b"0x" + b"f" * 40, b"9" * 5000])
        data[at:at + rng.choice([0, 0, 1, 4])] = piece
    return bytes(data)


def _plain(x: Any) -> bool:
    return x is None or (isinstance(x, (bool, int, float, str, list, dict)) and type(x).__module__ == "builtins")
